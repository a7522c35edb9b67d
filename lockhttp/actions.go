package lockhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// A Verb is what a viewer wants to do.
type Verb string

// The verbs.
const (
	Release Verb = "release" // take a lease from its holder, or end the transaction that holds a lock
	Ask     Verb = "ask"     // ask all holders of a lease to give it up
	Pause   Verb = "pause"   // pause a job in all processes
	Resume  Verb = "resume"  // end the pause of a job
	RunNow  Verb = "run"     // run a job once, now
)

var verbs = []Verb{Release, Ask, Pause, Resume, RunNow}

// ofJob reports whether the verb is about a job.
func (v Verb) ofJob() bool { return v == Pause || v == Resume || v == RunNow }

// An Action is what an Authorizer decides about.
type Action struct {
	Verb    Verb
	Key     string // as it is, not masked; empty for the slot of hashed keys
	Lease   bool   // or else a transaction lock, or a job
	Slot    int64  // which reader or permit of a lease, or the slot of hashed keys
	Session uint64 // of the transaction that is ended
}

// An Authorizer decides whether the sender of a request may do something. It returns the name of
// that person for the log, and an error to refuse the action. It is also called by the pages of
// keys and jobs, to know which buttons to show: it must not log or do anything by itself.
//
// Requests that another site has caused in a viewer's browser never get that far: see
// http.CrossOriginProtection.
type Authorizer func(r *http.Request, a Action) (who string, err error)

// form is a button, with what it does to the holder.
type form struct {
	ID, Action, Summary, Text, Button string // Action has the key: a field would change its line breaks
	Fields                            map[string]string
	Reason                            bool
}

// forms returns what the viewer may do about a key.
func (c *call) forms(t target, f keyForm) (forms []form) {
	offer := func(a Action, token uint64, summary, text string) {
		if f, may := c.form(t, a, token, summary, text); may {
			forms = append(forms, f)
		}
	}
	asked := false
	for _, l := range f.Leases {
		if l.Kind == "waiter" {
			continue
		}
		if !asked && !l.Kept() {
			asked = true
			offer(Action{Verb: Ask, Key: t.key, Lease: true}, 0, "Ask the holders to give it up", l.IfAsked())
		}
		offer(Action{Release, t.key, true, l.Slot, 0}, l.Token, fmt.Sprintf("Release the %s of %s", kindName(l), shown(l.Owner)), l.IfReleased())
	}
	for _, l := range f.Locks {
		if a, may := releaseOf(l, t); may {
			offer(a, l.Token, fmt.Sprintf("End session %d", l.Session), "Its whole transaction is rolled back, with all its locks, and its program gets an error from the next statement: "+c.session(l.Session)+".")
		}
	}
	return forms
}

// form returns the form of an action, if the viewer may do it.
func (c *call) form(t target, a Action, token uint64, summary, text string) (form, bool) {
	if c.authorize == nil || t.key == "" && !t.bySlot {
		return form{}, false
	}
	if _, err := c.authorize(c.r, a); err != nil {
		return form{}, false
	}
	return form{
		ID: idOf(a.Verb, a.Lease, a.Slot, a.Session, token), Action: string(a.Verb) + "?" + url.Values{"key": {t.shown}}.Encode(),
		Summary: summary, Text: text, Button: summary, Reason: a.Verb == Ask, Fields: map[string]string{
			"lease": strconv.FormatBool(a.Lease), "slot": strconv.FormatInt(a.Slot, 10),
			"session": strconv.FormatUint(a.Session, 10), "token": strconv.FormatUint(token, 10),
		},
	}, true
}

func kindName(l ops.Lease) string {
	if l.Kind == string(ops.Exclusive) {
		return "lease"
	}
	return l.Kind
}

// releaseOf returns the action that ends the transaction of a lock, if that is of a key.
func releaseOf(l ops.Lock, t target) (Action, bool) {
	a := Action{Verb: Release, Key: t.key, Slot: l.Slot, Session: l.Session}
	return a, l.Endable() && (l.Kind == ops.Named || l.Kind == ops.Hashed)
}

// refusal is why something was not done, for the viewer.
type refusal struct {
	code int
	why  string
}

func (r refusal) Error() string { return r.why }

// act does what a form asks for, if the viewer may, and leads back to the page of the key.
func (h *Handler) act(w http.ResponseWriter, r *http.Request, name string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		h.refuse(w, r, http.StatusMethodNotAllowed, "This is done by a form of the page of a key.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	if err := h.origins.Check(r); err != nil {
		_, a, _, _ := h.action(r, Verb(name)) // as far as the form tells
		h.audit(r, a, "", err)
		h.refuse(w, r, http.StatusForbidden, "Another site has caused this request, or a proxy hides the address of this one: it is refused.")
		return
	}
	if h.sampler.ctx.Err() != nil {
		h.failed(w, r, errClosed)
		return
	}
	t, a, token, err := h.action(r, Verb(name))
	who := ""
	if err == nil {
		who, err = h.allow(r, a)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		if a.Verb.ofJob() {
			err = h.control(ctx, a, token, who)
		} else {
			err = h.do(ctx, t, a, token, r.PostFormValue("reason"))
		}
	}
	h.audit(r, a, who, err)
	var refused refusal
	switch {
	case err == nil:
		h.room.Forget()
		// Relative, since http.Redirect would lose what http.StripPrefix has taken off.
		w.Header().Set("Location", t.href()+"&"+url.Values{"done": {name}}.Encode())
		w.WriteHeader(http.StatusSeeOther)
	case errors.As(err, &refused):
		h.refuse(w, r, refused.code, refused.why)
	case errors.Is(err, txlock.ErrNotHeld):
		h.refuse(w, r, http.StatusConflict, "It is no longer held: nothing was done.")
	case errors.Is(err, txlock.ErrInvalidOption), errors.Is(err, txlock.ErrInvalidKey):
		h.refuse(w, r, http.StatusBadRequest, printable(err.Error()))
	default:
		h.refuse(w, r, http.StatusBadGateway, "It was not done, or only in part: the log of the program says why.") // the error may have a key that is masked
	}
}

// action reads a form.
func (h *Handler) action(r *http.Request, verb Verb) (t target, a Action, token uint64, err error) {
	a.Verb = verb
	var errs [4]error
	a.Lease, errs[0] = strconv.ParseBool(r.PostFormValue("lease"))
	a.Slot, errs[1] = strconv.ParseInt(r.PostFormValue("slot"), 10, 64)
	a.Session, errs[2] = strconv.ParseUint(r.PostFormValue("session"), 10, 64)
	token, errs[3] = strconv.ParseUint(r.PostFormValue("token"), 10, 64)
	var last content
	if s := h.sampler.last(); s != nil {
		last = s.content
	}
	t, ok := h.targetOf(last, r.FormValue("key"), r.PostFormValue("slot"))
	a.Key = t.key
	if err := errors.Join(errs[:]...); err != nil || !ok {
		return t, a, token, refusal{http.StatusBadRequest, "The form is incomplete: use that of the page of the key."}
	}
	if verb.ofJob() { // which has nothing else
		a = Action{Verb: verb, Key: t.key}
	}
	if t.key == "" && (!t.bySlot || verb.ofJob()) {
		return t, a, token, refusal{http.StatusConflict, "Several keys are shown by this text: it can't be done here."}
	}
	return t, a, token, nil
}

func (h *Handler) allow(r *http.Request, a Action) (string, error) {
	if h.authorize == nil {
		return "", refusal{http.StatusForbidden, "This page is read-only."}
	}
	who, err := h.authorize(r, a)
	if err != nil {
		return who, errors.Join(refusal{http.StatusForbidden, "You are not allowed to do this."}, err)
	}
	return who, nil
}

var errChanged = refusal{http.StatusConflict, "Who held it holds it no more: nothing was done."}

// do does it, if it is still held as the viewer has seen it.
func (h *Handler) do(ctx context.Context, t target, a Action, token uint64, reason string) error {
	if !a.Lease {
		return h.end(ctx, t, a, token)
	}
	key := txlock.ParseKey(t.key)
	m, err := h.manager()
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(context.WithoutCancel(ctx)) }()
	if a.Verb == Ask {
		return m.RequestRelease(ctx, key, strings.TrimSpace(reason))
	}
	_, err = lease.Internal(bridge.Pass{}).ForceRelease(ctx, m, key, map[int64]uint64{a.Slot: token})
	if errors.Is(err, txlock.ErrNotHeld) {
		return errChanged
	}
	return err
}

// manager makes a manager of leases that does nothing by itself.
func (h *Handler) manager() (*lease.Manager, error) {
	return lease.NewManager(h.db, lease.PurgeEvery(0, 7*24*time.Hour))
}

// end ends the session that holds the lock.
func (h *Handler) end(ctx context.Context, t target, a Action, token uint64) error {
	ended, err := h.room.End(ctx, func(l ops.Lock) bool {
		again, may := releaseOf(l, t)
		named := l.Kind == ops.Named && l.Key == t.key
		return may && again == a && l.Token == token && (named || l.Kind == ops.Hashed && l.Slot == t.slot)
	})
	var denied *ops.DeniedError
	switch {
	case errors.As(err, &denied):
		return errors.Join(refusal{http.StatusBadGateway, "The account of this page may not end the session: " + denied.Grant + "."}, err)
	case errors.Is(err, ops.ErrDetached):
		return errors.Join(refusal{http.StatusConflict, "The session is ended, and a prepared transaction still holds the lock: " + ops.EndDetached + "."}, err)
	case errors.Is(err, ops.ErrUnknown) && len(ended) == 0:
		return errors.Join(refusal{http.StatusConflict, "Nothing was done: " + ops.ErrUnknown.Error() + "."}, err)
	case errors.Is(err, ops.ErrUnknown):
		return errors.Join(refusal{http.StatusConflict, "The session is ended, but " + ops.ErrUnknown.Error() + "."}, err)
	case err == nil && len(ended) == 0:
		return errChanged
	}
	return err
}

// audit writes who has done what, or has tried to.
func (h *Handler) audit(r *http.Request, a Action, who string, err error) {
	level, what := slog.LevelInfo, "lockhttp: "+string(a.Verb)
	attributes := []slog.Attr{
		slog.String("who", who), slog.String("remote", r.RemoteAddr), slog.String("key", a.Key), slog.Bool("lease", a.Lease),
		slog.Int64("slot", a.Slot), slog.Uint64("session", a.Session),
	}
	if err != nil {
		level, what = slog.LevelWarn, what+" was not done"
		attributes = append(attributes, slog.Any("error", err))
	}
	h.log.LogAttrs(r.Context(), level, what, attributes...)
}

// message says what was done before the viewer was led back.
func (c *call) message() string {
	switch Verb(c.param("done")) {
	case Release:
		return "Released."
	case Ask:
		return "Asked."
	case Pause:
		return "Paused."
	case Resume:
		return "Resumed."
	case RunNow:
		return "Requested: a process begins the run within 10 seconds."
	}
	return ""
}

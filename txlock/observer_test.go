package txlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
)

// TestSlogObserver proves what SlogObserver says of its log: one line for an event, a
// loss as a warning and all else as debug, with the attributes that the event has.
func TestSlogObserver(t *testing.T) {
	t.Parallel()
	key := txlock.Named("order:42")
	for name, test := range map[string]struct {
		kind txlock.Kind
		e    txlock.Event
		want string
	}{
		"granted lease": {
			txlock.Granted, txlock.Event{Lease: true, Key: key, Token: 7, Owner: "web-3", Took: 1500 * time.Microsecond},
			`level=DEBUG msg="lease granted" key=order:42 took=1.5ms token=7 owner=web-3`,
		},
		"granted lock, shared": {
			txlock.Granted, txlock.Event{Key: key, Shared: true, Took: time.Second},
			`level=DEBUG msg="lock granted" key=order:42 took=1s shared=true`,
		},
		"refused": {
			txlock.Refused, txlock.Event{Lease: true, Key: key, Owner: "web-3", Took: time.Second, Err: txlock.ErrBusy},
			`level=DEBUG msg="lease refused" key=order:42 took=1s owner=web-3 error="txlock: lock not available"`,
		},
		"waited": {
			txlock.Waited, txlock.Event{Lease: true, Key: key, Took: time.Minute},
			`level=DEBUG msg="lease waited" key=order:42 took=1m0s`,
		},
		"waited for somebody": {
			txlock.Granted, txlock.Event{Key: key, Took: time.Minute, Held: &txlock.HeldError{
				Key: key, Owner: "web-4", Label: "a b", Session: 7, Since: time.Date(2026, 5, 4, 3, 2, 1, 0, time.FixedZone("", 3600)),
			}},
			`level=DEBUG msg="lock granted" key=order:42 took=1m0s holder.owner=web-4 holder.label="a b" holder.session=7 holder.since=2026-05-04T02:02:01.000Z`,
		},
		"waited for a session": {
			txlock.Refused, txlock.Event{Lease: true, Key: key, Held: &txlock.HeldError{Key: key, Session: 7}, Err: txlock.ErrBusy},
			`level=DEBUG msg="lease refused" key=order:42 holder.session=7 error="txlock: lock not available"`,
		},
		"renewed": {
			txlock.Renewed, txlock.Event{Lease: true, Key: key, Token: 7, Took: 20 * time.Second},
			`level=DEBUG msg="lease renewed" key=order:42 took=20s token=7`,
		},
		"lost": {
			txlock.Lost, txlock.Event{Lease: true, Key: key, Token: 7, Took: time.Hour, Err: errors.New("late")},
			`level=WARN msg="lease lost" key=order:42 took=1h0m0s token=7 error=late`,
		},
		"lost lock": {
			txlock.Lost, txlock.Event{Key: key, Took: time.Hour, Err: errors.New("late")},
			`level=WARN msg="lock lost" key=order:42 took=1h0m0s error=late`,
		},
		"released": {
			txlock.Released, txlock.Event{Lease: true, Key: key, Token: 7, Took: time.Hour},
			`level=DEBUG msg="lease released" key=order:42 took=1h0m0s token=7`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, least := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelError} {
				var out bytes.Buffer
				test.e.Kind = test.kind
				txlock.SlogObserver(newLog(&out, least))(t.Context(), test.e)
				want := test.want + "\n"
				if least > slog.LevelDebug && strings.Contains(want, "DEBUG") || least > slog.LevelWarn {
					want = ""
				}
				if out.String() != want {
					t.Errorf("from %v on it writes\n%swant\n%s", least, out.String(), want)
				}
			}
		})
	}
}

// TestSlogOptions proves that what is slow is a warning, and that both levels can be set.
func TestSlogOptions(t *testing.T) {
	t.Parallel()
	key, slow := txlock.Named("order:42"), txlock.SlogThreshold(time.Second)
	levels := txlock.SlogLevels(slog.LevelError, slog.LevelInfo)
	e := txlock.Event{Lease: true, Key: key, Took: time.Second}
	fast := txlock.Event{Lease: true, Key: key, Took: time.Second - 1}
	for name, test := range map[string]struct {
		options []txlock.SlogOption
		kind    txlock.Kind
		e       txlock.Event
		want    string
	}{
		"slow grant":       {[]txlock.SlogOption{slow}, txlock.Granted, e, `level=WARN msg="lease granted" key=order:42 took=1s`},
		"slow refusal":     {[]txlock.SlogOption{slow}, txlock.Refused, e, `level=WARN msg="lease refused" key=order:42 took=1s`},
		"slow wait":        {[]txlock.SlogOption{slow}, txlock.Waited, e, `level=WARN msg="lease waited" key=order:42 took=1s`},
		"slow hold":        {[]txlock.SlogOption{slow}, txlock.Released, e, `level=WARN msg="lease released" key=order:42 took=1s`},
		"no hold":          {[]txlock.SlogOption{slow}, txlock.Renewed, e, `level=DEBUG msg="lease renewed" key=order:42 took=1s`},
		"a fast one":       {[]txlock.SlogOption{slow}, txlock.Granted, fast, `level=DEBUG msg="lease granted" key=order:42 took=999.999999ms`},
		"no threshold":     {[]txlock.SlogOption{txlock.SlogThreshold(0)}, txlock.Granted, e, `level=DEBUG msg="lease granted" key=order:42 took=1s`},
		"levels":           {[]txlock.SlogOption{levels}, txlock.Granted, e, `level=INFO msg="lease granted" key=order:42 took=1s`},
		"levels of a loss": {[]txlock.SlogOption{levels}, txlock.Lost, e, `level=ERROR msg="lease lost" key=order:42 took=1s`},
		"both":             {[]txlock.SlogOption{levels, slow}, txlock.Granted, e, `level=ERROR msg="lease granted" key=order:42 took=1s`},
		"a call":           {nil, txlock.Requested, e, ""},
		"a repeat":         {nil, txlock.Granted, txlock.Event{Once: true, Again: true, Key: key}, `level=DEBUG msg="once granted" key=order:42 again=true`},
		"a doomed one":     {nil, txlock.Doomed, txlock.Event{Key: key, Err: errors.New("killed")}, `level=DEBUG msg="transaction doomed" key=order:42 error=killed`},
		"a try":            {nil, txlock.Retried, txlock.Event{Key: key, Err: errors.New("killed")}, `level=DEBUG msg="transaction retried" key=order:42 error=killed`},
	} {
		var out bytes.Buffer
		test.e.Kind = test.kind
		txlock.SlogObserver(newLog(&out, slog.LevelDebug), test.options...)(t.Context(), test.e)
		if got := strings.TrimSuffix(out.String(), "\n"); got != test.want {
			t.Errorf("%s: %s\nwant %s", name, got, test.want)
		}
	}
}

// TestMultiObserver proves that all observers are told of everything, in their order, even
// if one of them panics, which goes on as that of a single one.
func TestMultiObserver(t *testing.T) {
	t.Parallel()
	if o := txlock.MultiObserver(nil, nil); o != nil {
		t.Error("there is an observer of none")
	}
	one := new(recorder)
	var out bytes.Buffer
	ctx, e := t.Context(), txlock.Event{Key: txlock.Named("a"), Took: time.Second, Err: txlock.ErrTxDoomed}
	all := txlock.MultiObserver(txlock.SlogObserver(newLog(&out, slog.LevelDebug)), nil, one.observe, one.observe)
	kinds := []txlock.Kind{txlock.Granted, txlock.Refused, txlock.Waited, txlock.Renewed, txlock.Lost, txlock.Released, txlock.Dropped, txlock.Doomed, txlock.Retried}
	for _, kind := range kinds {
		out.Reset()
		one.events, one.odd = nil, nil
		e.Kind = txlock.Requested
		all(ctx, e)
		e.Kind = kind
		all(ctx, e)
		if want := []string{string(kind) + " a", string(kind) + " a"}; !slices.Equal(one.events, want) || !strings.Contains(out.String(), string(kind)) {
			t.Errorf("%s: told %q, written %q", kind, one.events, out.String())
		}
	}
	if one.asked != 2*len(kinds)-4 { // less two that were granted and two that were refused
		t.Errorf("asked %d times", one.asked)
	}
	all = txlock.MultiObserver(func(context.Context, txlock.Event) { panic("the observer") }, one.observe)
	one.events = nil
	func() {
		defer func() {
			if said := recover(); said != "the observer" {
				t.Errorf("recovered %v", said)
			}
		}()
		e.Kind = txlock.Granted
		all(ctx, e)
	}()
	if !slices.Equal(one.events, []string{"granted a"}) {
		t.Errorf("after a panic: %q", one.events)
	}
}

// newLog is a log from a level on, without the time.
func newLog(out *bytes.Buffer, least slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: least, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// TestSlogObserverHandsOnContext proves that a handler gets the context of the call,
// in which logs find the request that an event belongs to.
func TestSlogObserverHandsOnContext(t *testing.T) {
	t.Parallel()
	type request struct{}
	h := &contextHandler{}
	o := txlock.SlogObserver(slog.New(h))
	ctx := context.WithValue(t.Context(), request{}, "r-17")
	for _, kind := range []txlock.Kind{txlock.Granted, txlock.Refused, txlock.Waited, txlock.Renewed, txlock.Lost, txlock.Released, txlock.Dropped, txlock.Doomed, txlock.Retried} {
		h.enabled, h.handled = nil, nil
		o(ctx, txlock.Event{Kind: kind, Key: txlock.Named("a")})
		if h.enabled == nil || h.handled == nil || h.enabled.Value(request{}) != "r-17" || h.handled.Value(request{}) != "r-17" {
			t.Errorf("the handler was asked under %v and called under %v", h.enabled, h.handled)
		}
	}
}

// contextHandler notes the contexts that it is called under.
type contextHandler struct{ enabled, handled context.Context }

func (h *contextHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	h.enabled = ctx
	return true
}

func (h *contextHandler) Handle(ctx context.Context, _ slog.Record) error {
	h.handled = ctx
	return nil
}

func (h *contextHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *contextHandler) WithGroup(string) slog.Handler      { return h }

package lockhttp

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Recorder is an observer that keeps what a page shows of this process: the rates of the
// last hour, and the last events. Give it to the pools by [txlock.Observe] and to managers
// by [lease.Observe], and to the page by [Events]. One Recorder serves any number of them.
//
// It keeps the last 500 losses, refusals, dropped handles and doomed transactions, and the
// last 500 of the other events, so that many grants don't hide a loss. It sends nothing to a
// server.
type Recorder struct {
	now func() time.Time

	mu     sync.Mutex
	hour   hour[ownSample]
	grave  ring
	common ring
}

var _ txlock.Observer = (*Recorder)(nil)

// NewRecorder returns a Recorder that has seen nothing yet.
func NewRecorder() *Recorder { return &Recorder{now: time.Now} }

// ownSample is what this process has done in a part of the last hour.
type ownSample struct {
	granted, refused, lost int
	took, longest          time.Duration // until grants
}

// happening is an event of the timeline.
type happening struct {
	At    time.Time   `json:"at"`   // by the clock of this machine
	What  string      `json:"what"` // granted, waited, refused, lost, released, dropped, doomed, retried; of looks: held, ended
	From  string      `json:"from"` // process: this one's observer; server: a look at it
	Kind  string      `json:"kind"` // of the row
	Key   string      `json:"key,omitempty"`
	Slot  int64       `json:"slot"` // of a hashed key, or which row of a lease
	Owner string      `json:"owner,omitempty"`
	Token uint64      `json:"token,omitempty"`
	Took  ops.Seconds `json:"took_s"`
	Why   string      `json:"why,omitempty"` // which error it was
}

// ring keeps the last events.
type ring struct {
	all  [500]happening
	next int
	full bool
}

func (r *ring) add(e happening) {
	r.all[r.next] = e
	r.next = (r.next + 1) % len(r.all)
	r.full = r.full || r.next == 0
}

// list returns the events, the last ones first.
func (r *ring) list() []happening {
	n := r.next
	if r.full {
		n = len(r.all)
	}
	list := make([]happening, n)
	for i := range list {
		list[i] = r.all[(r.next-1-i+len(r.all))%len(r.all)]
	}
	return list
}

// Asked does nothing: what follows it is the news.
func (r *Recorder) Asked(context.Context, txlock.Event) {}

// Granted counts a grant and notes it.
func (r *Recorder) Granted(_ context.Context, e txlock.Event) {
	r.note("granted", e, &r.common, func(s *ownSample) {
		s.granted, s.took, s.longest = s.granted+1, s.took+e.Took, max(s.longest, e.Took)
	})
}

// Refused counts a refusal and notes it.
func (r *Recorder) Refused(_ context.Context, e txlock.Event) {
	r.note("refused", e, &r.grave, func(s *ownSample) { s.refused++ })
}

// Waited notes the end of a wait.
func (r *Recorder) Waited(_ context.Context, e txlock.Event) { r.note("waited", e, &r.common, nil) }

// Renewed does nothing: a renewal is no news.
func (r *Recorder) Renewed(context.Context, txlock.Event) {}

// Lost counts a loss and notes it.
func (r *Recorder) Lost(_ context.Context, e txlock.Event) {
	r.note("lost", e, &r.grave, func(s *ownSample) { s.lost++ })
}

// Released notes a release.
func (r *Recorder) Released(_ context.Context, e txlock.Event) {
	r.note("released", e, &r.common, nil)
}

// Dropped notes a handle that was not released.
func (r *Recorder) Dropped(_ context.Context, e txlock.Event) { r.note("dropped", e, &r.grave, nil) }

// Doomed notes a transaction that was over before its end.
func (r *Recorder) Doomed(_ context.Context, e txlock.Event) { r.note("doomed", e, &r.grave, nil) }

// Retried notes a transaction that is run again.
func (r *Recorder) Retried(_ context.Context, e txlock.Event) {
	r.note("retried", e, &r.common, nil)
}

func (r *Recorder) note(what string, e txlock.Event, to *ring, count func(*ownSample)) {
	h := happening{At: r.now(), What: what, From: "process", Kind: "lock", Key: e.Key.String(), Owner: e.Owner, Token: e.Token, Took: ops.Seconds(e.Took.Seconds()), Why: reason(e.Err)}
	if e.Lease {
		h.Kind = "lease"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	to.add(h)
	if count != nil {
		count(r.hour.at(h.At))
	}
}

// events returns all that are kept, and the samples of the last hour.
func (r *Recorder) events(now time.Time) ([]happening, []point[ownSample]) {
	if r == nil {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(r.grave.list(), r.common.list()...), r.hour.points(now)
}

// sentinels are the errors that are told by their texts; others may hold keys and notes.
var sentinels = []error{
	txlock.ErrLost, txlock.ErrUnknownOutcome, txlock.ErrTxDoomed, txlock.ErrDeadlock, txlock.ErrStaleSnapshot, txlock.ErrConflict, txlock.ErrWaitTimeout, txlock.ErrBusy,
	txlock.ErrNotHeld, txlock.ErrTooManyHolds, txlock.ErrUpgrade, txlock.ErrNoTransaction, txlock.ErrOpenRows, txlock.ErrReadOnly,
	txlock.ErrPrivilege, txlock.ErrSchema, txlock.ErrUnguarded, txlock.ErrNoQuorum, txlock.ErrInvalidKey, txlock.ErrInvalidOption,
	txlock.ErrMismatch, txlock.ErrResult, lease.ErrGuarded, lease.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// reason returns the text of the sentinel that an error is.
func reason(err error) string {
	if err == nil {
		return ""
	}
	for _, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			text := sentinel.Error()
			if _, rest, prefixed := strings.Cut(text, ": "); prefixed { // by its package
				return rest
			}
			return text
		}
	}
	return "another error"
}

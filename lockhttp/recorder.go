package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// A Recorder is an observer that keeps what a page shows about this process: the rates of the last
// hour, and the last events. Pass it to the pools and managers with txlock.Observe(r.Observe) and
// lease.Observe(r.Observe), and to the page with [Events]. One Recorder serves any number of them.
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
	From  string      `json:"from"` // process: this one's observer; server: a query
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

// Observe counts the event of a lock or lease, and keeps it for the timeline.
func (r *Recorder) Observe(_ context.Context, e txlock.Event) {
	if e.Kind == txlock.Requested || e.Kind == txlock.Renewed { // no news
		return
	}
	h := happening{At: r.now(), What: string(e.Kind), From: "process", Kind: "lock", Key: e.Key.String(), Owner: cmp.Or(e.Owner, e.Label), Token: e.Token, Took: ops.Seconds(e.Took.Seconds()), Why: reason(e.Err)}
	if e.Lease {
		h.Kind = "lease"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch now := r.hour.at(h.At); e.Kind {
	case txlock.Granted:
		now.granted, now.took, now.longest = now.granted+1, now.took+e.Took, max(now.longest, e.Took)
	case txlock.Refused:
		now.refused++
	case txlock.Lost:
		now.lost++
	}
	switch e.Kind {
	case txlock.Refused, txlock.Lost, txlock.Dropped, txlock.Doomed:
		r.grave.add(h)
	default:
		r.common.add(h)
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
	txlock.ErrLost, txlock.ErrUnknownOutcome, txlock.ErrTxDoomed, txlock.ErrDeadlock, txlock.ErrStaleSnapshot, txlock.ErrConflict, txlock.ErrRows, txlock.ErrWaitTimeout, txlock.ErrBusy,
	txlock.ErrNotHeld, txlock.ErrTooManyHolds, txlock.ErrUpgrade, txlock.ErrNoTransaction, txlock.ErrOpenRows, txlock.ErrReadOnly,
	txlock.ErrPrivilege, txlock.ErrSchema, txlock.ErrUnguarded, txlock.ErrNoQuorum, txlock.ErrInvalidKey, txlock.ErrInvalidOption,
	txlock.ErrMismatch, txlock.ErrResult, lease.ErrGuarded, lease.ErrReplaced, lease.ErrOtherDatabase, lease.ErrNoConnection, lease.ErrClosed, context.Canceled, context.DeadlineExceeded,
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

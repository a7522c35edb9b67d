package txlock

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
)

// An Observer is called with the events of locks and leases, for metrics and logs. It is called
// synchronously, from any goroutine: it must return at once, must not acquire or release locks, and
// should ignore unknown kinds of events. A panic continues in the call, or ends the program: in the
// background, at the end of a transaction, and in the statement of LockWith, since it would leave
// database/sql in the middle of those.
type Observer func(ctx context.Context, e Event)

// A Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	// Requested comes before Granted or Refused, once for each of them. Until then the
	// call waits, or its statements are being executed.
	Requested Kind = "requested"
	// Granted: a lock or lease was acquired. Took is how long that took, including the wait.
	Granted Kind = "granted"
	// Refused: a lock or lease was not acquired. Err says why, and has the *HeldError if
	// that names the holder. Took is how long that took.
	Refused Kind = "refused"
	// Waited: a wait in a queue of this process, or by polling, has ended. Granted or Refused
	// follows. A wait inside the server, such as that of a transaction lock, is a part of
	// Took there.
	Waited Kind = "waited"
	// Renewed: a lease was renewed. Took is what was left of it.
	Renewed Kind = "renewed"
	// Lost: a lease was lost, or the locks of a transaction that the server has ended. Err
	// says why. Took is how long it was held.
	Lost Kind = "lost"
	// Released: a lease was released, or the transaction of a lock has ended. Took is how long it
	// was held. A lost lease has both: its Lost, and at the first Release after that a Released whose
	// Err matches ErrLost.
	Released Kind = "released"
	// Dropped: a handle of a lease was garbage collected and had not been released, which is a
	// bug of the program. Took is how long the lease was held. If it was the last handle, the
	// lease is no longer renewed, and Lost follows when it has expired.
	Dropped Kind = "dropped"
	// Doomed: a transaction of a guarded pool had ended before its Commit or Rollback: once,
	// and after the Lost of its locks. Err says why, such as ErrDeadlock. Also a COMMIT that was
	// not answered, with ErrUnknownOutcome. Key is the last one that was requested.
	Doomed Kind = "doomed"
	// Retried comes before Run, Transaction or the like retries a transaction. Err says why. Key
	// is the first one that was given to the call, if any was.
	Retried Kind = "retried"
)

// MultiObserver returns an observer that calls each of the given ones, in order. It skips those
// that are nil. If one panics the others are still called, and the panic continues.
func MultiObserver(all ...Observer) Observer {
	all = slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return o == nil })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return func(ctx context.Context, e Event) {
		for _, observe := range slices.Backward(all) { // so that each is called despite a panic
			defer observe(ctx, e)
		}
	}
}

// An Event describes what an Observer is called with.
type Event struct {
	Kind   Kind
	Lease  bool // a lease, or else a lock of a transaction
	Once   bool // a key of Once, which has no Released and no Lost
	Plain  bool // a lock on an unguarded pool, whose Released and Lost can't be seen
	Key    Key
	Token  uint64 // 0 where none was given
	Owner  string // of a lease; see lease.WithOwner
	Label  string // of a lock; see WithLabel
	Shared bool
	Again  bool // of Granted: the owner held it before, and it is released once; of Once: it was done before
	Fair   bool // of Waited: in the queue of all processes
	Took   time.Duration
	Err    error
	// Held is the holder, if it was seen during the wait that Granted, Refused or Waited
	// report: see SlowWait and lease.SlowWait. Err of Refused may name the holder at its end.
	Held *HeldError
}

// Observe sets the observer of transaction locks: as an option of locksqlc.Open, locksqlc.Connector
// and lockgorm.Dialector for all transactions of the pool, and as one of Join on an unguarded pool
// for one scope, whose end it doesn't see. The default is none. For leases use lease.Observe.
func Observe(observer Observer) Option {
	return observing{observer}
}

type observing struct{ observer Observer }

func (o observing) toPool(p *pooled) { p.watch = o.observer }

func (o observing) toJoin(s *state) { s.watch = o.observer }

// event is what the observer is told of a key that is asked for.
func (s *state) event(ctx context.Context, kind Kind, key Key) Event {
	return Event{Kind: kind, Key: key.unmarked(), Shared: key.shared, Plain: s.txState == nil, Label: string(ownerOf(ctx))}
}

// asked is when keys were asked for, where somebody watches, and who was seen to hold them.
type asked struct {
	at   time.Time
	held []*HeldError
}

// of returns who was seen to hold a key.
func (a asked) of(key Key) *HeldError {
	for _, held := range a.held {
		if held.Key == key.unmarked() {
			return held
		}
	}
	return nil
}

// asked tells the observer of keys that are asked for, and returns when.
func (s *state) asked(ctx context.Context, once bool, keys ...Key) (a asked) {
	if s.watch == nil {
		return a
	}
	a.at = time.Now()
	for _, key := range keys {
		s.mu.Lock()
		s.last = key.unmarked()
		s.mu.Unlock()
		e := s.event(ctx, Requested, key)
		e.Once = once
		s.watch(ctx, e)
	}
	return a
}

// granted tells the observer of a lock that was given.
func (s *state) granted(ctx context.Context, h hold, again bool, asked asked) {
	if s.watch == nil {
		return
	}
	g, e := h.grant, s.event(ctx, Granted, h.grant.key)
	e.Token, e.Shared, e.Again, e.Took, e.Held = g.token, g.shared, again, h.since.Sub(asked.at), asked.of(g.key)
	s.watch(ctx, e)
}

// apart calls what tells the observer in a goroutine of its own, and waits for it: database/sql is in
// the middle of something, and would stay there if the observer panicked.
func apart(tell func()) {
	told := make(chan struct{})
	go func() {
		defer close(told)
		tell()
	}()
	<-told
}

// refused tells the observer of keys that were asked for in vain, and returns the error.
func (s *state) refused(ctx context.Context, asked asked, err error, keys ...Key) error {
	if s.watch == nil {
		return err
	}
	for _, key := range keys {
		e := s.event(ctx, Refused, key)
		e.Took, e.Err, e.Held = time.Since(asked.at), err, asked.of(key)
		s.watch(ctx, e)
	}
	return err
}

// answered tells the observer of the answer to a call of Once.
func (s *state) answered(ctx context.Context, key Key, first bool, asked time.Time, err error) {
	if s.watch == nil {
		return
	}
	e := s.event(ctx, Granted, key)
	e.Once, e.Again, e.Took, e.Err = true, err == nil && !first, time.Since(asked), err
	if err != nil {
		e.Kind = Refused
	}
	s.watch(ctx, e)
}

// Retried reports to the observer of a scope, which may be nil, that a transaction of these keys
// is retried.
func (internals) Retried(ctx context.Context, s *Scope, keys []Key, err error) {
	if s == nil || s.watch == nil {
		return
	}
	e := Event{Kind: Retried, Plain: s.txState == nil, Label: string(ownerOf(ctx)), Err: fault.Of("retry", err, s.server)}
	if len(keys) > 0 {
		e.Key, e.Shared = keys[0].unmarked(), keys[0].shared
	}
	s.watch(ctx, e)
}

// ended notes the end of a transaction, and tells the observer: its locks are released, or were
// lost before.
func (s *state) ended(why error) {
	s.mu.Lock()
	s.gone, s.why = true, why
	held := slices.Collect(maps.Values(s.held))
	s.mu.Unlock()
	s.tellEnd(why, held...)
	if why != nil {
		s.doomed(why)
	}
}

// tellEnd tells the observer of the end of locks.
func (s *state) tellEnd(why error, held ...hold) {
	for _, h := range held {
		e := Event{Kind: Released, Key: h.grant.key, Token: h.grant.token, Shared: h.grant.shared, Took: time.Since(h.since), Err: why}
		if why != nil {
			e.Kind = Lost
		}
		s.watch(context.Background(), e)
	}
}

// doomed tells the observer of a transaction that was over before its end, or whose COMMIT
// was not answered.
func (s *state) doomed(why error) {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	s.watch(context.Background(), Event{Kind: Doomed, Key: last, Err: why})
}

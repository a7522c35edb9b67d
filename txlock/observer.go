package txlock

import (
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
)

// Observer is told what becomes of locks and leases, for metrics and logs. Its
// methods are called in line, from any goroutine: they must return at once and must
// not take or release locks.
type Observer interface {
	// Asked comes before Granted or Refused, once for each of them. Until then the call
	// waits, or its statements are under way.
	Asked(ctx context.Context, e Event)
	// Granted follows a lock or lease that was given; Took is how long that
	// took, the wait included.
	Granted(ctx context.Context, e Event)
	// Refused follows one that was asked for in vain: Err says why, and has the *HeldError
	// if that names who holds it; Took is how long that took.
	Refused(ctx context.Context, e Event)
	// Waited follows a wait in a queue of this process or by looking again, after
	// which comes Granted or Refused. A wait inside the server, as that of a
	// transaction lock, is a part of Took there.
	Waited(ctx context.Context, e Event)
	// Renewed follows the renewal of a lease. Took is what was left of it.
	Renewed(ctx context.Context, e Event)
	// Lost follows the loss of a lease, or of the locks of a transaction that
	// the server has ended: Err says why, and Took how long it was held.
	Lost(ctx context.Context, e Event)
	// Released follows a release, or the end of the transaction; Took is how
	// long it was held.
	Released(ctx context.Context, e Event)
	// Dropped follows a handle of a lease that is garbage and was not released: a mistake
	// of the program. Took is how long the lease was held. If it was the last handle, the
	// lease isn't renewed any more, and Lost follows when its time is over.
	Dropped(ctx context.Context, e Event)
	// Doomed follows the end of a transaction of a guarded pool that was over before its
	// Commit or Rollback: once, and after the Lost of its locks. Err says why, such as
	// ErrDeadlock. It also follows a COMMIT that was not answered, with ErrUnknownOutcome.
	// Key is the one that it has asked for last.
	Doomed(ctx context.Context, e Event)
	// Retried comes before Run, Transaction or the like runs a transaction again. Err says
	// why. Key is the first one that was given to the call, if any was.
	Retried(ctx context.Context, e Event)
}

// MultiObserver returns an observer that tells all of these, in this order; one that is nil
// is left out. If one panics the others are told as well, and the panic goes on.
func MultiObserver(all ...Observer) Observer {
	all = slices.DeleteFunc(slices.Clone(all), func(o Observer) bool { return o == nil })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return observers(all)
}

type observers []Observer

func (all observers) Asked(ctx context.Context, e Event)    { all.tell(ctx, Observer.Asked, e) }
func (all observers) Granted(ctx context.Context, e Event)  { all.tell(ctx, Observer.Granted, e) }
func (all observers) Refused(ctx context.Context, e Event)  { all.tell(ctx, Observer.Refused, e) }
func (all observers) Waited(ctx context.Context, e Event)   { all.tell(ctx, Observer.Waited, e) }
func (all observers) Renewed(ctx context.Context, e Event)  { all.tell(ctx, Observer.Renewed, e) }
func (all observers) Lost(ctx context.Context, e Event)     { all.tell(ctx, Observer.Lost, e) }
func (all observers) Released(ctx context.Context, e Event) { all.tell(ctx, Observer.Released, e) }
func (all observers) Dropped(ctx context.Context, e Event)  { all.tell(ctx, Observer.Dropped, e) }
func (all observers) Doomed(ctx context.Context, e Event)   { all.tell(ctx, Observer.Doomed, e) }
func (all observers) Retried(ctx context.Context, e Event)  { all.tell(ctx, Observer.Retried, e) }

// tell defers the calls, the last one first, so that they are made despite a panic.
func (all observers) tell(ctx context.Context, what func(Observer, context.Context, Event), e Event) {
	for _, o := range slices.Backward(all) {
		defer what(o, ctx, e)
	}
}

// Event is what an Observer is told of.
type Event struct {
	Lease  bool // a lease, or else a lock of a transaction
	Once   bool // a key of Once, which has no Released and no Lost
	Plain  bool // a lock on a plain pool, whose Released and Lost nobody sees
	Key    Key
	Token  uint64 // 0 where none was given
	Owner  string
	Shared bool
	Again  bool // of Granted: the owner held it before, and it is released once; of Once: it was done before
	Fair   bool // of Waited: in the queue of all processes
	Took   time.Duration
	Err    error
	// Held is who was in the way, if that was seen during a wait that Granted, Refused or
	// Waited tells of: see SlowWait and lease.SlowWait. Err of Refused may name who is so at its
	// end.
	Held *HeldError
}

// Observe sets the observer of the locks that transactions take: as an option of
// locksqlc.Open, locksqlc.Connector and lockgorm.Dialector for all transactions of
// the pool, as one of Join on a plain pool for one scope, whose end it doesn't see.
// The default is none. The observer of leases is an option of their manager:
// lease.Observe.
func Observe(observer Observer) Option {
	return observing{observer}
}

type observing struct{ observer Observer }

func (o observing) toPool(p *pooled) { p.watch = o.observer }

func (o observing) toJoin(s *state) { s.watch = o.observer }

// event is what the observer is told of a key that is asked for.
func (s *state) event(ctx context.Context, key Key) Event {
	return Event{Key: key.unmarked(), Shared: key.shared, Plain: s.book == nil, Owner: string(ownerOf(ctx))}
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
		e := s.event(ctx, key)
		e.Once = once
		s.watch.Asked(ctx, e)
	}
	return a
}

// granted tells the observer of a lock that was given, and returns when.
func (s *state) granted(ctx context.Context, g Grant, again bool, asked asked) time.Time {
	if s.watch == nil {
		return time.Time{}
	}
	at := time.Now()
	e := s.event(ctx, g.key)
	e.Token, e.Shared, e.Again, e.Took, e.Held = g.token, g.shared, again, at.Sub(asked.at), asked.of(g.key)
	s.watch.Granted(ctx, e)
	return at
}

// refused tells the observer of keys that were asked for in vain, and returns the error.
func (s *state) refused(ctx context.Context, asked asked, err error, keys ...Key) error {
	if s.watch == nil {
		return err
	}
	for _, key := range keys {
		e := s.event(ctx, key)
		e.Took, e.Err, e.Held = time.Since(asked.at), err, asked.of(key)
		s.watch.Refused(ctx, e)
	}
	return err
}

// answered tells the observer of the answer to a call of Once.
func (s *state) answered(ctx context.Context, key Key, first bool, asked time.Time, err error) {
	if s.watch == nil {
		return
	}
	e := s.event(ctx, key)
	e.Once, e.Again, e.Took, e.Err = true, err == nil && !first, time.Since(asked), err
	if err != nil {
		s.watch.Refused(ctx, e)
		return
	}
	s.watch.Granted(ctx, e)
}

// retried is inside.Lock.Retried.
func retried(ctx context.Context, s *Scope, keys []Key, err error) {
	if s == nil || s.watch == nil {
		return
	}
	e := Event{Plain: s.book == nil, Owner: string(ownerOf(ctx)), Err: fault.Of("run again", err, s.server)}
	if len(keys) > 0 {
		e.Key, e.Shared = keys[0].unmarked(), keys[0].shared
	}
	s.watch.Retried(ctx, e)
}

// ended tells the observer of the end of a transaction: its locks are released, or
// were lost before.
func (s *state) ended(why error) {
	if s.watch == nil {
		return
	}
	s.mu.Lock()
	held := make([]hold, 0, len(s.held))
	for _, h := range s.held {
		held = append(held, h)
	}
	s.mu.Unlock()
	for _, h := range held {
		e := Event{Key: h.grant.key, Token: h.grant.token, Shared: h.grant.shared, Took: time.Since(h.since), Err: why}
		if why != nil {
			s.watch.Lost(context.Background(), e)
		} else {
			s.watch.Released(context.Background(), e)
		}
	}
	if why != nil {
		s.doomed(why)
	}
}

// doomed tells the observer of a transaction that was over before its end, or whose COMMIT
// was not answered.
func (s *state) doomed(why error) {
	if s.watch == nil {
		return
	}
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	s.watch.Doomed(context.Background(), Event{Key: last, Err: why})
}

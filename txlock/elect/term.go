package elect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// A Term is the time during which a process leads. Its methods may be called from any goroutine.
type Term struct {
	candidate *candidate
	lease     *lease.Lease
	began     time.Time
	telling   context.Context // of the observer
	working   context.Context // of the function
	cancel    context.CancelCauseFunc
	left      func() // tells the manager that the lease is released
	freeing   sync.Once
	freed     error         // what freeing has met
	over      chan struct{} // closed when the lease is released
	told      chan struct{} // closed when the observer was told of the end of working

	mu       sync.Mutex
	ending   bool        // the function's context has ended
	returned bool        // the function
	alive    time.Time   // when Alive was called last
	timer    *time.Timer // calls check
}

// Key returns the key of the election.
func (t *Term) Key() txlock.Key { return t.lease.Key() }

// Token returns the fencing token, which is higher than that of every earlier term.
func (t *Term) Token() uint64 { return t.lease.Token() }

// Err returns nil while this process certainly leads, including the grace period, and otherwise
// txlock.ErrLost or ErrNotHeld with the cause. It compares the clock at every call, as
// lease.Lease.Err does, so two processes never believe at the same time that they lead.
func (t *Term) Err() error { return t.lease.Err() }

// Guard makes the term a condition of a transaction: the transaction can be committed only while
// this process leads, including the grace period. Call it last in the transaction, and end the
// transaction soon, because the term is not renewed meanwhile: see lease.Lease.Guard. If the
// transaction is still open when the term has expired, the next leader rolls it back.
func (t *Term) Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error {
	return t.lease.Guard(ctx, tx, options...)
}

// Resign ends the context of the function, with ErrResigned as its cause, and returns at once.
// Another process may lead after the function has returned: see Election.Resign.
func (t *Term) Resign() { t.end(ErrResigned) }

// Alive resets the Watchdog: the function doesn't hang.
func (t *Term) Alive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alive = time.Now()
}

// errPanicked is what the observer is told of a function that doesn't return.
var errPanicked = errors.New("elect: the function has panicked, or ended its goroutine")

// lead calls the function under a lease, which is released when the function has
// returned, or its grace is over. It returns why the context of the function had ended,
// nil if it hadn't, and the error of the function.
func (c *candidate) lead(ctx context.Context, l *lease.Lease, fn Func) (why, err error) {
	now := time.Now()
	t := &Term{candidate: c, lease: l, began: now, alive: now, telling: context.WithoutCancel(ctx), over: make(chan struct{}), told: make(chan struct{})}
	held, stop := l.Context(ctx)
	defer stop()
	held, t.left, err = lease.Internal(bridge.Pass{}).Works(held, l)
	if err != nil {
		return nil, errors.Join(err, l.Release(ctx))
	}
	t.working, t.cancel = context.WithCancelCause(held)
	t.mu.Lock() // the timer may call check at once, and Resign end
	c.leads(t)
	t.timer = time.AfterFunc(t.untilNews(), t.check)
	t.mu.Unlock()
	goOn := context.AfterFunc(held, func() { t.end(context.Cause(held)) })
	err = errPanicked
	defer func() {
		goOn()
		why = t.finish(err)
	}()
	t.report(Elected, nil)
	err = fn(t.working, t)
	return nil, err
}

// untilNews returns when check is due: when only the grace is left unless the lease is
// renewed, or when the watchdog bites. The caller holds Term.mu.
func (t *Term) untilNews() time.Duration {
	d := t.lease.Remaining() - t.candidate.grace
	if t.candidate.watchdog > 0 {
		d = min(d, t.candidate.watchdog-time.Since(t.alive))
	}
	return d
}

// check ends the term if it was not renewed or the function hangs, and later, when the
// grace is over, releases the lease under the function. The timer calls it.
func (t *Term) check() {
	t.mu.Lock()
	left, lost := t.lease.Remaining(), t.lease.Err()
	hung := t.candidate.watchdog > 0 && time.Since(t.alive) >= t.candidate.watchdog
	ending, returned := t.ending, t.returned
	well := lost == nil && left > t.candidate.grace && !hung
	if well && !ending && !returned {
		t.timer.Reset(t.untilNews())
	}
	t.mu.Unlock()
	switch {
	case returned:
	case ending:
		go t.report(Overdue, context.Cause(t.working)) // what hangs the function may hang the observer
		t.free(true)
	case well:
	case lost != nil:
		t.end(lost)
	case left > t.candidate.grace:
		t.end(ErrHung)
	default:
		t.end(fmt.Errorf("%w: the term %d of %q was not renewed in time, %v are left", txlock.ErrLost, t.Token(), t.Key(), left))
	}
}

// end ends the context of the function, and begins the grace. The first reason stays.
func (t *Term) end(why error) {
	t.mu.Lock()
	if t.ending || t.returned {
		t.mu.Unlock()
		return
	}
	t.ending = true
	t.cancel(why)
	grace := t.candidate.grace
	if left := t.lease.Remaining(); left > 0 {
		grace = min(grace, left)
	}
	t.timer.Reset(grace)
	t.mu.Unlock()
	defer close(t.told)
	t.report(Ending, context.Cause(t.working))
}

// finish ends a term whose function has returned, and returns why it had to, or nil.
func (t *Term) finish(err error) (why error) {
	if why = context.Cause(t.working); why == nil {
		why = t.Err() // the timers may be late
	}
	t.leave(why)
	if why != nil {
		<-t.told
	}
	if errors.Is(t.freed, txlock.ErrNotHeld) && why == nil {
		why = t.freed // it was lost, and nobody knew yet
	}
	t.report(Ended, err)
	return why
}

// leave ends the context of a function that has returned, and releases the lease, even if
// the observer panics.
func (t *Term) leave(why error) {
	defer func() {
		t.mu.Lock()
		t.returned = true
		t.timer.Stop()
		t.mu.Unlock()
		t.cancel(nil)
		t.free(false)
	}()
	if why != nil {
		t.end(why)
	}
}

// free releases the lease. If the server can't be reached, its TTL does. A function that is
// overdue gives back the standby slot too: those who hang must not have all of them.
func (t *Term) free(overdue bool) {
	t.freeing.Do(func() {
		ctx, cancel := context.WithTimeout(t.telling, goodbye)
		defer cancel()
		t.freed = t.lease.Release(ctx)
		t.left()
		t.candidate.leads(nil)
		close(t.over)
		if overdue {
			t.candidate.releaseSlot(ctx)
		}
		if t.freed != nil && !errors.Is(t.freed, txlock.ErrNotHeld) && !errors.Is(t.freed, lease.ErrGuarded) {
			t.report(RunError, t.freed)
		}
	})
}

func (t *Term) report(kind Kind, err error) {
	t.candidate.tell(t.telling, Event{Kind: kind, Token: t.Token(), Took: time.Since(t.began), Err: err})
}

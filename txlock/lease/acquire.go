package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Acquire acquires the lease of a key, and waits until it is free. The waiters of one manager
// queue in the order of arrival; waiters in different processes poll (see Poll and Fair). If the
// lease is free, Acquire sends one statement, and three more for a key that was never leased, on
// MySQL five. An owner that already holds the lease re-enters it, with the same token; in the same
// manager that needs no statement. The owner is that of the context of Do or Lease.Context for
// this key, or the one that WithOwner sets. The TTL stays that of the first Acquire.
//
// A server that doesn't answer, for example because the network is frozen or a backup has a read
// lock, doesn't end the wait: Acquire retries until the lease is granted, WaitAtMost or the
// context ends the wait, or the manager is closed. A connection error ends it if the first attempt
// fails with it, or three in a row while Acquire waits.
//
// It may return txlock.ErrWaitTimeout (see WaitAtMost), ErrTooManyHolds, ErrInvalidKey,
// ErrInvalidOption, ErrSchema, ErrReadOnly, ErrClosed, and the errors of the driver and of the
// context. It returns as soon as the context ends. If it returns an error, the lease is not held:
// the server refuses statements that reach it after the context's deadline, by its own clock, and
// an earlier grant is released in the background when its reply arrives.
func (m *Manager) Acquire(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, "acquire", key, opts)
	if err != nil {
		return nil, err
	}
	return m.finish(ctx, q, m.wait)
}

// TryAcquire acquires the lease without waiting: if another owner holds it, it returns
// txlock.ErrBusy at once, even while a transaction guards the lease. It may also return ErrBusy
// for a lease that is being released at that moment. An owner that re-enters waits up to a quarter
// of a second if the row is locked. If the server doesn't answer within the time that the TTL
// leaves, or three seconds what must come before, such as a new row, TryAcquire returns
// txlock.ErrWaitTimeout, whose text names that cause, and a later grant is released.
func (m *Manager) TryAcquire(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, "try to acquire", key, opts)
	if err != nil {
		return nil, err
	}
	return m.finish(ctx, q, m.tryOnce)
}

// Do acquires the lease, calls fn and releases the lease, also if fn panics or the context has
// ended. The context of fn ends when the lease is lost, with txlock.ErrLost as its cause, and
// carries the lease: Do and Acquire of the same key under it re-enter the lease, and those of
// other keys exclude each other. locksqlc.Do does the same with the lock of a transaction, which
// ends with its connection.
//
// It returns the error of fn, joined with txlock.ErrLost if the lease was lost before fn returned,
// and the errors of Acquire and Release. If fn has guarded a transaction that is still open, the
// lease is released when that ends, without an error.
//
// When the manager is closed, the context of fn ends with ErrClosed as its cause. The lease is
// held until fn has returned, or the context of Close has ended.
func (m *Manager) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return m.do(ctx, fn, func() (*Lease, error) { return m.Acquire(ctx, key, opts...) })
}

// TryDo is Do without waiting: if another owner holds the lease, it returns txlock.ErrBusy at once
// and doesn't call fn. It acquires as TryAcquire does.
func (m *Manager) TryDo(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return m.do(ctx, fn, func() (*Lease, error) { return m.TryAcquire(ctx, key, opts...) })
}

// do acquires in the given way, calls fn and releases the lease.
func (m *Manager) do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, acquire func() (*Lease, error)) error {
	if fn == nil {
		return errors.New("lease: Do needs a function, got nil")
	}
	l, err := acquire()
	if err != nil {
		return err
	}
	var left func()
	defer func() {
		if left != nil {
			left()
		}
	}()
	return leaseutil.Do(ctx, l, ErrGuarded, func(ctx context.Context, l *Lease) (err error) {
		if ctx, left, err = m.works(ctx, l); err != nil {
			return err
		}
		return fn(ctx, l)
	})
}

// finish acquires in the given way, explains the error and tells the observer.
func (m *Manager) finish(ctx context.Context, q *request, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	e := txlock.Event{Kind: txlock.Requested, Lease: true, Key: q.key, Owner: q.owner, Shared: q.shared}
	m.observe(ctx, e)
	l, err := m.call(ctx, q, acquire)
	if err != nil {
		m.store.Settle(m.idle)
		err = fault.Explain(fmt.Sprintf("%s lease %q", q.verb, q.key), err)
	}
	e.Kind, e.Took, e.Err, e.Held = txlock.Refused, q.asked.Until(m.store.Now()), err, q.inTheWay()
	if err == nil {
		e.Kind, e.Token, e.Again = txlock.Granted, l.Token(), l.again
		if q.inside { // its record may have been made outside
			m.under(l)
		}
	}
	m.tell(ctx, l, e)
	if l != nil && q.atLeast > 0 {
		l.record.holdAtLeast(q.atLeast)
	}
	return l, err
}

// tell calls the observer before the caller has the lease, if there is one. If that panics, or
// ends its goroutine, the lease is released: nobody else could.
func (m *Manager) tell(ctx context.Context, l *Lease, e txlock.Event) {
	told := false
	defer func() {
		if !told && l != nil {
			_ = l.Release(ctx) // the panic goes on
		}
	}()
	if l != nil {
		l.record.reportGrant(ctx, e)
	} else {
		m.observe(ctx, e)
	}
	told = true
}

// call calls acquire, and names who has refused it. Close waits for it, and for what it
// leaves to the background.
func (m *Manager) call(ctx context.Context, q *request, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	if !m.tasks.Enter() {
		return nil, ErrClosed
	}
	defer m.tasks.Leave(true)
	l, err := acquire(ctx, q)
	return l, m.named(ctx, q, err)
}

// tryOnce tries once, without waiting, and ends a transaction that blocks a free lease
// for too long.
func (m *Manager) tryOnce(ctx context.Context, q *request) (*Lease, error) {
	ctx, end := m.untilClosed(ctx)
	defer end()
	l, _, err := m.try(ctx, q, q.fair, false)
	return l, unlessClosed(ctx, m.unblock(ctx, q, err))
}

// try takes what the request asks for if it is free. If not, it returns txlock.ErrBusy,
// and for how much longer it is held, if that is known. With inTurn it passes nobody in
// the queue of Fair; with drain it waits for readers.
func (m *Manager) try(ctx context.Context, q *request, inTurn, drain bool) (*Lease, time.Duration, error) {
	if l, err := m.local(q); l != nil || err != nil {
		return l, 0, err
	}
	if elsewhere, err := m.elsewhere(ctx, q); err != nil {
		return nil, 0, err
	} else if elsewhere {
		return m.try(ctx, q, inTurn, drain)
	}
	for p := (progress{attempt: attempt{inTurn: inTurn}}); ; {
		begun := m.store.Now()
		a, since, err := m.attempt(ctx, q, p.attempt)
		o := classify(a.Reply, err)
		m.heard(ctx, q, o, begun)
		var s step
		var seen store.Glance
		if s, p = p.next(o); s == stepLook {
			if a.Seen != nil {
				seen = *a.Seen
			} else if seen, err = m.look(ctx, q, m.store); err != nil {
				return nil, 0, err
			}
			q.seen.look(q, seen)
			s, p = p.nextOf(seen, q.wish())
		}
		switch s {
		case stepSend:
			err = nil
		case stepReadClock:
			err = m.between(ctx, q, m.store.ReadClock)
		case stepMakeRows:
			err = m.between(ctx, q, func(ctx context.Context) error {
				return m.making(ctx, func() error { return q.target.prepare(ctx, m.store, q) })
			})
		case stepMakeQueueRow:
			err = m.between(ctx, q, func(ctx context.Context) error { return m.ensureQueueRow(ctx, q.key) })
		case stepTake:
			return m.take(ctx, q, a, since, inTurn, drain)
		case stepBusy:
			return nil, seen.Left, q.busy()
		case stepLocked:
			return nil, 0, store.ErrLocked
		default:
			return nil, 0, q.failure(ctx, o, a, err)
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// look tells whether what the request asks for is free.
func (m *Manager) look(ctx context.Context, q *request, s store.Session) (store.Glance, error) {
	return answer(ctx, m, q, func(ctx context.Context) (store.Glance, error) { return q.target.look(ctx, s, q) })
}

// take makes the handle of what was granted, and waits for readers if there may be any.
func (m *Manager) take(ctx context.Context, q *request, a store.Answer, since instant, inTurn, drain bool) (*Lease, time.Duration, error) {
	begun := m.store.Now()
	if q.missed(a.Token) {
		m.granting.Add(-1)
		if err := m.miss(q, func() error { return m.undo(ctx, q, a.Slot) }); err != nil {
			return nil, 0, m.overdue(ctx, q, begun, err)
		}
		return m.try(ctx, q, inTurn, drain)
	}
	q.drains = a.Shared && q.under == nil // a holder has waited for them already
	l, err := m.granted(ctx, q, a, since)
	if err != nil || !q.drains {
		return l, 0, m.overdue(ctx, q, begun, err)
	}
	if err := m.reissue(q); err != nil { // for the next attempt
		return nil, 0, errors.Join(err, m.releaseUnwanted(ctx, l))
	}
	q.seen = sight{what: "readers had it"}
	draining, stop := m.limited(ctx, q)
	defer stop()
	l, left, err := m.drain(draining, q, l, drain)
	if err != nil && errors.Is(context.Cause(draining), errLimit) {
		err = errors.Join(errLimit, err)
	}
	return l, left, err
}

// wish returns the part of the request that decides the next step.
func (q *request) wish() wish {
	return wish{owner: q.owner, named: q.named, shared: q.shared, lease: q.target == target(exclusive{})}
}

// failure returns the error of an acquire that has ended with this outcome.
func (q *request) failure(ctx context.Context, o outcome, a store.Answer, err error) error {
	switch {
	case o == outRefused:
		return q.refusal(a)
	case o == outLate:
		return unanswered(q.seen.what)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case o == outOverdue:
		return unanswered(fmt.Sprintf("%s: %v", q.seen.what, err)) // it must not look like the caller's
	}
	return err
}

// refusal returns the error for a reply that is final.
func (q *request) refusal(a store.Answer) error {
	switch a.Reply {
	case store.Full:
		return fmt.Errorf("%w: owner %q", txlock.ErrTooManyHolds, q.owner)
	case store.Other:
		return fmt.Errorf("%w: %q is used for a semaphore: use another key", txlock.ErrInvalidKey, q.key)
	}
	if q.seen = (sight{what: "another owner held it"}); a.Seen != nil {
		q.seen.look(q, *a.Seen)
	}
	return q.busy()
}

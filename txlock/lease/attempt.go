package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// maxPatience is the longest time after its request in which a lease may still be
// granted.
const maxPatience = 10 * time.Second

// patience is how long after its request a lease with that TTL may be granted. Later, too
// little of the TTL would be left.
func patience(ttl time.Duration) time.Duration { return min(ttl*2/3, maxPatience) }

// unanswered is the error of an attempt that the server has not answered in time. It is a
// txlock.ErrWaitTimeout whose text doesn't claim that the lease was not free.
type unanswered string

func (e unanswered) Error() string { return string(e) }

// Unwrap returns the sentinel.
func (unanswered) Unwrap() error { return txlock.ErrWaitTimeout }

// attempt says how a statement is sent.
type attempt struct {
	inTurn bool          // it passes nobody in the queue of Fair
	queued time.Duration // how long it waits for the row's lock; 0: not at all
}

// attempt sends the statement that takes what the request asks for, and returns its
// reply. The statement is sent in the background and not under the caller's context,
// because the end of that could not undo it: if the context ends first, what the server
// grants later is released. If no reply comes, the server may still execute the statement
// until the statement's own deadline, and what it takes by then is released. A server that
// has not answered earlier attempts has as much time again for this one: a statement may
// leave a session on the server when it is given up.
func (m *Manager) attempt(ctx context.Context, q *request, how attempt) (a store.Answer, _ instant, err error) {
	m.granting.Add(1)
	defer func() {
		if err != nil || a.Reply != store.Done {
			m.granting.Add(-1)
			m.store.Settle(m.idle)
		}
	}()
	if err := m.prepare(ctx, q); err != nil {
		return store.Answer{}, 0, err
	}
	if err := ctx.Err(); err != nil {
		return store.Answer{}, 0, err
	}
	if err := q.needHold(); err != nil {
		return store.Answer{}, 0, err
	}
	since := m.store.Now()
	limit := patience(q.ttl)
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	until := since.Add(limit)
	stand := limit + patience(q.ttl)
	sending, cancel := context.WithTimeout(detached{m.undoing, ctx}, max(stand, q.silence(since)))
	sent := *q // the request itself may go on with another hold
	type outcome struct {
		store.Answer
		err error
	}
	outcomes := make(chan outcome, 1)
	var settled atomic.Bool // by the reply or by the end of the context
	if !m.tasks.Go(func() {
		defer cancel()
		a, err := m.send(sending, &sent, how, until)
		wanted := settled.CompareAndSwap(false, true)
		if wanted {
			outcomes <- outcome{a, err}
		}
		switch {
		case wanted && err == nil:
			return
		case fault.Unknown(err):
			m.releaseUntil(remains{key: sent.key, slot: a.Slot, hold: sent.hold}, until, until.Add(patience(sent.ttl)+sent.ttl))
		case wanted:
			return
		case err == nil && a.Reply == store.Done:
			m.releaseUntil(remains{key: sent.key, slot: a.Slot, hold: sent.hold}, m.store.Now(), since.Add(patience(sent.ttl)+sent.ttl))
		}
		if sent.shared {
			m.freeSlot(sent.key, a.Slot)
		}
	}) {
		cancel()
		return store.Answer{}, 0, ErrClosed
	}
	select {
	case o := <-outcomes:
		return o.Answer, since, m.after(q, o.err)
	case <-ctx.Done():
		time.AfterFunc(m.store.Now().Until(since.Add(stand)), cancel) // nobody needs the answer later
	}
	if settled.CompareAndSwap(false, true) {
		return store.Answer{}, 0, errors.Join(ctx.Err(), m.reissue(q))
	}
	o := <-outcomes
	return o.Answer, since, m.after(q, o.err)
}

// prepare makes sure that an attempt can be sent: the server's clock is known, a reader would
// exclude every writer, and there is a connection for renewals.
func (m *Manager) prepare(ctx context.Context, q *request) error {
	ctx, stop := m.asking(ctx, q)
	defer stop()
	if err := m.store.Ready(ctx); err != nil {
		return err
	}
	if q.shared {
		if err := m.sharesHere(ctx); err != nil {
			return err
		}
	}
	return m.store.Reserve(ctx)
}

// slowAnswer is how long a server may take for what is asked before and between attempts, however
// short the TTL is: a connection over a slow network takes many round trips to open, and MySQL refuses
// to make a row beside a locked one after two seconds.
const slowAnswer = 3 * time.Second

// asking returns a context that ends when the server has not answered for as long as an attempt
// may take, for as long as it was silent before, or for slowAnswer, whichever is longest.
func (m *Manager) asking(ctx context.Context, q *request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(patience(q.ttl), q.silence(m.store.Now()), slowAnswer))
}

// between asks the server for what a request must know or have between its attempts. If that
// doesn't answer, the error is as that of an attempt.
func (m *Manager) between(ctx context.Context, q *request, ask func(ctx context.Context) error) error {
	begun := m.store.Now()
	limited, stop := m.asking(ctx, q)
	defer stop()
	err := ask(limited)
	if limited.Err() == nil && errors.Is(err, txlock.ErrTxDoomed) {
		return err // the connection of a place in the queue was lost before, perhaps by a limit of ours
	}
	return m.overdue(ctx, q, begun, err)
}

// overdue returns the error of what was sent at a moment, as that of an attempt if a limit of our own
// has ended it.
func (m *Manager) overdue(ctx context.Context, q *request, begun instant, err error) error {
	if o := classify(store.Absent, err); o == outOverdue {
		m.heard(ctx, q, o, begun)
		err = q.failure(ctx, o, store.Answer{}, err)
	}
	return err
}

// answer is between for what the server is asked for.
func answer[T any](ctx context.Context, m *Manager, q *request, ask func(ctx context.Context) (T, error)) (a T, err error) {
	err = m.between(ctx, q, func(ctx context.Context) error {
		a, err = ask(ctx)
		return err
	})
	return a, err
}

// after gives the request a new hold if a statement was not answered: see reissue.
func (m *Manager) after(q *request, err error) error {
	if err != nil && fault.Unknown(err) {
		err = errors.Join(err, m.reissue(q))
	}
	return err
}

// detached is a context that ends with one context, and has the values of another, too.
type detached struct {
	context.Context
	values context.Context
}

// Value returns a value of either context.
func (d detached) Value(key any) any {
	if value := d.Context.Value(key); value != nil {
		return value
	}
	return d.values.Value(key)
}

// reissue gives a request a new hold, and a reader a new slot. What was asked for with
// the old one is released in the background, whenever it is granted.
func (m *Manager) reissue(q *request) error {
	if q.shared {
		q.target = reader{m.takeSlot(q.key)}
	}
	_, err := q.newHold()
	return err
}

// send asks the store, and waits for the row's lock first if that was decided.
func (m *Manager) send(ctx context.Context, q *request, how attempt, notAfter instant) (a store.Answer, err error) {
	ask := store.Ask{
		Row: leaseRow(q.key), Owner: q.owner, Label: q.label, Hold: q.hold, TTL: q.ttl, NotAfter: notAfter, Fair: q.fair, InTurn: how.inTurn,
	}
	q.target.ask(&ask)
	if how.queued == 0 {
		return m.store.Take(ctx, ask)
	}
	err = m.store.Queued(ctx, leaseRow(q.key), how.queued, func(s store.Session) (err error) {
		a, err = s.Take(ctx, ask)
		return err
	})
	if errors.Is(err, store.ErrLocked) {
		return store.Answer{}, nil
	}
	return a, err
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

// maxPatience bounds how long after its request a lease may still be granted.
const maxPatience = 10 * time.Second

// patience is how long after its request a lease of that TTL may be granted: not
// so late that little is left of it.
func patience(ttl time.Duration) time.Duration { return min(ttl*2/3, maxPatience) }

// errLate is what an attempt fails with that the server has seen too late, twice, or
// has not answered.
var errLate = errors.New("the server has answered too late")

// tryOnce is TryAcquire.
func (m *Manager) tryOnce(ctx context.Context, q *request) (*Lease, error) {
	l, _, err := m.try(ctx, q, q.fair, false)
	return l, m.unblock(ctx, q, err)
}

// try takes what is asked for if it is free. Where it isn't, it returns ErrBusy and
// for how much longer, as far as is known. To go in turn is to pass nobody at the
// turnstile; to drain is to wait for readers.
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
		a, since, err := m.attempt(ctx, q, p.attempt)
		o := classify(a.reply, err)
		var s step
		var seen glance
		if s, p = p.next(o); s == stepLook {
			if seen, err = q.target.look(ctx, m.db, q); err != nil {
				return nil, 0, err
			}
			q.seen.look(q, seen)
			s, p = p.nextOf(seen, q.wish())
		}
		switch s {
		case stepSend:
			err = nil
		case stepReadClock:
			err = m.clock.read(ctx, m.db)
		case stepMakeRows:
			p, err = m.makeRows(ctx, q, p)
		case stepMakeTurnstile:
			err = m.ensureTurnstile(ctx, q.key)
		case stepTake:
			return m.take(ctx, q, a, since, inTurn, drain)
		case stepBusy:
			return nil, seen.left, txlock.ErrBusy
		case stepLocked:
			return nil, 0, errLocked
		default:
			return nil, 0, q.failure(ctx, o, a.reply, err)
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// take makes the handle of what was granted, and waits for readers where there may be any.
func (m *Manager) take(ctx context.Context, q *request, a answer, since instant, inTurn, drain bool) (*Lease, time.Duration, error) {
	token := uint64(a.reply &^ sharedBit)
	if q.missed(token) {
		m.granting.Add(-1)
		if err := m.miss(q, func() error { return m.undo(ctx, q, a.slot) }); err != nil {
			return nil, 0, err
		}
		return m.try(ctx, q, inTurn, drain)
	}
	q.drains = a.reply&sharedBit != 0 && q.under == nil // who has it has waited for them
	l, err := m.granted(ctx, q, token, a.slot, since)
	if err != nil || !q.drains {
		return l, 0, err
	}
	if err := m.renew(q); err != nil { // for the next attempt
		return nil, 0, errors.Join(err, m.letGo(ctx, l))
	}
	q.seen = sight{what: "readers had it"}
	draining, stop := q.limited(ctx)
	defer stop()
	l, left, err := m.drain(draining, q, l, drain)
	if err != nil && errors.Is(context.Cause(draining), errLimit) {
		err = errors.Join(errLimit, err)
	}
	return l, left, err
}

// makeRows makes the rows that a look has missed.
func (m *Manager) makeRows(ctx context.Context, q *request, p progress) (progress, error) {
	err := q.target.prepare(ctx, m.db, q)
	pause, again, p := p.nextOfMake(err)
	switch {
	case !again:
		return p, err
	case pause > 0:
		return p, m.sleep(ctx, pause)
	}
	return p, nil
}

// wish is what the request asks for, as far as it decides what is done.
func (q *request) wish() wish {
	return wish{owner: q.owner, named: q.named, shared: q.shared, lease: q.target == target(exclusive{})}
}

// failure is the error of an acquire that an outcome has ended.
func (q *request) failure(ctx context.Context, o outcome, reply int64, err error) error {
	switch {
	case o == outRefused:
		return q.refusal(reply)
	case o == outLate:
		return fmt.Errorf("%w: %w", txlock.ErrWaitTimeout, errLate)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case o == outOverdue:
		return fmt.Errorf("%w: %w: %v", txlock.ErrWaitTimeout, errLate, err) //nolint:errorlint // it must not look like the caller's
	}
	return err
}

// refusal is the error for a reply that is final.
func (q *request) refusal(reply int64) error {
	switch reply {
	case replyFull:
		return fmt.Errorf("%w: owner %q", txlock.ErrTooManyHolds, q.owner)
	case replyOther:
		return fmt.Errorf("%w: %q is used for a semaphore: use another key", txlock.ErrInvalidKey, q.key)
	}
	q.seen = sight{what: "somebody else had it"}
	return txlock.ErrBusy
}

// ensureTurnstile makes the turnstile of a key, which may be locked for long: so it
// looks first.
func (m *Manager) ensureTurnstile(ctx context.Context, key txlock.Key) error {
	seen, err := lookAt(ctx, m.db, key, turnstileSlot)
	if err != nil || seen.exists {
		return err
	}
	if err = m.ensureAlone(ctx, key, turnstileSlot); errors.Is(err, errLocked) {
		err = nil // it is there, then
	}
	return err
}

// ensureAlone is ensure in autocommit, where two that make the same row, or rows side
// by side, may lock each other out for a moment, or be each other's deadlock.
func (m *Manager) ensureAlone(ctx context.Context, key txlock.Key, slot int64) error {
	for tries := 1; ; tries++ {
		err := ensure(ctx, m.db, key, slot)
		if tries > maxMakes || !errors.Is(err, errLocked) && !conflicted(err) {
			return err
		}
		if seen, err := lookAt(ctx, m.db, key, slot); err != nil || seen.exists {
			return err
		}
		if err := m.sleep(ctx, time.Duration(tries)*leastLook); err != nil {
			return err
		}
	}
}

// attempt is how a statement is sent.
type attempt struct {
	inTurn bool          // it passes nobody at the turnstile
	queued time.Duration // how long it waits for the row, in the queue for that
}

// answer is what the server has replied.
type answer struct {
	reply int64
	slot  int64 // of the row that it is about
}

// attempt sends the statement that takes what is asked for and returns its reply. It
// is not under the caller's context, whose end could not take it back: when that comes
// first, the reply is waited for behind the call, and what was granted is given back.
// Where there is no reply, the statement may be executed until its own deadline by the
// server's clock: what it takes is given back then.
func (m *Manager) attempt(ctx context.Context, q *request, how attempt) (a answer, _ instant, err error) {
	m.granting.Add(1)
	defer func() {
		if err != nil || a.reply < firstToken {
			m.granting.Add(-1)
			m.lane.settle(m.idle())
		}
	}()
	if err := m.clock.fresh(ctx, m.db); err != nil {
		return answer{}, 0, err
	}
	if err := m.lane.reserve(ctx); err != nil {
		return answer{}, 0, err
	}
	if err := ctx.Err(); err != nil {
		return answer{}, 0, err
	}
	since := now()
	limit := patience(q.ttl)
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	until := since.add(limit)
	notAfterUS := m.clock.microsAt(until)
	sent := *q // the request may go on with another hold
	type outcome struct {
		answer
		err error
	}
	outcomes := make(chan outcome, 1)
	var settled atomic.Bool // by the reply or by the end of the context, whichever is first
	if !m.errands.Go(func() {
		sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit+patience(q.ttl))
		defer cancel()
		defer context.AfterFunc(m.undoing, cancel)()
		a, err := m.send(sending, &sent, how, notAfterUS)
		wanted := settled.CompareAndSwap(false, true)
		if wanted {
			outcomes <- outcome{a, err}
		}
		switch {
		case txlock.Unknown(err):
			m.giveBackUntil(remains{key: sent.key, slot: a.slot, hold: sent.hold}, until, until.add(patience(sent.ttl)+sent.ttl))
		case wanted:
			return
		case err == nil && a.reply >= firstToken:
			m.giveBackUntil(remains{key: sent.key, slot: a.slot, hold: sent.hold}, now(), since.add(patience(sent.ttl)+sent.ttl))
		}
		if sent.shared {
			m.freeSlot(sent.key, a.slot)
		}
	}) {
		return answer{}, 0, ErrClosed
	}
	select {
	case o := <-outcomes:
		return o.answer, since, m.after(q, o.err)
	case <-ctx.Done():
	}
	if settled.CompareAndSwap(false, true) {
		return answer{}, 0, errors.Join(ctx.Err(), m.renew(q))
	}
	o := <-outcomes
	return o.answer, since, m.after(q, o.err)
}

// after makes sure that a statement without an answer is not sent again.
func (m *Manager) after(q *request, err error) error {
	if txlock.Unknown(err) {
		err = errors.Join(err, m.renew(q))
	}
	return err
}

// renew gives a request a new entry for the list of holds, and a reader a new slot:
// what was asked for by the old one is given back behind the call, whenever it comes.
func (m *Manager) renew(q *request) error {
	if q.shared {
		q.target = reader{slot: m.takeSlot(q.key), clock: &m.clock}
	}
	_, err := q.newHold()
	return err
}

// send sends the statement.
func (m *Manager) send(ctx context.Context, q *request, how attempt, notAfterUS int64) (a answer, err error) {
	if how.queued > 0 {
		err = m.withRow(ctx, m.db, row{q.key.String(), leaseSlot}, how.queued, func(tx gen.DBTX) error {
			if how.inTurn {
				tx = rewriting{tx, rawsql.InTurn}
			}
			a.reply, a.slot, err = q.target.send(ctx, tx, q, notAfterUS)
			return err
		})
		if errors.Is(txlock.Explain("", err), txlock.ErrWaitTimeout) {
			return answer{}, nil // locked
		}
		return a, err
	}
	var db gen.DBTX = m.db
	if how.inTurn {
		db = rewriting{db, rawsql.InTurn}
	}
	a.reply, a.slot, err = q.target.send(ctx, db, q, notAfterUS)
	return a, err
}

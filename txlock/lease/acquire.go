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
	how := attempt{inTurn: inTurn}
	for late, absent, conflicts := 0, 0, 0; ; {
		a, since, err := m.attempt(ctx, q, how)
		reply := a.reply
		switch {
		case conflicted(err) && conflicts < 5:
			conflicts++
			continue
		case err != nil && ctx.Err() != nil:
			return nil, 0, fmt.Errorf("%w: %w", ctx.Err(), err)
		case errors.Is(err, context.DeadlineExceeded): // a limit of our own
			return nil, 0, fmt.Errorf("%w: %w: %v", txlock.ErrWaitTimeout, errLate, err) //nolint:errorlint // it must not look like the caller's
		case err != nil:
			return nil, 0, err
		case reply >= firstToken && q.missed(uint64(reply&^sharedBit)):
			m.granting.Add(-1)
			if err := m.miss(q, func() error { return m.undo(ctx, q, a.slot) }); err != nil {
				return nil, 0, err
			}
			return m.try(ctx, q, inTurn, drain)
		case reply >= firstToken:
			q.drains = reply&sharedBit != 0 && q.under == nil // who has it has waited for them
			l, err := m.granted(ctx, q, uint64(reply&^sharedBit), a.slot, since)
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
		case reply == replyLate && late == 0:
			late++
			if err := m.clock.read(ctx, m.db); err != nil {
				return nil, 0, err
			}
			continue
		case reply == replyLate:
			return nil, 0, fmt.Errorf("%w: %w", txlock.ErrWaitTimeout, errLate)
		case reply != replyAbsent:
			return nil, 0, q.refusal(reply)
		}
		// The row, or the turnstile, is locked or missing.
		seen, err := q.target.look(ctx, m.db, q)
		q.seen.look(q, seen)
		switch {
		case err != nil:
			return nil, 0, err
		case !seen.exists:
			// Somebody makes them, or those beside them: a moment each.
			if err = q.target.prepare(ctx, m.db, q); (errors.Is(err, errLocked) || conflicted(err)) && absent < maxEnsures {
				absent++
				err = m.sleep(ctx, time.Duration(absent)*leastLook)
			}
		case how.inTurn && q.named && seen.left > 0 && seen.owner == q.owner:
			how.inTurn = false // it enters again, for which nobody has to wait
		case (q.named || q.shared) && seen.left > 0 && seen.owner == q.owner && how.queued == 0:
			how.queued = guardPatience // it enters again, or the writer goes on to read: its own row
		case late == 0 && q.target != target(exclusive{}) && (seen.left == 0 && absent > 0 || seen.left > 0 && seen.owner == q.owner):
			late++ // of which a reader and a permit are not told: the server's clock was set forward
			err = m.clock.read(ctx, m.db)
		case seen.left > 0:
			return nil, seen.left, txlock.ErrBusy
		case how.inTurn && absent == 0:
			err = m.ensureTurnstile(ctx, q.key)
			absent++
		case absent > 0 && seen.intent == intentShared && !q.shared && how.queued == 0:
			how.queued = mostLook // readers keep the row locked, each for a moment
		case absent > 0:
			return nil, 0, errLocked
		default:
			absent++ // free, and locked for a moment
		}
		if err != nil {
			return nil, 0, err
		}
	}
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
		if tries > maxEnsures || !errors.Is(err, errLocked) && !conflicted(err) {
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

// conflicted tells whether a statement of ours may be sent again that another primary of
// a cluster has overtaken, or a deadlock has ended: what it may have taken nevertheless was
// asked for with another hold.
func conflicted(err error) bool { return txlock.Retryable(err) || txlock.Overtaken(err) }

// maxEnsures is how often it is tried to make a row: for a quarter of a second.
const maxEnsures = 16

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
		err = m.withRow(ctx, m.db, q.key, leaseSlot, how.queued, func(tx gen.DBTX) error {
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

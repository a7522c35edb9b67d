package lease

import (
	"context"
	"errors"
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
		return answer{}, 0, errors.Join(ctx.Err(), m.reissue(q))
	}
	o := <-outcomes
	return o.answer, since, m.after(q, o.err)
}

// after makes sure that a statement without an answer is not sent again.
func (m *Manager) after(q *request, err error) error {
	if txlock.Unknown(err) {
		err = errors.Join(err, m.reissue(q))
	}
	return err
}

// reissue gives a request a new entry for the list of holds, and a reader a new slot:
// what was asked for by the old one is given back behind the call, whenever it comes.
func (m *Manager) reissue(q *request) error {
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

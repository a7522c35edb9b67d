package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
)

// Renew extends the lease now, before the manager's next renewal, with one statement. If a
// transaction guards the lease, Renew waits for its end. It returns txlock.ErrLost or ErrNotHeld
// if the lease is no longer held, and the errors of the driver and of the context. It returns
// txlock.ErrBusy if the transaction hasn't ended, and ErrWaitTimeout if the server hasn't answered,
// in up to three quarters of the time that was left. After these errors the lease is held for as long
// as before, and the manager renews it. If it does so already, Renew waits for that first.
func (l *Lease) Renew(ctx context.Context) error {
	return l.alone(ctx, "renew", func(ctx context.Context, r *record) error {
		return r.m.renewOne(ctx, r, r.left()/2)
	})
}

// alone sends something for the lease while no renewal of it is under way.
func (l *Lease) alone(ctx context.Context, what string, send func(ctx context.Context, r *record) error) error {
	if err := l.Err(); err != nil {
		return err
	}
	r, begun := l.record, l.record.m.store.Now()
	for {
		sent, err := r.alone(ctx, send)
		if lost := l.Err(); lost != nil {
			return lost
		}
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) { // a limit of our own
			err = unanswered(fmt.Sprintf("%s: %v", r.m.silentFor(begun.Until(r.m.store.Now())), err))
		}
		if sent || ctx.Err() != nil {
			return fault.Explain(what+" lease "+r.key.String(), err)
		}
	}
}

// alone does what Lease.alone does, unless a renewal is under way for three quarters of the time that
// is left, or the context ends. The rest is for the manager's own renewals.
func (r *record) alone(ctx context.Context, send func(ctx context.Context, r *record) error) (sent bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.left()*3/4, 0))
	defer cancel()
	if !r.beginRenewal(cancel) {
		r.awaitRenewal(ctx)
		return false, ctx.Err()
	}
	defer r.endRenewal()
	return true, send(ctx, r)
}

// awaitRenewal waits until the renewal that is under way has ended, if there is one.
func (r *record) awaitRenewal(ctx context.Context) {
	r.mu.Lock()
	renewing := r.renewing
	r.mu.Unlock()
	if renewing == nil {
		return
	}
	select {
	case <-renewing:
	case <-ctx.Done():
	}
}

// renewOne renews one record, by a statement that doesn't wait. If the row is locked, it
// queues for the row until the limit, on a connection of the program's pool.
func (m *Manager) renewOne(ctx context.Context, r *record, limit time.Duration) error {
	beside := m.store.Beside()
	if beside == nil {
		beside = m.store
	}
	sent, claim := m.store.Now(), r.renewal()
	reply, err := beside.Renew(ctx, claim)
	if err == nil && reply == store.Absent { // the TTL counts from after the wait
		err = m.store.Queued(ctx, r.row(), limit, func(s store.Session) error {
			sent = m.store.Now()
			reply, err = s.Renew(ctx, claim)
			return err
		})
	}
	switch {
	case err != nil:
		return err
	case reply == store.Done:
		r.extend(sent, sent)
	case reply == store.Questioned:
		r.extend(sent, sent)
		// If this fails, the next renewal tells again.
		if question, err := m.store.Question(ctx, claim); err == nil && question.At > 0 {
			r.ask(question)
		}
	default: // the row is somebody else's, or missing
		r.lose(ErrReplaced)
	}
	return nil
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

const (
	// guardGrace is the default of GuardGrace, and how long ForceRelease waits.
	guardGrace = 5 * time.Second
	// blockedPause is the time between two looks at the transactions that lock a row.
	blockedPause = 250 * time.Millisecond
)

// blockerOf returns the open transaction that has written a row, or nil.
func (m *Manager) blockerOf(ctx context.Context, at store.Row) (*store.Blocker, error) {
	all, err := m.store.Blockers(ctx, at.Key)
	for _, b := range all {
		if b.Slot == at.Slot {
			return &b, err
		}
	}
	return nil, err
}

// blocking names a transaction that has the row of a key locked.
func blocking(key txlock.Key, b store.Blocker) *txlock.HeldError {
	return &txlock.HeldError{Key: key, Session: b.Session, Since: grantedAt(b.Token)}
}

// endBlocker makes the server end the session of a transaction, which rolls it back.
func (m *Manager) endBlocker(ctx context.Context, key txlock.Key, b store.Blocker) error {
	if err := m.store.End(ctx, key.String(), b); err != nil {
		return fmt.Errorf("%w, and it can't be ended, use KILL %d as its user or as root: %w", blocking(key, b), b.Session, err)
	}
	return nil
}

// blocked is what a request knows of the transactions that keep it from a free lease.
type blocked struct {
	looked instant
	who    error // names the last one that was seen
}

// unblock looks for the transaction that is in the way if an attempt has returned
// store.ErrLocked: the lease is over, but its row is locked. That lasts for moments, or
// as long as a transaction that guards the lease is open. It ends the transactions that
// are open for longer than GuardGrace says: their process is stopped or cut off, and the
// lease is no longer theirs. It returns the error, and names the session that is in the way.
func (m *Manager) unblock(ctx context.Context, q *request, busy error) error {
	if !errors.Is(busy, store.ErrLocked) || q.blocked.looked > 0 && q.blocked.looked.Until(m.store.Now()) < blockedPause {
		return busy
	}
	q.blocked.looked = m.store.Now()
	found, err := answer(ctx, m, q, func(ctx context.Context) ([]store.Blocker, error) { return m.store.Blockers(ctx, q.key.String()) })
	if err != nil {
		return errors.Join(busy, err)
	}
	q.blocked.who = nil
	for _, b := range found {
		switch {
		case b.Over <= 0: // of a reader or a permit that is not over
		case b.Over >= q.overtime:
			if err := m.endBlocker(ctx, q.key, b); err != nil {
				q.blocked.who = err
			}
		default:
			q.blocked.who = blocking(q.key, b)
		}
	}
	return q.blocked.named(busy)
}

// named adds to an error who is in the way.
func (b blocked) named(err error) error {
	if err == nil || b.who == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, b.who)
}

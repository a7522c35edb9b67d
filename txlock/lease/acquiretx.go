package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// AcquireTx takes the lease inside the caller's transaction: the lease and the data are
// committed together, or neither is. Use the handle after Commit has returned without an
// error; the TTL runs from before Commit. After a rollback, also one to an earlier
// savepoint, the lease is lost, which the handle finds out with its first renewal:
// release it.
//
// AcquireTx doesn't wait. If somebody else holds the lease it returns txlock.ErrBusy, in
// most cases before it sends anything in the transaction; else the row stays locked until
// the transaction ends, so it is best rolled back. It also returns the errors of
// TryAcquire and Scope.Lock; txlock.ErrStaleSnapshot means that somebody held the lease
// after the transaction's snapshot was taken.
//
// If the key was leased shared before, the transaction also reads the readers' rows. It
// waits for the end of another transaction that a reader guards, if the reader's time is over,
// or the pool has no connection left to look for readers before.
//
// The row of a key that was never leased is made outside of the transaction, if the pool
// has a connection left. If this is the first call of its manager, over a pool that has no
// other connection, the manager can prepare its renewals only when the transaction has
// ended: a program that then keeps that connection for the whole TTL may lose the lease.
func (m *Manager) AcquireTx(ctx context.Context, tx txlock.Tx, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, "acquire in the transaction", key, opts)
	if err != nil {
		return nil, err
	}
	return m.finish(ctx, q, func(ctx context.Context, q *request) (*Lease, error) {
		if l, err := m.local(q); l != nil || err != nil {
			return l, err
		}
		joined, err := m.store.Join(ctx, tx)
		if err != nil {
			return nil, err
		}
		prepared, err := m.prepareRow(ctx, q)
		if err != nil {
			return nil, m.unlessReading(ctx, q, err)
		}
		var l *Lease
		for tries := 0; tries < 8; tries++ {
			l, err = m.include(ctx, joined, q, prepared)
			if !errors.Is(err, store.ErrLocked) {
				break
			}
			if err := m.sleep(ctx, time.Duration(tries+1)*leastLook); err != nil { // others may have it locked for a moment
				return nil, err
			}
		}
		if !m.store.Full() {
			err = m.unblock(ctx, q, err)
		}
		return l, err
	})
}

// include takes the lease in the caller's transaction.
func (m *Manager) include(ctx context.Context, tx store.Joined, q *request, prepared bool) (l *Lease, err error) {
	err = tx.Include(ctx, "acquire lease", q.key, func(ctx context.Context, in *store.In) (err error) {
		l, err = m.acquireIn(ctx, in, q)
		if prepared || !errors.Is(err, store.ErrLocked) {
			return err
		}
		// The row is locked or missing. What is read here is read again under the lock.
		seen, lookErr := q.target.look(in.Reading, in, q)
		if lookErr != nil || seen.Exists {
			return cmp.Or(lookErr, err)
		}
		if err := q.target.prepare(ctx, in, q); err != nil {
			return err
		}
		in.Snapshot = true
		l, err = m.acquireIn(ctx, in, q)
		return err
	})
	return l, err
}

// prepareRow makes the row of the key outside of the transaction, and returns
// txlock.ErrBusy if the lease isn't free. It returns false if the pool has no connection
// left: it might wait forever for one that the caller has.
func (m *Manager) prepareRow(ctx context.Context, q *request) (bool, error) {
	if m.store.Full() {
		return false, nil
	}
	if err := m.store.Reserve(ctx); err != nil {
		return false, err
	}
	seen, err := m.store.Look(ctx, leaseRow(q.key))
	switch {
	case err != nil:
		return false, err
	case !seen.Exists:
		return true, m.makeAlone(ctx, leaseRow(q.key))
	case seen.Use < 0:
		return false, otherUse(q.key, 0, seen.Use)
	case seen.Held() && (!q.named || seen.Owner != q.owner):
		q.seen.look(q, seen)
		return true, q.seen.named(txlock.ErrBusy)
	case seen.Use == store.Shared:
		row, err := m.readersOf(ctx, q.key)
		if err == nil && row.Held > row.Expired {
			err = txlock.ErrBusy
		}
		return true, err
	}
	return true, nil
}

// acquireIn sends the statements of AcquireTx. They need no deadline of their own: a
// statement that is cancelled ends the transaction.
func (m *Manager) acquireIn(ctx context.Context, in *store.In, q *request) (*Lease, error) {
	since := m.store.Now()
	if in.Snapshot {
		if err := in.UnchangedSinceSnapshot(ctx, q.key.String()); err != nil {
			return nil, err
		}
	}
	if err := q.needHold(); err != nil {
		return nil, err
	}
	a, err := in.Take(ctx, store.Ask{Row: leaseRow(q.key), Owner: q.owner, Note: q.note, Hold: q.hold, TTL: q.ttl, NotAfter: store.Never})
	switch {
	case err != nil:
		return nil, err
	case a.Reply == store.Absent:
		return nil, store.ErrLocked
	case a.Reply != store.Done:
		return nil, q.refusal(a.Reply)
	}
	if q.missed(a.Token) {
		if err := m.miss(q, func() error { return releaseIn(ctx, in, q) }); err != nil {
			return nil, err
		}
		if l, err := m.local(q); l != nil || err != nil {
			return l, err
		}
		return m.acquireIn(ctx, in, q)
	}
	if a.Shared {
		if err := noReaders(ctx, in, q); err != nil {
			return nil, err
		}
	}
	return m.grantedIn(ctx, in, q, a, since)
}

// grantedIn makes the handle of what was granted in a transaction. If the lease was
// acquired in this transaction before, that is another handle of the same record.
func (m *Manager) grantedIn(ctx context.Context, in *store.In, q *request, a store.Answer, since instant) (*Lease, error) {
	r := m.recordOf(q, store.LeaseSlot)
	if r == nil {
		return m.keep(q, a, since, true)
	}
	ours := store.Refused
	if r.token.Load() == a.Token {
		var err error
		if ours, err = in.Renew(ctx, r.claim()); err != nil {
			return nil, err
		}
	}
	if ours != store.Done { // the record is of a transaction that was rolled back
		r.lose(ErrReplaced)
		return m.keep(q, a, since, true)
	}
	if err := releaseIn(ctx, in, q); err != nil { // the first hold is enough for both
		return nil, err
	}
	if l := r.enter(true); l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("%w: it was acquired in this transaction, and %w", txlock.ErrBusy, r.err())
}

// releaseIn removes, in the transaction, the hold that the request was granted there.
func releaseIn(ctx context.Context, tx store.Session, q *request) error {
	_, err := tx.Release(ctx, leaseRow(q.key), q.hold)
	return err
}

// noReaders returns txlock.ErrBusy if there are readers, and txlock.ErrUpgrade if the
// owner of the request is one. It locks the rows that it finds, because the snapshot of
// the transaction may not show them.
func noReaders(ctx context.Context, tx store.Session, q *request) error {
	if err := tx.Reap(ctx, q.key.String()); err != nil {
		return err
	}
	readers, err := tx.LockReaders(ctx, q.key.String())
	for _, r := range readers {
		if slices.Contains(q.readsAs(), r.Owner) && strings.HasPrefix(r.Hold, holdBegins) {
			return upgrade(r.Owner)
		}
	}
	if err == nil && len(readers) > 0 {
		err = fmt.Errorf("%w: %d readers: %w", txlock.ErrBusy, len(readers), &txlock.HeldError{Key: q.key, Owner: readers[0].Owner})
	}
	return err
}

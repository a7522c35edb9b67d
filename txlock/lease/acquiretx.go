package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// AcquireTx acquires the lease inside the caller's transaction: the lease and the data are
// committed together, or neither is. Use the handle after Commit has returned without an error;
// the TTL counts from before Commit. After a rollback, also to an earlier savepoint, the lease is
// lost, which the handle notices at its first renewal: release it.
//
// AcquireTx doesn't wait. If another owner holds the lease it returns txlock.ErrBusy, in most
// cases before it sends anything in the transaction; otherwise the row stays locked until the
// transaction ends, so it is best to roll back. It also returns the errors of TryAcquire and
// Scope.Lock; txlock.ErrStaleSnapshot means that another owner held the lease after the
// transaction's snapshot was taken.
//
// The transaction locks the row of the lease and no other row or gap, except the end of the
// previous page if that row is the first of its page, which InnoDB adds from REPEATABLE READ on.
// Everything else happens on another connection: creating the row of a key that was never leased,
// and reading the readers of a key that was leased shared. If the pool has no other connection for
// that, AcquireTx returns ErrNoConnection. A manager on a pool of locksqlc.Open opens one of its
// own, if it has acquired a lease before.
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
		m.granting.Add(1) // the connection for renewals stays until the lease is held
		defer m.granting.Add(-1)
		beside := m.store.Beside()
		if err := m.prepareRow(ctx, beside, q); err != nil {
			return nil, m.unlessReading(ctx, beside, q, err)
		}
		var l *Lease
		for tries := 0; tries < 8; tries++ {
			err = joined.Include(ctx, "acquire lease", q.key, func(inside context.Context, in *store.In) (err error) {
				l, err = m.acquireIn(inside, in, q, outside{ctx, beside})
				return err
			})
			if !errors.Is(err, store.ErrLocked) {
				break
			}
			if err := m.sleep(ctx, time.Duration(tries+1)*leastLook); err != nil { // others may have it locked for a moment
				return nil, err
			}
		}
		if beside != nil && !m.store.Full() { // it looks on a connection of the pool
			err = m.unblock(ctx, q, err)
		}
		return l, err
	})
}

// ErrNoConnection is returned by AcquireTx if it needs a connection besides the transaction's, and
// the pool has none left: to create the row of a key that was never leased, or to read the readers
// of a key that was leased shared. Increase SetMaxOpenConns of the pool, or open the pool with
// locksqlc.Open and acquire any lease before.
var ErrNoConnection = errors.New("lease: the pool has no connection left besides the transaction's; increase SetMaxOpenConns")

// outside is how statements are sent outside of the caller's transaction.
type outside struct {
	ctx           context.Context //nolint:containedctx // without the marks of the transaction's own statements
	store.Session                 // nil if there is no connection for it
}

// prepareRow makes the row of the key if it is missing, and returns txlock.ErrBusy if the
// lease isn't free. Without another connection it does nothing: it might wait forever for one
// that the caller has.
func (m *Manager) prepareRow(ctx context.Context, beside store.Session, q *request) error {
	if beside == nil {
		return nil
	}
	if err := m.between(ctx, q, m.store.Reserve); err != nil {
		return err
	}
	at := leaseRow(q.key)
	seen, err := answer(ctx, m, q, func(ctx context.Context) (store.Glance, error) { return beside.Look(ctx, at) })
	switch {
	case err != nil:
		return err
	case !seen.Exists:
		return m.between(ctx, q, func(ctx context.Context) error {
			return m.making(ctx, func() error { return makeRow(ctx, beside, at) })
		})
	case seen.Use < 0:
		return otherUse(q.key, 0, seen.Use)
	case seen.Held() && (!q.named || seen.Owner != q.owner):
		q.seen.look(q, seen)
		return q.busy()
	case seen.Use == store.Shared:
		row, err := answer(ctx, m, q, func(ctx context.Context) (store.Readers, error) { return m.readersOf(ctx, beside, q.key) })
		if err == nil && row.Held > row.Expired {
			err = txlock.ErrBusy
		}
		return err
	}
	return nil
}

// lookIn makes sure, in a transaction beside which there is no connection, that the row of the
// key is there: the transaction would lock the gap where it is missing.
func lookIn(in *store.In, q *request) error {
	seen, err := in.Look(in.Reading, leaseRow(q.key))
	if err == nil && (!seen.Exists || seen.Use == store.Shared) {
		err = ErrNoConnection
	}
	in.Snapshot = true // which this has taken if there was none
	return err
}

// acquireIn sends the statements of AcquireTx. They need no deadline of their own: a
// statement that is cancelled ends the transaction.
func (m *Manager) acquireIn(ctx context.Context, in *store.In, q *request, out outside) (*Lease, error) {
	since := m.store.Now()
	if out.Session == nil {
		if err := lookIn(in, q); err != nil {
			return nil, err
		}
	}
	if in.Snapshot {
		if err := in.UnchangedSinceSnapshot(ctx, q.key.String()); err != nil {
			return nil, err
		}
	}
	if err := q.needHold(); err != nil {
		return nil, err
	}
	a, err := in.Take(ctx, store.Ask{Row: leaseRow(q.key), Owner: q.owner, Label: q.label, Hold: q.hold, TTL: q.ttl, NotAfter: store.Never})
	switch {
	case err != nil:
		return nil, err
	case a.Reply == store.Absent:
		return nil, store.ErrLocked
	case a.Reply != store.Done:
		return nil, q.refusal(a)
	}
	if q.missed(a.Token) {
		if err := m.miss(q, func() error { return releaseIn(ctx, in, q) }); err != nil {
			return nil, err
		}
		if l, err := m.local(q); l != nil || err != nil {
			return l, err
		}
		return m.acquireIn(ctx, in, q, out)
	}
	if a.Shared {
		if err := m.noReaders(ctx, in, q, out); err != nil {
			return nil, errors.Join(err, releaseIn(ctx, in, q))
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

// noReaders returns txlock.ErrBusy if there are readers, txlock.ErrUpgrade if the owner of the
// request is one, and txlock.ErrStaleSnapshot if there was one since the transaction's snapshot.
// It reads them outside of the transaction, which has the row of the lease locked, so that no
// reader comes: what is committed is all that there is.
func (m *Manager) noReaders(ctx context.Context, in *store.In, q *request, out outside) error {
	if out.Session == nil {
		return ErrNoConnection
	}
	places, err := answer(out.ctx, m, q, func(ctx context.Context) ([]store.Place, error) {
		places, err := out.Places(ctx, q.key.String())
		if err == nil && slices.ContainsFunc(places, func(p store.Place) bool { return p.Held && p.Expired }) {
			if err = out.Reap(ctx, q.key.String()); err == nil {
				places, err = out.Places(ctx, q.key.String())
			}
		}
		return places, err
	})
	if err != nil {
		return err
	}
	slots, readers := make([]int64, len(places)), []store.Place(nil)
	for i, p := range places {
		slots[i] = p.Slot
		if p.Held {
			readers = append(readers, p)
		}
	}
	if len(readers) > 0 {
		return m.readersBusy(q, out, readers)
	}
	if !in.Snapshot {
		return nil
	}
	shown, err := in.DoneInSnapshot(ctx, q.key.String(), slots)
	if err == nil && slices.ContainsFunc(places, func(p store.Place) bool { return p.Done != shown[p.Slot] }) {
		err = fmt.Errorf("%w: a reader has held the lease since", txlock.ErrStaleSnapshot)
	}
	return err
}

// readersBusy returns the error for a lease that has readers. Those that have expired guard a
// transaction.
func (m *Manager) readersBusy(q *request, out outside, readers []store.Place) error {
	q.asksAlone = false // its owner may have become a reader meanwhile
	if err := m.notReading(out.ctx, out, q); err != nil {
		return err
	}
	busy := store.ErrLocked
	if slices.ContainsFunc(readers, func(p store.Place) bool { return !p.Expired }) {
		busy = txlock.ErrBusy
	}
	return fmt.Errorf("%w: %d readers: %w", busy, len(readers), &txlock.HeldError{Key: q.key, Owner: readers[0].Owner})
}

package lease

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
)

// AcquireTx takes the lease inside the caller's transaction: lease and business
// change are committed together, or vanish together. The handle may be used when
// Commit has returned without an error; the time to live runs from before that. After a
// rollback, also one to a savepoint of before, the lease is lost, which the handle finds
// out with its first renewal: release it.
//
// It doesn't wait: where somebody else holds the lease it returns txlock.ErrBusy, in
// most cases before anything is sent in the transaction; else the row stays locked
// until the end of the transaction, which is best rolled back. It returns what
// TryAcquire and Scope.Lock return besides, txlock.ErrStaleSnapshot where the lease was
// held by somebody since the transaction's snapshot was taken.
//
// A key that was leased shared before has the readers looked at in the transaction,
// which at REPEATABLE READ locks the row of a neighbouring key with them until its end.
//
// A key that was never leased gets its row by the pool, outside of the transaction,
// if it has a connection left.
func (m *Manager) AcquireTx(ctx context.Context, tx txlock.Tx, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, "acquire in the transaction", key, opts)
	if err != nil {
		return nil, err
	}
	return m.finish(ctx, q, func(ctx context.Context, q *request) (*Lease, error) {
		if l, err := m.local(q); l != nil || err != nil {
			return l, err
		}
		scope, err := txlock.Join(ctx, tx)
		if err != nil {
			return nil, err
		}
		prepared, err := m.prepareRow(ctx, q)
		if err != nil {
			return nil, m.unlessReading(ctx, q, err)
		}
		var l *Lease
		for tries := 0; tries < 8; tries++ {
			l, err = m.include(ctx, scope, q, prepared)
			if !errors.Is(err, errLocked) {
				break
			}
			if err := m.sleep(ctx, time.Duration(tries+1)*leastLook); err != nil { // others look at it too
				return nil, err
			}
		}
		if !m.db.full() {
			err = m.unblock(ctx, q, err)
		}
		return l, err
	})
}

// include takes the lease in the transaction of a scope.
func (m *Manager) include(ctx context.Context, scope *txlock.Scope, q *request, prepared bool) (l *Lease, err error) {
	err = scope.Include(ctx, "acquire lease", q.key, func(ctx context.Context, in *txlock.Included) (err error) {
		l, err = m.acquireIn(ctx, in, q)
		if prepared || !errors.Is(err, errLocked) {
			return err
		}
		// Locked or missing. What is read here is read again under the lock.
		seen, lookErr := q.target.look(in.Reading, in.Tx, q)
		if lookErr != nil || seen.exists {
			return cmp.Or(lookErr, err)
		}
		if err := q.target.prepare(ctx, in.Tx, q); err != nil {
			return err
		}
		in.Snapshot = true
		l, err = m.acquireIn(ctx, in, q)
		return err
	})
	return l, err
}

// prepareRow makes the row of the key, outside of the transaction, and sees whether
// the lease is free. It tells whether it could: the pool may have no connection
// left, and waiting for one that the caller has would be for ever.
func (m *Manager) prepareRow(ctx context.Context, q *request) (bool, error) {
	if m.db.full() {
		return false, nil
	}
	if err := m.lane.reserve(ctx); err != nil {
		return false, err
	}
	seen, err := lookAt(ctx, m.db, q.key, leaseSlot)
	switch {
	case err != nil:
		return false, err
	case !seen.exists:
		return true, m.ensureAlone(ctx, q.key, leaseSlot)
	case seen.intent < 0:
		return false, otherUse(q.key, 0, seen.intent)
	case seen.held() && (!q.named || seen.owner != q.owner):
		return true, txlock.ErrBusy
	case seen.intent == intentShared:
		row, err := m.readersOf(ctx, q.key)
		if err == nil && row.Readers > row.Expired {
			err = txlock.ErrBusy
		}
		return true, err
	}
	return true, nil
}

// acquireIn sends the statements of AcquireTx. A statement that is cancelled ends
// the transaction, so it needs no deadline of its own.
func (m *Manager) acquireIn(ctx context.Context, in *txlock.Included, q *request) (*Lease, error) {
	since := now()
	if in.Snapshot {
		if err := notHeldSince(ctx, in.Tx, q.key); err != nil {
			return nil, err
		}
	}
	reply, _, err := q.target.send(ctx, in.Tx, q, math.MaxInt64)
	switch {
	case err != nil:
		return nil, err
	case reply == replyAbsent:
		return nil, errLocked
	case reply < firstToken:
		return nil, q.refusal(reply)
	}
	token := uint64(reply &^ sharedBit)
	if q.missed(token) {
		if err := m.miss(q, func() error { return giveBackIn(ctx, in.Tx, q) }); err != nil {
			return nil, err
		}
		if l, err := m.local(q); l != nil || err != nil {
			return l, err
		}
		return m.acquireIn(ctx, in, q)
	}
	if reply&sharedBit != 0 {
		if err := noReaders(ctx, in.Tx, q); err != nil {
			return nil, err
		}
	}
	r := m.recordOf(q, leaseSlot)
	if r != nil && r.token.Load() == token {
		ours, err := m.sendRenewal(ctx, in.Tx, r)
		if err != nil {
			return nil, err
		}
		if ours < firstToken { // of a transaction that was rolled back
			r.lose(ErrReplaced)
			return m.keep(q, token, leaseSlot, since, true)
		}
		// Acquired in this transaction before: that hold serves both.
		if err := giveBackIn(ctx, in.Tx, q); err != nil {
			return nil, err
		}
		if l := r.enter(true); l != nil {
			return l, nil
		}
		return nil, fmt.Errorf("%w: it was acquired in this transaction, and %w", txlock.ErrBusy, r.err())
	}
	if r != nil {
		r.lose(ErrReplaced)
	}
	return m.keep(q, token, leaseSlot, since, true)
}

// giveBackIn removes in the transaction the hold that a request was granted there.
func giveBackIn(ctx context.Context, tx gen.DBTX, q *request) error {
	_, err := queries.ReleaseLease(ctx, tx, gen.ReleaseLeaseParams{Hold: q.hold, Name: []byte(q.key.String()), Slot: leaseSlot})
	return err
}

// noReaders returns ErrBusy where somebody reads under a lease, and ErrUpgrade where the
// one who asks does. It locks the rows that it finds: the snapshot of the transaction may
// not show them.
func noReaders(ctx context.Context, tx gen.DBTX, q *request) error {
	if err := queries.ReapReaders(ctx, tx, []byte(q.key.String())); err != nil {
		return err
	}
	readers, err := queries.ReadersForShare(ctx, tx, []byte(q.key.String()))
	for _, r := range readers {
		own := func(owner []byte) bool { return bytes.Equal(owner, r.Owner) }
		if slices.ContainsFunc(q.readsAs(), own) && strings.HasPrefix(r.Holds, q.hold[:holdBegins]) {
			return upgrade(string(r.Owner))
		}
	}
	if err == nil && len(readers) > 0 {
		err = fmt.Errorf("%w: %d readers", txlock.ErrBusy, len(readers))
	}
	return err
}

// notHeldSince is the snapshot guard of AcquireTx: nobody may have held the lease,
// and committed something under it, since the snapshot was taken.
func notHeldSince(ctx context.Context, tx gen.DBTX, key txlock.Key) error {
	name := []byte(key.String())
	before, err := queries.LeaseInSnapshot(ctx, tx, gen.LeaseInSnapshotParams{Name: name, Slot: leaseSlot})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	current, err := queries.LeaseAsItIs(ctx, tx, gen.LeaseAsItIsParams{Name: name, Slot: leaseSlot})
	if errors.Is(err, sql.ErrNoRows) {
		return errLocked
	}
	before.IntentUs = current.IntentUs
	if err == nil && gen.LeaseInSnapshotRow(current) != before {
		err = fmt.Errorf("%w: the lease was held by somebody since", txlock.ErrStaleSnapshot)
	}
	// The statement about readers locks a row of the next key too, at REPEATABLE READ,
	// whose lease could not be renewed: it is not sent where there never was a reader.
	if err != nil || current.IntentUs != intentShared {
		return err
	}
	// Readers may have committed something too. Their numbers only rise.
	readBefore, err := queries.ReadingInSnapshot(ctx, tx, name)
	if err != nil {
		return err
	}
	readSince, err := queries.ReadingAsItIs(ctx, tx, name)
	if err == nil && readSince != readBefore {
		err = fmt.Errorf("%w: somebody has read under the lease since", txlock.ErrStaleSnapshot)
	}
	return err
}

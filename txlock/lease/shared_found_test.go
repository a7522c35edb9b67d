package lease_test

// Faults that random histories against the model of leases have found.

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestTryBesideGuardOfDeadReader proves that TryAcquire doesn't wait for the end of a
// transaction that a reader guards whose time is over.
func TestTryBesideGuardOfDeadReader(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		reader := share(t, m, key, lease.TTL(unhurried(t, m, 2*time.Second)))
		tx := begin(t, pool, sql.LevelDefault)
		must(t, reader.Guard(t.Context(), tx))
		const over = "SELECT expires_us <= UNIX_TIMESTAMP() * 1000000 FROM lockstep_leases WHERE name = ? AND slot > 0"
		waitUntil(t, "its time is over", func() bool { return number(t, db, over, key.String()) == 1 })
		ctx := limited(t, 30*time.Second)
		wants(t, "TryAcquire", second(other.TryAcquire(ctx, key, lease.TTL(10*time.Minute))), txlock.ErrBusy)
		wantsNone(t, "Rollback", tx.Rollback())
		release(t, acquire(t, other, key))
		wants(t, "Release of the reader", reader.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestDowngradeOfLost proves that a writer who has lost its lease without knowing has
// nothing after Downgrade: another may have come between.
func TestDowngradeOfLost(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool, lease.TTL(time.Hour))
		key := named()
		writer := acquire(t, m, key)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
		reader, err := writer.Downgrade(t.Context())
		wants(t, "Downgrade", err, txlock.ErrNotHeld)
		if reader != nil {
			t.Error("there is a reader beside the error")
		}
		if entry, readers := heldRows(t, db, key); entry+readers != 0 {
			t.Errorf("entry row %d, readers %d after it", entry, readers)
		}
	})
}

// readAndWrite acquires a lease for an owner twice and downgrades one of the two.
func readAndWrite(ctx context.Context, t *testing.T, m *lease.Manager, key txlock.Key) (reader, writer *lease.Lease) {
	t.Helper()
	first, writer := acquireIn(ctx, t, m, key), acquireIn(ctx, t, m, key)
	reader, err := first.Downgrade(ctx)
	must(t, err)
	return reader, writer
}

// TestDowngradeAfterLoss proves that an owner whose reader's row is gone reads again
// after Downgrade, at once, and is told that the first is lost.
func TestDowngradeAfterLoss(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool, lease.TTL(time.Hour))
		key, ctx := named(), lease.WithOwner(t.Context(), "ann")
		lost, writer := readAndWrite(ctx, t, m, key)
		exec(t, db, "DELETE FROM lockstep_leases WHERE name = ? AND slot > 0", key.String())
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		reader, err := writer.Downgrade(ctx)
		must(t, err)
		wants(t, "the reader whose row is gone", lost.Err(), txlock.ErrLost)
		wants(t, "its Release", lost.Release(ctx), txlock.ErrNotHeld)
		if entry, readers := heldRows(t, db, key); entry != 0 || readers != 1 {
			t.Errorf("entry row %d, readers %d after it", entry, readers)
		}
		release(t, reader)
	})
}

// TestDowngradeGivenUp proves that Downgrade ends with its context where a transaction
// guards what the owner reads by already, and that all is held as before.
func TestDowngradeGivenUp(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool, lease.TTL(time.Hour))
		key, ctx := named(), lease.WithOwner(t.Context(), "ann")
		reader, writer := readAndWrite(ctx, t, m, key)
		tx := begin(t, pool, sql.LevelDefault)
		must(t, reader.Guard(t.Context(), tx))
		limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		wants(t, "Downgrade", second(writer.Downgrade(limited)), context.DeadlineExceeded)
		wantsNone(t, "the writer, the reader, and the transaction that it guards", errors.Join(writer.Err(), reader.Err(), tx.Commit()))
		lasts(0, func() bool { // what it was granted is released in the background
			_, readers := heldRows(t, db, key)
			return readers == 1
		})
		if entry, readers := heldRows(t, db, key); entry != 1 || readers != 1 {
			t.Errorf("entry row %d, readers %d after it", entry, readers)
		}
		release(t, reader)
		release(t, writer)
	})
}

// TestPermitGrantedAgain proves that the handle of a permit that its owner has lost and
// was granted again says so.
func TestPermitGrantedAgain(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		s := semaphore(t, newManager(t, pool, lease.TTL(time.Hour)), named(), 1)
		ctx := lease.WithOwner(t.Context(), "ann")
		before, err := s.Acquire(ctx)
		must(t, err)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ? AND slot = 1", before.Key().String())
		again, err := s.Acquire(ctx)
		must(t, err)
		wants(t, "Err of the one before", before.Err(), txlock.ErrLost)
		wantsNone(t, "Err of the new one", again.Err())
		wants(t, "Release of the one before", before.Release(t.Context()), txlock.ErrNotHeld)
		release(t, again)
	})
}

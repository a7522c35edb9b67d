package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestForceReleaseBesideGuards proves that ForceRelease gets through to a lease that six
// connections guard back to back, so that its row is locked nearly all the time, and that
// it ends none of their sessions.
func TestForceReleaseBesideGuards(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		pool.SetMaxIdleConns(8)
		for _, work := range []time.Duration{4 * time.Millisecond, 40 * time.Millisecond} {
			key, table := named(), counter(t, db)
			l := acquire(t, newManager(t, pool, lease.TTL(time.Minute)), key)
			var guarding sync.WaitGroup
			var committed atomic.Int64
			for range 6 {
				guarding.Go(func() {
					for {
						err := guardedWork(t.Context(), pool, l, table, work)
						switch {
						case errors.Is(err, txlock.ErrLost), errors.Is(err, txlock.ErrNotHeld):
							return
						case err != nil:
							t.Errorf("a transaction that guards: %v", err)
							return
						}
						committed.Add(1)
					}
				})
			}
			waitUntil(t, "all guard", func() bool { return committed.Load() > 12 })
			start := time.Now()
			err := newManager(t, newPool(t, db, true)).ForceRelease(t.Context(), key)
			t.Logf("after %v and %d transactions", time.Since(start), committed.Load())
			if err != nil {
				t.Errorf("ForceRelease: %v", err)
				release(t, l)
			}
			guarding.Wait()
			if n := counted(t, db, table); n != committed.Load() {
				t.Errorf("%d were committed, the counter is %d", committed.Load(), n)
			}
		}
	})
}

// TestForceReleaseEndsNobodyWhoGoesOn proves that ForceRelease, which waits for longer than
// the grace behind transactions that each guard for less, ends none of them.
func TestForceReleaseEndsNobodyWhoGoesOn(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		l := acquire(t, newManager(t, pool, lease.TTL(2*time.Minute)), key)
		first := begin(t, pool, sql.LevelDefault)
		guard(t, l, first)
		asked := make(chan struct{})
		var guarding sync.WaitGroup
		end := func(tx *sql.Tx) {
			<-asked
			// The time is what is tested: all of them together are longer than the grace.
			<-time.After(time.Second)
			wantsNone(t, "Commit", tx.Commit())
		}
		guarding.Go(func() { end(first) })
		for range 5 {
			tx := begin(t, pool, sql.LevelDefault)
			session := testdb.ConnID(t, tx)
			guarding.Go(func() {
				wantsNone(t, "Guard", l.Guard(t.Context(), tx, txlock.NothingRead()))
				end(tx)
			})
			db.WaitForLockWait(t, session)
		}
		m := newManager(t, newPool(t, db, true))
		close(asked)
		wantsNone(t, "ForceRelease", m.ForceRelease(t.Context(), key))
		guarding.Wait()
	})
}

// TestNoInnocentSessionIsEnded proves that nobody's session is ended whose transaction has
// nothing to do with the lease: its holder's, which was never guarded and is long over,
// goes on with other work on the connection that has acquired it, while others try to take
// the lease, and an AcquireTx that was refused has its row locked.
func TestNoInnocentSessionIsEnded(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key, table := named(), counter(t, db)
		holders := newPool(t, db, poolKind(pool))
		holders.SetMaxOpenConns(1) // whatever follows is in the session that has acquired
		l := acquire(t, newManager(t, holders, lease.TTL(time.Second)), key, lease.MaxLifetime(time.Second))
		session := testdb.ConnID(t, holders)
		within(t, "the end of the lease", l.Done())
		working := begin(t, holders, sql.LevelDefault)
		add(t, working, table)

		others := newManager(t, newPool(t, db, true))
		refused := newManager(t, pool)
		var tries atomic.Int64
		for range 5 {
			tx := begin(t, pool, sql.LevelRepeatableRead)
			reads(t, tx, table)
			exec(t, db, "UPDATE lockstep_leases SET owner = 'over', holders = ';over', token = token + 1, expires_us = 1, conn_id = ? WHERE name = ? AND slot = 0",
				session, key.String())
			_, err := refused.AcquireTx(t.Context(), tx, key)
			wants(t, "AcquireTx after the snapshot", err, txlock.ErrStaleSnapshot)
			ctx, stop := context.WithCancel(t.Context())
			var trying sync.WaitGroup
			for range 8 {
				trying.Go(func() {
					for ctx.Err() == nil {
						tries.Add(1)
						l, err := others.TryAcquire(t.Context(), key)
						if err == nil {
							err = l.Release(t.Context())
						}
						// To a busy machine the row may look locked all the time. It is released later then.
						if err != nil && !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, lease.ErrGuarded) {
							t.Errorf("TryAcquire: %v", err)
						}
					}
				})
			}
			before := tries.Load()
			lasts(60*time.Millisecond, func() bool { return tries.Load() > before+16 })
			rollback(t, tx)
			before = tries.Load()
			lasts(20*time.Millisecond, func() bool { return tries.Load() > before+8 })
			stop()
			trying.Wait()
		}
		commit(t, working)
		if n := counted(t, db, table); n != 1 {
			t.Errorf("the counter is %d", n)
		}
	})
}

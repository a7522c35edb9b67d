package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestFairLeavesTheHolderAConnection proves that a waiter in turn, and the manager, leave
// one connection of a small pool to the holder of the lease.
func TestFairLeavesTheHolderAConnection(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range []struct {
			connections, managers int
			guarded               bool
		}{{1, 1, false}, {2, 1, false}, {4, 2, false}, {2, 1, true}, {2, 2, true}} {
			t.Run(fmt.Sprintf("%d connections, %d managers, guarded %t", c.connections, c.managers, c.guarded), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, db, c.guarded)
				pool.SetMaxOpenConns(c.connections)
				keys := []txlock.Key{named(), named()}
				var group sync.WaitGroup
				for range c.managers {
					m := newManager(t, pool, lease.Fair())
					for _, key := range keys {
						for range 2 {
							group.Go(func() {
								ctx := limited(t, soon)
								for range 3 {
									worked := false
									err := m.Do(ctx, key, func(ctx context.Context, _ *lease.Lease) error {
										_, err := pool.ExecContext(ctx, "DO 1")
										worked = err == nil
										return err
									})
									// A busy server answers a release later than Release waits, which then goes on.
									if err != nil && (!worked || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
										t.Errorf("Do: %v", err)
										return
									}
								}
							})
						}
					}
				}
				group.Wait()
			})
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
			wants(t, "AcquireTx after the snapshot", second(refused.AcquireTx(t.Context(), tx, key)), txlock.ErrStaleSnapshot)
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
		counts(t, db, table, 1)
	})
}

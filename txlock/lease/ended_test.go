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

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// pending is a call that waits, and its error.
type pending struct {
	what string
	err  <-chan error
}

func tell(what string, call func() error) pending {
	return pending{what, later(call)}
}

// TestWaitersOfAnOldNumberAreTold proves that a semaphore's waiters are told of another
// number, in whatever way and manager they wait, and nobody waits behind them.
func TestWaitersOfAnOldNumberAreTold(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key, queue := named(), line{db: db}
		queue.key = key
		fair, other := newManager(t, pool, lease.Fair()), newManager(t, newPool(t, db, true), lease.Fair())
		old := semaphore(t, fair, key, 1)
		held, err := old.Acquire(t.Context())
		wantsNone(t, "Acquire", err)
		var waiters []pending
		for i, s := range []*lease.Semaphore{old, old, old, semaphore(t, other, key, 1), semaphore(t, newManager(t, pool), key, 1)} {
			waiters = append(waiters, tell(fmt.Sprintf("waiter %d", i), func() error { return second(s.Acquire(t.Context())) }))
		}
		waitUntil(t, "they wait", func() bool { return queue.taken(t) && len(queue.waiting(t)) >= 3 })
		more, err := old.Resize(t.Context(), 3)
		wantsNone(t, "Resize", err)
		for _, w := range waiters {
			wants(t, w.what, within(t, w.what, w.err), txlock.ErrInvalidOption)
		}
		l, err := more.Acquire(t.Context())
		wantsNone(t, "Acquire of the new number", err)
		release(t, l)
		release(t, held)
	})
}

// TestWriterMeetsItsReader proves that an owner's writer doesn't wait for its own reader,
// which has come while it waited: whoever is first, both calls end.
func TestWriterMeetsItsReader(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		for name, options := range map[string][]lease.ManagerOption{"poll": nil, "fair": {lease.Fair()}} {
			for _, apart := range []bool{true, false} {
				key := named()
				writes := newManager(t, pool, options...)
				reads := writes
				if apart {
					reads = newManager(t, newPool(t, db, true), options...)
				}
				other := newManager(t, pool)
				release(t, share(t, other, key)) // it is of readers
				holder := acquire(t, other, key)
				ctx := lease.WithOwner(t.Context(), "both of "+key.String())
				reader := tell("the reader", func() error {
					l, err := reads.AcquireShared(ctx, key)
					if err == nil {
						t.Cleanup(func() { _ = l.Release(context.Background()) }) // or Close has
					}
					return err
				})
				writer := tell("the writer", func() error {
					l, err := writes.Acquire(ctx, key)
					if err == nil {
						err = l.Release(context.Background())
					}
					return err
				})
				time.Sleep(100 * time.Millisecond) // it may begin to wait; in any order they end
				release(t, holder)
				what := fmt.Sprintf("%s, of two managers: %t", name, apart)
				wantsNone(t, what+": the reader", within(t, what+": the reader", reader.err))
				if err := within(t, what+": the writer", writer.err); err != nil && !errors.Is(err, txlock.ErrUpgrade) {
					t.Errorf("%s: the writer: %v", what, err)
				}
			}
		}
	})
}

// TestFairLeavesTheHolderAConnection proves that a waiter in turn, and the manager, leave
// one connection of a small pool to the holder of the lease.
func TestFairLeavesTheHolderAConnection(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range []struct {
			connections, managers int
			guarded               bool
		}{{1, 1, false}, {2, 1, false}, {3, 1, false}, {4, 2, false}, {5, 2, false}, {2, 1, true}, {2, 2, true}, {3, 2, true}} {
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

// TestWaitsEndWithClose proves that calls which wait return ErrClosed when their manager is
// closed, also where the network gives no answer.
func TestWaitsEndWithClose(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("frozen=%t", frozen), func(t *testing.T) {
				t.Parallel()
				for tries := 1; !waitsEndWithClose(t, db, frozen) && !t.Failed(); tries++ {
					if tries == 5 {
						t.Fatal("ForceRelease doesn't end with its manager")
					}
				}
			})
		}
	})
}

// waitsEndWithClose reports whether all calls have returned, as they do unless ForceRelease was no
// more waiting for its row when the network froze.
func waitsEndWithClose(t *testing.T, db *testdb.DB, frozen bool) bool {
	var delay atomic.Int64
	pool, healthy := newPool(t, db, true, slowly(&delay)), newPool(t, db, true)
	m, err := lease.NewManager(pool, lease.Fair())
	wantsNone(t, "NewManager", err)
	holder := newManager(t, healthy)
	held, guarded, sem := acquire(t, holder, named()), acquire(t, holder, named()), semaphore(t, holder, named(), 2)
	tx, err := healthy.BeginTx(t.Context(), nil)
	wantsNone(t, "BeginTx", err)
	wantsNone(t, "Guard", guarded.Guard(t.Context(), tx))
	var permits []*lease.Lease
	for range 2 {
		l, err := sem.Acquire(t.Context())
		wantsNone(t, "Acquire", err)
		permits = append(permits, l)
	}
	queue := line{db: db, key: held.Key()}
	calls := []pending{
		tell("Acquire", func() error { return second(m.Acquire(t.Context(), held.Key())) }),
		tell("AcquireShared", func() error { return second(m.AcquireShared(t.Context(), held.Key())) }),
		tell("Resize", func() error { return second(semaphore(t, m, permits[0].Key(), 2).Resize(t.Context(), 1)) }),
	}
	waitUntil(t, "they wait", func() bool {
		return queue.taken(t) && len(queue.waiting(t)) >= 1 && // MariaDB tells of all keys
			number(t, db, "SELECT used_for FROM lockstep_leases WHERE name = ? AND slot = 0", permits[0].Key().String()) == -1
	})
	// ForceRelease comes last, and waits in the queue of the row, for five seconds each time,
	// of which the first is over: others execute this statement for a moment only. What is
	// frozen in its COMMIT waits for the network, which database/sql gives no context: so
	// it must still wait for the row when the network has been frozen.
	force := tell("ForceRelease", func() error { return m.ForceRelease(t.Context(), guarded.Key()) })
	waits := func() bool {
		n, foreign := 0, new(mysql.MySQLError)
		err := db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE '%name: LockLease%' AND TIME BETWEEN 1 AND 4 AND ID <> CONNECTION_ID()").Scan(&n)
		if errors.As(err, &foreign) && foreign.Number == 3854 {
			return false // MySQL has refused to show the text of another test's statement, which isn't UTF-8
		}
		must(t, err)
		return n > 0
	}
	waitUntil(t, "ForceRelease waits, too", func() bool {
		if !waits() {
			return false
		}
		if frozen {
			delay.Store(int64(time.Hour))
		}
		still := waits()
		if !still {
			delay.Store(0)
		}
		return still
	})
	ctx := limited(t, time.Second)
	err = m.Close(ctx)
	if !frozen {
		wantsNone(t, "Close", err)
	}
	for _, c := range calls {
		wants(t, c.what, within(t, c.what, c.err), lease.ErrClosed)
	}
	thaw := time.AfterFunc(20*time.Second, func() { delay.Store(0) })
	err = within(t, force.what, force.err)
	ended := thaw.Stop() || !frozen
	if ended {
		wants(t, force.what, err, lease.ErrClosed)
	}
	wantsNone(t, "Rollback", tx.Rollback())
	return ended
}

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

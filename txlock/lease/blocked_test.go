package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// bounded is how long a transaction that stands still may keep a lease of a second, on a
// machine that delays nothing: its time, the grace, and ten times what the rest needs.
const bounded = time.Second + 5*time.Second + 10*time.Second

// TestOpenTransactionsAreBounded proves that a transaction that stays open keeps a lease no longer
// than its TTL and the grace, by every row that it can keep locked: of a reader, of a permit, and
// of a lease that it has acquired itself, also for the first time in the life of the key. Then its
// session is ended, and its Commit fails.
func TestOpenTransactionsAreBounded(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		run, wait := sideBySide(t)
		defer wait()
		type hold func(m *lease.Manager, tx *sql.Tx, key txlock.Key) error
		guarded := func(take verb) hold {
			return func(m *lease.Manager, tx *sql.Tx, key txlock.Key) error {
				l, err := take(t.Context(), m, key)
				if err == nil {
					err = l.Guard(t.Context(), tx)
				}
				return err
			}
		}
		inTx := func(m *lease.Manager, tx *sql.Tx, key txlock.Key) error {
			return second(m.AcquireTx(t.Context(), tx, key))
		}
		for name, c := range map[string]struct {
			holds hold
			wants verb
		}{
			"reader": {guarded(shared), exclusive},
			"permit": {guarded(permitOf), permitOf},
			"AcquireTx": {func(m *lease.Manager, tx *sql.Tx, key txlock.Key) error {
				release(t, acquire(t, m, key))
				return inTx(m, tx, key)
			}, exclusive},
			"AcquireTx and readers": {inTx, shared},
		} {
			run(name, func(t *testing.T) {
				key := named()
				holder, other := newManager(t, pool, lease.TTL(time.Second)), newManager(t, newPool(t, db, false))
				tx := begin(t, pool, sql.LevelDefault)
				err := c.holds(holder, tx, key)
				for errors.Is(err, txlock.ErrLost) { // a busy machine has let its second pass
					rollback(t, tx)
					tx = begin(t, pool, sql.LevelDefault)
					err = c.holds(holder, tx, key)
				}
				must(t, err)
				ctx := limited(t, soon)
				delays, start := testdb.Delays(t), time.Now()
				l, err := c.wants(ctx, other, key)
				if err != nil {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				if took := time.Since(start); took > bounded+delays() {
					t.Errorf("free after %v", took)
				}
				if err := tx.Commit(); err == nil {
					t.Error("the transaction was committed all the same")
				}
				release(t, l)
			})
		}
	})
}

// TestGuardInTimeIsLeftAlone proves that a transaction that is open for less than the
// grace after its lease commits, while somebody waits.
func TestGuardInTimeIsLeftAlone(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key, table := named(), counter(t, db)
		pool.SetMaxOpenConns(1) // whatever follows is in the session that has guarded
		m := newManager(t, pool)
		l := acquire(t, m, key, lease.TTL(unhurried(t, m, 2*time.Second)))
		tx := begin(t, pool, sql.LevelDefault)
		add(t, tx, table)
		guard(t, l, tx)
		waiting := fairAcquire(t, newManager(t, newPool(t, db, true)), key)
		within(t, "the end of the lease", l.Done())
		// The time is what is tested: that of a transaction which is a little late.
		<-time.After(2 * time.Second)
		commit(t, tx)
		release(t, waiting.lease(t))
		counts(t, db, table, 1)
	})
}

// TestBlockedBySession proves that the session in the way is named where it can't be ended
// yet, and where it can't be ended by this user: by the errors of those who wait, who try, and
// who release by force.
func TestBlockedBySession(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		holder := newManager(t, db.Admin())
		l := acquire(t, holder, key, lease.TTL(unhurried(t, holder, 2*time.Second)))
		tx := begin(t, db.Admin(), sql.LevelDefault)
		var session uint64
		must(t, tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&session))
		guard(t, l, tx)
		within(t, "the end of the lease", l.Done())
		m := newManager(t, newPool(t, db, true))
		waitUntil(t, "the lease is over by the server's clock", func() bool {
			info, err := m.Inspect(t.Context(), key)
			return err == nil && !info.Held
		})
		names := func(what string, err error, want error, text string) {
			t.Helper()
			wants(t, what, err, want)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("session %d ", session)) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want it to name session %d and to say %q", what, err, session, text)
			}
		}
		_, err := m.TryAcquire(t.Context(), key)
		names("TryAcquire", err, txlock.ErrBusy, "")
		// What a call has to see before its limit takes as long as the machine needs.
		patiently := func(from time.Duration, text string, call func(limit time.Duration) error) (err error) {
			for limit := from; limit < soon; limit *= 2 {
				if err = call(limit); err == nil || strings.Contains(err.Error(), text) {
					break
				}
			}
			return err
		}
		wait := func(limit time.Duration) error { return second(m.Acquire(t.Context(), key, lease.WaitAtMost(limit))) }
		names("Acquire", patiently(500*time.Millisecond, "session ", wait), txlock.ErrWaitTimeout, "")
		names("ForceRelease that is cancelled", patiently(500*time.Millisecond, "session ", func(limit time.Duration) error {
			return m.ForceRelease(limited(t, limit), key)
		}), context.DeadlineExceeded, "")
		killIt := fmt.Sprintf("KILL %d", session)
		names("Acquire after the grace", patiently(2*time.Second, killIt, wait), txlock.ErrWaitTimeout, killIt)
		err = m.ForceRelease(t.Context(), key)
		names("ForceRelease", err, err, killIt)
		db.Kill(t, int64(session))
		release(t, fairAcquire(t, m, key).lease(t))
	})
}

// TestGuardOfAnotherDatabase proves that Guard in a transaction of another database says so, and that the
// lease stays held and guards a transaction of its own database afterwards.
func TestGuardOfAnotherDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, foreign := newPool(t, db, true), newPool(t, testdb.Shared(t, db.Engine()).OpenLeases(t), true)
		for name, acquire := range map[string]verb{"lease": exclusive, "reader": shared} {
			l := mustLease(t)(acquire(t.Context(), newManager(t, pool), named()))
			tx := begin(t, foreign, sql.LevelDefault)
			wants(t, name, l.Guard(t.Context(), tx), lease.ErrOtherDatabase)
			rollback(t, tx)
			tx = begin(t, pool, sql.LevelDefault)
			guard(t, l, tx)
			commit(t, tx)
			wants(t, "Guard of a transaction that is over", l.Guard(t.Context(), tx), txlock.ErrNoTransaction)
			wants(t, "Guard of nil", l.Guard(t.Context(), nil), txlock.ErrNoTransaction)
			release(t, l)
		}
	})
}

// TestGuardLostOnFullPool proves that a Guard that has failed says so also where the pool
// has no connection left to look at the lease by, and that the handle hears of the loss
// when there is one again.
func TestGuardLostOnFullPool(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		pool.SetMaxOpenConns(1)
		l := acquire(t, newManager(t, pool), key)
		must(t, newManager(t, newPool(t, db, true)).ForceRelease(t.Context(), key))
		tx := begin(t, pool, sql.LevelDefault)
		wants(t, "Guard of a lease that was taken away", l.Guard(t.Context(), tx), txlock.ErrLost)
		rollback(t, tx)
		within(t, "the loss", l.Done())
		wants(t, "the handle", l.Err(), txlock.ErrLost)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
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

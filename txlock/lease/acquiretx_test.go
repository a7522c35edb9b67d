package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/sqlstore"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func acquireTx(t testing.TB, m *lease.Manager, tx txlock.Tx, key txlock.Key) *lease.Lease {
	t.Helper()
	return mustLease(t)(m.AcquireTx(context.Background(), tx, key))
}

// keyOf makes a key that was never leased, or was.
func keyOf(t testing.TB, m *lease.Manager, leased bool) txlock.Key {
	t.Helper()
	key := named()
	if leased {
		release(t, acquire(t, m, key))
	}
	return key
}

// histories are the keys to try: what was leased before has a row, the rest not.
var histories = map[string]bool{"never leased": false, "leased before": true}

// TestAcquireTxImplicitCommit proves that Commit on a guarded pool says so where the lease was committed
// before, without what follows it in the transaction.
func TestAcquireTxImplicitCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m := newManager(t, pool)
		tx := begin(t, pool, sql.LevelDefault)
		l := acquireTx(t, m, tx, named())
		run(t, tx, "START TRANSACTION") // commits, as DDL does, and needs no privilege
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
		release(t, l)
	})
}

// TestAcquireTxExhaustedPool proves that AcquireTx waits for no connection of the
// pool that its own transaction has, nor for the holder of the lease. A key that was never
// leased is refused where there is no connection to make its row.
func TestAcquireTxExhaustedPool(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for name, leased := range histories {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pool, wide := newPool(t, db, guarded), newPool(t, db, guarded)
				pool.SetMaxOpenConns(1)
				m, other := newManager(t, pool), newManager(t, wide)
				release(t, acquire(t, m, named())) // so it knows a guarded pool
				table, key := counter(t, db), keyOf(t, other, leased)
				tx := begin(t, pool, sql.LevelDefault)
				add(t, tx, table)
				if !guarded && !leased {
					quickly(t, "AcquireTx", func() {
						wants(t, "AcquireTx", second(m.AcquireTx(t.Context(), tx, key)), lease.ErrNoConnection)
					})
					free(t, other, key) // its gap isn't locked
					wants(t, "AcquireTx by the old snapshot", second(m.AcquireTx(t.Context(), tx, key)), lease.ErrNoConnection)
					rollback(t, tx)
					tx = begin(t, pool, sql.LevelDefault)
					l := acquireTx(t, m, tx, key)
					commit(t, tx)
					release(t, l)
					return
				}
				var l *lease.Lease
				quickly(t, "AcquireTx", func() { l = acquireTx(t, m, tx, key) })
				guard(t, l, tx)
				wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
				commit(t, tx)
				wantsNone(t, "Renew", l.Renew(t.Context()))
				release(t, l)

				// Held by somebody else, and guarded by him.
				theirs := acquire(t, other, key)
				for _, open := range []bool{false, true} {
					their := begin(t, wide, sql.LevelDefault)
					if open {
						guard(t, theirs, their)
					}
					tx = begin(t, pool, sql.LevelDefault)
					quickly(t, "AcquireTx of a lease that is held", func() {
						wants(t, "AcquireTx", second(m.AcquireTx(t.Context(), tx, key)), txlock.ErrBusy)
					})
					add(t, tx, table)
					commit(t, tx)
					commit(t, their)
				}
				release(t, theirs)
				counts(t, db, table, 3)
			})
		}
	})
}

// TestAcquireTxOfTwoOnAPoolOfTwo proves that AcquireTx answers at once where two transactions
// have both connections of a pool and want the same lease: only the pool is of any use to find
// out who has locked the row, and it is used up.
func TestAcquireTxOfTwoOnAPoolOfTwo(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		pool := newPool(t, db, guarded)
		pool.SetMaxOpenConns(2)
		m, key := newManager(t, pool, lease.RenewEvery(50*time.Millisecond)), named() // its loop gives the pool's connection back
		release(t, acquire(t, m, key))                                                // so it knows the pool, and there is a row
		first, other := begin(t, pool, sql.LevelDefault), begin(t, pool, sql.LevelDefault)
		l := acquireTx(t, m, first, key)
		if _, err := m.AcquireTx(t.Context(), other, key); !errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrWaitTimeout) {
			t.Errorf("AcquireTx has waited for a connection: %v", err)
		}
		rollback(t, other)
		commit(t, first)
		release(t, l)
	})
}

// TestAcquireTxSideBySide proves that of many transactions that want a key that
// was never leased one gets it, that the others are refused at once, and that none is
// the victim of a deadlock.
func TestAcquireTxSideBySide(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		for range 5 {
			key, wins := named(), make(chan func(), 6)
			var all sync.WaitGroup
			for range cap(wins) {
				m, tx := newManager(t, pool), begin(t, pool, sql.LevelDefault)
				all.Go(func() {
					l, err := m.AcquireTx(limited(t, soon), tx, key)
					if err == nil {
						wins <- func() { commit(t, tx); release(t, l) }
						return
					}
					wants(t, "AcquireTx", err, txlock.ErrBusy)
					wantsNone(t, "Rollback", tx.Rollback())
				})
			}
			all.Wait()
			if len(wins) != 1 {
				t.Fatalf("%d of %d have the lease", len(wins), cap(wins))
			}
			(<-wins)()
		}
	})
}

// TestAcquireTxSeesReadersThatAreGone proves that a transaction whose snapshot is from before a
// reader has committed is refused also when the reader's row was removed meanwhile, by Sweep or
// by the cleanup.
func TestAcquireTxSeesReadersThatAreGone(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		for name, remove := range map[string]func(m *lease.Manager, key txlock.Key) error{
			"swept": func(_ *lease.Manager, key txlock.Key) error {
				return sqlstore.New(pool).Sweep(t.Context(), key.String())
			},
			"cleaned": func(m *lease.Manager, _ txlock.Key) error { return second(m.Purge(t.Context())) },
			"left":    func(*lease.Manager, txlock.Key) error { return nil },
		} {
			t.Run(name, func(t *testing.T) {
				m, key, table := newManager(t, pool, lease.PurgeEvery(0, time.Hour)), named(), counter(t, db)
				r := share(t, m, key)
				tx := begin(t, pool, sql.LevelRepeatableRead)
				reads(t, tx, table)
				change := begin(t, pool, sql.LevelRepeatableRead)
				add(t, change, table)
				guard(t, r, change)
				commit(t, change)
				release(t, r)
				exec(t, db, "UPDATE lockstep_leases SET expires_us = 1, token = 1 WHERE name = ? AND slot > 0", key.String())
				wantsNone(t, "the removal", remove(m, key))
				left := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot > 0", key.String())
				if (left == 0) != (name != "left") {
					t.Errorf("%d rows of readers are left", left)
				}
				wants(t, "AcquireTx", second(m.AcquireTx(t.Context(), tx, key)), txlock.ErrStaleSnapshot)
				rollback(t, tx)
			})
		}
	})
}

// TestAcquireTxSeesReaders proves that a transaction finds a reader that its snapshot doesn't
// show, before it looks, and one that comes between the look and the lock of the row. It
// holds nothing when it is committed nevertheless.
func TestAcquireTxSeesReaders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("late %t", late), func(t *testing.T) {
				t.Parallel()
				tap := new(wiretap)
				m, other, key := newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, true)), named()
				release(t, share(t, m, key))
				tx := begin(t, newPool(t, db, true, tap.install), sql.LevelRepeatableRead)
				reads(t, tx, counter(t, db))
				var once sync.Once
				var r *lease.Lease
				enter := func() { once.Do(func() { r = share(t, m, key) }) }
				if !late {
					enter()
				}
				tap.before("name: LeaseAsItIs ", func(string) { enter() })
				if err := second(other.AcquireTx(limited(t, 2*time.Minute), tx, key)); !errors.Is(err, txlock.ErrBusy) {
					t.Fatalf("AcquireTx: %v, want ErrBusy", err) // nobody would come in any more
				}
				commit(t, tx)
				wantsNone(t, "Renew of the reader", r.Renew(t.Context()))
				must(t, acquired(other.AcquireShared(limited(t, 2*time.Minute), key)))
				release(t, r)
				release(t, acquire(t, m, key))
			})
		}
	})
}

// TestAcquireTxBesideReaderOnPoolOfOne proves that AcquireTx of a key that was leased shared
// finds a reader where its transaction has the pool's only connection, and is refused where the
// manager has none of its own to look for it.
func TestAcquireTxBesideReaderOnPoolOfOne(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			t.Run(level.String(), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, db, guarded)
				pool.SetMaxOpenConns(1)
				m, other := newManager(t, pool), newManager(t, newPool(t, db, guarded))
				release(t, acquire(t, m, named())) // so it knows a guarded pool
				key := named()
				reader := share(t, other, key)
				tx := begin(t, pool, level)
				_, err := m.AcquireTx(t.Context(), tx, key)
				if !guarded {
					wants(t, "AcquireTx beside a reader", err, lease.ErrNoConnection)
					rollback(t, tx)
					release(t, reader)
					return
				}
				wants(t, "AcquireTx beside a reader", err, txlock.ErrBusy)
				rollback(t, tx)
				wantsNone(t, "Renew of the reader", reader.Renew(t.Context()))
				release(t, reader)
				tx = begin(t, pool, level)
				l := acquireTx(t, m, tx, key)
				commit(t, tx)
				release(t, l)
			})
		}
	})
}

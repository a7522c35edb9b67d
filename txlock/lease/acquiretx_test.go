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
	return got(m.AcquireTx(context.Background(), tx, key))(t)
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
// leased is refused where there is no connection to make its row, and one that was leased shared
// where there is none to look for a reader.
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
						wants(t, "AcquireTx", testdb.Err(m.AcquireTx(t.Context(), tx, key)), lease.ErrNoConnection)
					})
					free(t, other, key) // its gap isn't locked
					wants(t, "AcquireTx by the old snapshot", testdb.Err(m.AcquireTx(t.Context(), tx, key)), lease.ErrNoConnection)
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
				wants(t, "TryAcquire", testdb.Err(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
				commit(t, tx)
				wants(t, "Renew", l.Renew(t.Context()), nil)
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
						wants(t, "AcquireTx", testdb.Err(m.AcquireTx(t.Context(), tx, key)), txlock.ErrBusy)
					})
					add(t, tx, table)
					commit(t, tx)
					commit(t, their)
				}
				release(t, theirs)
				counts(t, db, table, 3)

				// A reader is looked for on another connection.
				reader, want := share(t, other, key), txlock.ErrBusy
				if !guarded {
					want = lease.ErrNoConnection
				}
				tx = begin(t, pool, sql.LevelReadCommitted)
				wants(t, "AcquireTx beside a reader", testdb.Err(m.AcquireTx(t.Context(), tx, key)), want)
				rollback(t, tx)
				wants(t, "Renew of the reader", reader.Renew(t.Context()), nil)
				release(t, reader)
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
		_, err := m.AcquireTx(t.Context(), other, key)
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrBusy) || errors.Is(err, txlock.ErrWaitTimeout), "AcquireTx has waited for a connection: %v", err)
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
					wants(t, "Rollback", tx.Rollback(), nil)
				})
			}
			all.Wait()
			testdb.FatalIf(t, len(wins) != 1, "%d of %d have the lease", len(wins), cap(wins))
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
			"cleaned": func(m *lease.Manager, _ txlock.Key) error { return testdb.Err(m.Purge(t.Context())) },
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
				db.Exec(t, "UPDATE lockstep_leases SET expires_us = 1, token = 1 WHERE name = ? AND slot > 0", key.String())
				wants(t, "the removal", remove(m, key), nil)
				left := db.Number(t, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot > 0", key.String())
				testdb.ErrorIf(t, (left == 0) != (name != "left"), "%d rows of readers are left", left)
				wants(t, "AcquireTx", testdb.Err(m.AcquireTx(t.Context(), tx, key)), txlock.ErrStaleSnapshot)
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
				tx := begin(t, newPool(t, db, true, tap.install(t)), sql.LevelRepeatableRead)
				reads(t, tx, counter(t, db))
				var once sync.Once
				var r *lease.Lease
				enter := func() { once.Do(func() { r = share(t, m, key) }) }
				if !late {
					enter()
				}
				tap.before("name: LeaseAsItIs ", func(string) { enter() })
				if err := testdb.Err(other.AcquireTx(limited(t, 2*time.Minute), tx, key)); !errors.Is(err, txlock.ErrBusy) {
					t.Fatalf("AcquireTx: %v, want ErrBusy", err) // nobody would come in any more
				}
				commit(t, tx)
				wants(t, "Renew of the reader", r.Renew(t.Context()), nil)
				must(t, acquired(other.AcquireShared(limited(t, 2*time.Minute), key)))
				release(t, r)
				release(t, acquire(t, m, key))
			})
		}
	})
}

// beginnings are those of the transactions that acquire leases: the isolation levels at which InnoDB
// locks gaps, and whether the transaction begins with a read.
var beginnings = []struct {
	level sql.IsolationLevel
	read  bool
}{{sql.LevelRepeatableRead, false}, {sql.LevelRepeatableRead, true}, {sql.LevelSerializable, true}}

// neighbourhood is where one trial looks at the rows beside those of a transaction.
type neighbourhood struct {
	db       *testdb.DB
	pool     *sql.DB
	m, other *lease.Manager
	level    sql.IsolationLevel
	read     bool // the transaction begins with a read
}

// amongNeighbours runs a test on every server over a guarded and a plain pool, for each
// case, however the transaction begins. Each trial has the table for itself, so that all rows are
// in one page: from REPEATABLE READ on InnoDB also locks the gap before the first row of a page.
func amongNeighbours[C any](t *testing.T, cases map[string]C, test func(t *testing.T, n neighbourhood, c C)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, guarded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/guarded=%t", engine, guarded), func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				for name, c := range cases {
					for _, b := range beginnings {
						if !t.Run(fmt.Sprintf("%s/%v/%t", name, b.level, b.read), func(t *testing.T) {
							db.Exec(t, "TRUNCATE TABLE lockstep_leases")
							pool := newPool(t, db, guarded)
							test(t, neighbourhood{db, pool, newManager(t, pool), newManager(t, pool), b.level, b.read}, c)
						}) {
							return // what waits for a gap does so everywhere, each time for minutes
						}
					}
				}
			})
		}
	}
}

// begin begins the transaction of a trial.
func (n neighbourhood) begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx := begin(t, n.pool, n.level)
	if n.read {
		reads(t, tx, counter(t, n.db))
	}
	return tx
}

// TestAcquireTxLocksNoOtherKey proves that a lease that is taken in a transaction locks no row
// and no gap but its own row, also if the key was leased shared before, and after plain reads:
// the leases of the keys before and behind it are guarded before, and renewed, released and acquired
// meanwhile, and every verb works on new keys there, in the same transaction, too.
func TestAcquireTxLocksNoOtherKey(t *testing.T) {
	amongNeighbours(t, map[string]func(t *testing.T, n neighbourhood, key txlock.Key){
		"exclusive": func(t *testing.T, n neighbourhood, key txlock.Key) { release(t, acquire(t, n.other, key)) },
		"shared":    func(t *testing.T, n neighbourhood, key txlock.Key) { release(t, share(t, n.other, key)) },
		"dead readers": func(t *testing.T, n neighbourhood, key txlock.Key) {
			share(t, n.other, key)
			n.db.Exec(t, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ? AND slot > 0", key.String())
		},
		"never": func(*testing.T, neighbourhood, txlock.Key) {},
	}, func(t *testing.T, n neighbourhood, use func(t *testing.T, n neighbourhood, key txlock.Key)) {
		ctx := limited(t, soon)
		key := named().String()
		before, own, behind := txlock.Named(key+":1"), txlock.Named(key+":2"), txlock.Named(key+":3")
		use(t, n, own)
		held := []*lease.Lease{acquire(t, n.other, before), share(t, n.other, behind)}
		guards := begin(t, n.pool, sql.LevelReadCommitted)
		for _, h := range held {
			guard(t, h, guards)
		}
		tx := n.begin(t)
		l := got(n.m.AcquireTx(ctx, tx, own))(t)
		commit(t, guards)
		for _, h := range held {
			wants(t, "Renew of a neighbour", h.Renew(ctx), nil)
			wants(t, "Release of a neighbour", h.Release(ctx), nil)
			release(t, acquire(t, n.other, h.Key()))
		}
		for i, suffix := range []string{":0", ":2", ":4"} { // around each of the three
			everyVerb(ctx, t, n.other, n.pool, fmt.Sprintf("%s%s%d", key, suffix, i))
		}
		again, err := n.m.AcquireTx(ctx, tx, txlock.Named(key+":2a"))
		wants(t, "AcquireTx of a new key in the same transaction", err, nil)
		commit(t, tx)
		release(t, l)
		if err == nil {
			release(t, again)
		}
	})
}

// everyVerb makes rows under new keys by each verb that does so.
func everyVerb(ctx context.Context, t *testing.T, m *lease.Manager, pool *sql.DB, key string) {
	t.Helper()
	for name, verb := range map[string]verb{
		"TryAcquire": tryExclusive, "TryAcquireShared": tryShared, "Acquire fairly": fairly, "Semaphore.TryAcquire": tryPermit,
		"AcquireTx": func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (l *lease.Lease, err error) {
			tx := begin(t, pool, sql.LevelRepeatableRead)
			defer commit(t, tx)
			return m.AcquireTx(ctx, tx, key)
		},
	} {
		l, err := verb(ctx, m, txlock.Named(key+":"+name))
		wants(t, name+" of a new key", err, nil)
		if err == nil {
			release(t, l)
		}
	}
}

// TestMakeBehindAForeignGap proves that no verb waits for longer than the server's limit where
// somebody has locked the gap in which its row would be, and that it leaves no session waiting.
func TestMakeBehindAForeignGap(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		key := named().String()
		release(t, acquire(t, m, txlock.Named(key+":1")))
		release(t, acquire(t, m, txlock.Named(key+":9")))
		foreign := begin(t, newPool(t, db, false), sql.LevelRepeatableRead)
		rows, err := foreign.Query("SELECT slot FROM lockstep_leases WHERE name > ? AND name < ? FOR UPDATE", key+":1", key+":9")
		wants(t, "the range", err, nil)
		wants(t, "the range", rows.Close(), nil)
		ctx := limited(t, 5*time.Minute)
		run, wait := sideBySide(t)
		for name, verb := range map[string]verb{
			"TryAcquire": tryExclusive, "TryAcquireShared": tryShared, "Semaphore": tryPermit,
			"AcquireTx": func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (*lease.Lease, error) {
				tx := begin(t, pool, sql.LevelRepeatableRead)
				defer rollback(t, tx)
				return m.AcquireTx(ctx, tx, key)
			},
		} {
			run(name, func(t *testing.T) {
				wants(t, name, testdb.Err(verb(ctx, m, txlock.Named(key+":5:"+name))), txlock.ErrBusy)
			})
		}
		wait()
		wants(t, "Acquire", testdb.Err(m.Acquire(ctx, txlock.Named(key+":5"), lease.WaitAtMost(100*time.Millisecond))), txlock.ErrWaitTimeout)
		testdb.ErrorIf(t, ctx.Err() != nil, "it took minutes: the server's innodb_lock_wait_timeout is 50 s")
		rollback(t, foreign)
		free(t, m, txlock.Named(key+":5"))
		free(t, m, txlock.Named(key+":5:TryAcquire"))
	})
}

// TestMakeKeepsTheSessionsLimit proves that the limit of lock waits of a session that has made
// rows is the program's afterwards.
func TestMakeKeepsTheSessionsLimit(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(1)
		m := newManager(t, pool)
		limit := func() (seconds int) {
			t.Helper()
			wants(t, "the limit", pool.QueryRow("SELECT @@SESSION.innodb_lock_wait_timeout").Scan(&seconds), nil)
			return seconds
		}
		wants(t, "SET", testdb.Err(pool.Exec("SET SESSION innodb_lock_wait_timeout = 17")), nil)
		id := testdb.ConnID(t, pool)
		release(t, acquire(t, m, named()))
		now := limit()
		testdb.ErrorIf(t, now != 17 || testdb.ConnID(t, pool) != id, "the limit is %d s, on connection %d that was %d", now, testdb.ConnID(t, pool), id)
	})
}

// TestRefusedAcquireTxLocksNothing proves that a transaction whose AcquireTx has found the row
// locked, and which stays open, locks nothing: the key is leased as before, and so are new keys
// around it.
func TestRefusedAcquireTxLocksNothing(t *testing.T) {
	amongNeighbours(t, map[string]bool{"never shared": false, "shared before": true}, func(t *testing.T, n neighbourhood, shared bool) {
		ctx := limited(t, 2*time.Minute)
		name := named().String()
		key := txlock.Named(name + ":2")
		if release(t, acquire(t, n.other, key)); shared {
			release(t, share(t, n.other, key))
		}
		release(t, acquire(t, n.other, txlock.Named(name+":3")))
		first := begin(t, n.pool, sql.LevelRepeatableRead)
		l := acquireTx(t, n.other, first, key)
		tx := n.begin(t)
		wants(t, "AcquireTx", testdb.Err(n.m.AcquireTx(ctx, tx, key)), txlock.ErrBusy)
		rollback(t, first)
		wants(t, "Release of what was rolled back", l.Release(ctx), txlock.ErrNotHeld)
		r, err := n.other.TryAcquireShared(ctx, key)
		wants(t, "TryAcquireShared", err, nil)
		if err == nil {
			release(t, r)
		}
		for _, suffix := range []string{":1", ":2a", ":4"} {
			everyVerb(ctx, t, n.other, n.pool, name+suffix)
		}
		wants(t, "Commit", tx.Commit(), nil)
	})
}

// TestAcquireTxWithBusinessChange proves that a lease and a change of the same transaction are
// committed together, or vanish together, also by a rollback to a savepoint, after which the lease
// can be acquired again; and that nobody sees the lease before the end.
func TestAcquireTxWithBusinessChange(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		for name, leased := range histories {
			for end, committed := range map[string]bool{"COMMIT": true, "ROLLBACK": false, "ROLLBACK TO SAVEPOINT s": false} {
				t.Run(name+"/"+end, func(t *testing.T) {
					t.Parallel()
					table, key := counter(t, db), keyOf(t, m, leased)
					tx := begin(t, pool, sql.LevelDefault)
					run(t, tx, "SAVEPOINT s")
					add(t, tx, table)
					l := acquireTx(t, m, tx, key)
					testdb.ErrorIf(t, inspect(t, other, key).Held, "it is seen before the end")
					quickly(t, "TryAcquire", func() {
						wants(t, "TryAcquire before the end", testdb.Err(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
					})
					again := l
					switch end {
					case "ROLLBACK":
						rollback(t, tx)
					case "ROLLBACK TO SAVEPOINT s":
						run(t, tx, end)
						if !leased {
							again = acquireTx(t, m, tx, key)
						}
						fallthrough
					default:
						commit(t, tx)
					}
					counts(t, db, table, map[bool]int64{true: 1}[committed])
					info := inspect(t, other, key)
					if held := committed || again != l; info.Held != held || held && (info.Owner != again.Owner() || info.Token != again.Token() || info.Holders != 1) {
						t.Errorf("after the %s: %+v, want owner %q and token %d", end, info, again.Owner(), again.Token())
					}
					if !committed {
						wants(t, "Renew of what was rolled back", l.Renew(t.Context()), txlock.ErrLost)
						wants(t, "Release of what was rolled back", l.Release(t.Context()), txlock.ErrNotHeld)
					}
					if committed || again != l {
						release(t, again)
					}
					free(t, other, key)
				})
			}
		}
	})
}

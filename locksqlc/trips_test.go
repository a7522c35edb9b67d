package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// tripped is a transaction with a lock that writes one row.
type tripped struct {
	name string
	run  way

	mariaDB int // round trips, where three are the lock, the write and COMMIT
	mysql   int // of MySQL without procedures
}

// joinFirst is a transaction of the program's own that locks first.
func joinFirst(lock verb) way {
	return func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return plainly(ctx, db, nil, func(tx *sql.Tx, scope *txlock.Scope) error {
			return errors.Join(lock(ctx, scope, key), write(tx))
		})
	}
}

var tripsCounted = []tripped{
	{"Run", running["Run"], 3, 4},
	{"Run with options", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, db, []txlock.Key{key}, write, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	}, 3, 5},
	{"Run of a new key", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, db, []txlock.Key{besides(key, rand.Text())}, write)
	}, 3, 5},
	{"Run of three keys", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, db, []txlock.Key{key, besides(key, "a"), besides(key, "b")}, write)
	}, 3, 5},
	{"Optimistic", running["Optimistic"], 3, 5},
	{"Do, which writes nothing", func(ctx context.Context, db *sql.DB, key txlock.Key, _ func(tx *sql.Tx) error) error {
		return locksqlc.Do(ctx, db, key, func(context.Context) error { return nil })
	}, 2, 3},
	{"TryDo, which writes nothing", func(ctx context.Context, db *sql.DB, key txlock.Key, _ func(tx *sql.Tx) error) error {
		return locksqlc.TryDo(ctx, db, key, func(context.Context) error { return nil })
	}, 2, 4},
	{"Join and Lock", joinFirst(verbs["Lock"]), 3, 4},
	{"Join and TryLock", joinFirst(verbs["TryLock"]), 3, 5},
	{"Join and WaitAtMost", joinFirst(verbs["WaitAtMost"]), 3, 5},
	{"Once of a new key", func(ctx context.Context, db *sql.DB, key txlock.Key, write func(tx *sql.Tx) error) error {
		return second(locksqlc.Once(ctx, db, besides(key, rand.Text()), write))
	}, 3, 4},
	{"Join and RLock", joinFirst(verbs["RLock"]), 3, 4},
	{"Join and RLock of a hashed key", joinFirst(func(ctx context.Context, s *txlock.Scope, _ txlock.Key) error {
		return second(s.RLock(ctx, hashed.Key(1)))
	}), 3, 4},
	{"Join and TryRLock", joinFirst(verbs["TryRLock"]), 3, 4},
	{"Join, WaitAtMost and RLock", joinFirst(verbs["RLock in time"]), 3, 4},
}

// TestTrips counts the round trips of a transaction that locks and writes a row. On MariaDB,
// and on MySQL with procedures, they are as many as those of the same transaction without the
// lock: the lock has that of BEGIN.
func TestTrips(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for _, without := range []bool{false, true} {
			if without && engine == testdb.MariaDB {
				continue
			}
			t.Run(fmt.Sprintf("%s/without procedures=%t", engine, without), func(t *testing.T) {
				db := testdb.Open(t, engine)
				if without {
					db = testdb.Shared(t, engine).OpenNamed(t, hashed.Key(1).Slot())
					db.DropProcedures(t)
				}
				table := db.CreateTable(t, "trips", "id INT PRIMARY KEY")
				trips, count := testdb.CountTrips(t)
				for _, v := range tripsCounted {
					pool := newPool(t, db.Config(count), true) // which prepares no text of other verbs
					pool.SetMaxOpenConns(1)
					key := uniqueKey(t, v.name)
					check(t, txlock.Ensure(t.Context(), pool, key, besides(key, "a"), besides(key, "b")))
					write := func(tx *sql.Tx) error {
						return second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1) ON DUPLICATE KEY UPDATE id = 1"))
					}
					check(t, v.run(t.Context(), pool, key, write)) // what a process asks a server once
					before := trips.Count()
					check(t, v.run(t.Context(), pool, key, write))
					want := v.mariaDB
					switch {
					case hasProcedures(engine) && !without:
					case engine == testdb.MySQL:
						want = v.mysql
					}
					if sent := trips.Since(before); len(sent) != want {
						t.Errorf("%s: %d round trips, want %d: %q", v.name, len(sent), want, sent)
					}
				}
			})
		}
	}
}

// TestOptimisticWithoutItsEnd drops the procedure that would compare the version and
// commit, after the one that has read the version: the transaction ends by statements, once.
func TestOptimisticWithoutItsEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		for _, name := range []string{"lockstep_compare_1", "lockstep_raise_1"} {
			db := testdb.Shared(t, db.Engine()).OpenNamed(t)
			table, key, runs := numbers(t, db), uniqueKey(t, name), 0
			pool := newPool(t, db.Config(), true)
			check(t, locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
				if runs++; runs == 1 {
					db.DropProcedures(t, name)
				}
				return second(tx.ExecContext(t.Context(), "UPDATE "+table+" SET v = v + 1"))
			}))
			version, err := txlock.ReadVersion(t.Context(), pool, key)
			check(t, err)
			if n := count(t, db.Admin(), "SELECT v FROM "+table); runs != 1 || n != 1 || version == 0 {
				t.Errorf("without %s: %d runs, %d updates, version %d", name, runs, n, version)
			}
		}
	})
}

// TestTripsOfABusyKey counts the round trips of a try that finds the key locked, which are
// one, and of a bounded wait for it, which are three: in a transaction that begins with it.
func TestTripsOfABusyKey(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		trips, counting := testdb.CountTrips(t)
		key, pool := uniqueKey(t, "busy"), newPool(t, db.Config(), true)
		check(t, txlock.Ensure(t.Context(), pool, key))
		holder := begin(t, pool)
		held := lock(t, join(t, holder), key)

		conn := takeConn(t, newPool(t, db.Config(counting), true))
		id, tx := testdb.ConnID(t, conn), begin(t, conn)
		scope, before := join(t, tx), trips.Count()
		isError(t, "TryLock of a key that is held", second(scope.TryLock(t.Context(), key)), txlock.ErrBusy)
		if n := trips.Count() - before; n != 1 {
			t.Errorf("a try took %d round trips, want 1", n)
		}
		check(t, errors.Join(scope.Verify(t.Context()), tx.Rollback()))

		tx = begin(t, conn)
		scope, before = join(t, tx), trips.Count()
		granted := db.Waiting(t, id, func() error { return second(scope.WaitAtMost(time.Minute).Lock(t.Context(), key)) })
		check(t, errors.Join(holder.Commit(), <-granted))
		if grant, _ := scope.Held(key); trips.Count()-before != 3 || grant.Token() <= held.Token() {
			t.Errorf("a wait took %d round trips, want 3, and its token is %d after %d", trips.Count()-before, grant.Token(), held.Token())
		}
		check(t, tx.Commit())
	})
}

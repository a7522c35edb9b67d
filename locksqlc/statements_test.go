package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// counted is a sequence of calls in a new transaction, and how many statements it sends
// on each kind of pool besides BEGIN and COMMIT. On a guarded pool of MariaDB the first
// statement of the lock is one with BEGIN, and a transaction without statements sends
// neither BEGIN nor COMMIT. A MySQL with procedures does as MariaDB does. A MariaDB without
// innodb_snapshot_isolation checks a snapshot as MySQL does without them.
type counted struct {
	name                                                   string
	run                                                    verb
	guardedMariaDB, guardedMySQL, plainMariaDB, plainMySQL int
	merges                                                 bool // its first statement goes with BEGIN
	reads                                                  bool // it is sent after a read, which is counted, too
}

var verbsCounted = []counted{
	{"Lock first", verbs["Lock"], 1, 1, 4, 6, true, false},
	{"Lock after a read", verbs["Lock"], 1 + 1, 1 + 3, 1 + 4, 1 + 6, false, true},
	{"Lock twice", inTurn(verbs["Lock"], verbs["Lock"]), 1, 1, 4 + 2, 6 + 4, true, false},
	{"TryLock", verbs["TryLock"], 1, 2, 4, 6, true, false},
	{"RLock", verbs["RLock"], 1, 1, 4, 5, true, false},
	{"TryRLock", verbs["TryRLock"], 1, 1, 4, 5, true, false},
	{"LockAny of 2", together((*txlock.Scope).LockAny, "a"), 1, 2, 4, 6, true, false},
	{"WaitAtMost Lock", within(time.Second, (*txlock.Scope).Lock), 1, 2, 4, 6, true, false},
	{"LockAll of 3", together((*txlock.Scope).LockAll, "a", "b"), 1, 2, 4, 7, true, false},
	{"RLockAll of 2", together((*txlock.Scope).RLockAll, "a"), 2, 2, 2 + 2*2, 2 + 2*3, true, false},
	{"LockAll of 1 and 1 shared", func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return second(s.LockAll(ctx, key, txlock.Shared(besides(key, "a"))))
	}, 2, 2, 2 + 2*2, 2 + 4 + 3, true, false},
	{"Version and CompareAndBump", raiseVersion(1), 2, 2, 2 + 4, 2 + 4, true, false},
	{"CompareAndBump twice", raiseVersion(2), 2, 2, 2 + 6, 2 + 6, true, false},
	{"CompareAndBump first", verbs["CompareAndBump"], 1, 1, 2 + 3, 2 + 3, true, false},
	{"CompareAndBump after a read", verbs["CompareAndBump"], 1 + 2, 1 + 2, 1 + 2 + 3, 1 + 2 + 3, false, true},
	{"Once", verbs["Once"], 1, 1, 2 + 2, 2 + 2, true, false},
	{"Verify", func(ctx context.Context, s *txlock.Scope, _ txlock.Key) error { return s.Verify(ctx) }, 1, 1, 2 + 1, 2 + 1, false, false},
	{"release", inTurn(), 0, 0, 2, 2, false, false},
}

// inTurn are calls of several verbs.
func inTurn(all ...verb) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) (err error) {
		for _, call := range all {
			err = errors.Join(err, call(ctx, s, key))
		}
		return err
	}
}

// raiseVersion reads a version, and compares and raises it so often.
func raiseVersion(times int) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		version, err := s.Version(ctx, key)
		for range times {
			err = errors.Join(err, s.CompareAndBump(ctx, key, version))
		}
		return err
	}
}

// hasProcedures reports whether the databases of the tests have lockstep's procedures.
func hasProcedures(engine testdb.Engine) bool {
	return engine == testdb.MySQL && !testdb.WithoutProcedures()
}

// old reports whether the transaction may have an old snapshot.
func (v counted) old(guarded bool) bool { return !guarded || v.name == "Lock after a read" }

// TestStatementsPerVerb counts the SQL statements that the server sees.
func TestStatementsPerVerb(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for _, guarded := range []bool{true, false} {
			for _, v := range verbsCounted {
				t.Run(fmt.Sprintf("%s/guarded=%t/%s", engine, guarded, v.name), func(t *testing.T) {
					t.Parallel()
					as, merges := engine, v.merges && engine == testdb.MariaDB
					switch {
					case guarded && hasProcedures(engine):
						as, merges = testdb.MariaDB, v.merges
					case v.old(guarded) && !testdb.Open(t, engine).HasSnapshotIsolation(t):
						as = testdb.MySQL
					}
					want := map[string]int{
						"mariadb/true": v.guardedMariaDB, "mysql/true": v.guardedMySQL,
						"mariadb/false": v.plainMariaDB, "mysql/false": v.plainMySQL,
					}[fmt.Sprintf("%s/%t", as, guarded)]
					switch {
					case guarded && v.name == "release":
						want -= 2
					case guarded && merges:
						want--
					}
					if got := counter(t, engine, guarded, v)(); got != want {
						t.Errorf("%d statements, want %d", got, want)
					}
				})
			}
		}
	}
}

// TestStatementsOfANewKey counts those of the first lock of a key in a transaction that has read.
func TestStatementsOfANewKey(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		tx := begin(t, newPool(t, db.Config(interpolating), true), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		want := 2
		switch {
		case hasProcedures(db.Engine()):
			want = 1
		case db.Engine() == testdb.MySQL:
			want = 3 // the first finds out that there are no procedures
		}
		scope, before := join(t, tx), questions(t, tx)
		lock(t, scope, uniqueKey(t, "new"))
		if n := questions(t, tx) - before - 1; n != want {
			t.Errorf("%d statements, want %d", n, want)
		}
	})
}

// TestAllVerbsAreCounted proves that TestStatementsPerVerb counts each verb that sends statements of
// its own. Those that go with the program's are counted by TestTrips.
func TestAllVerbsAreCounted(t *testing.T) {
	scope := reflect.TypeFor[*txlock.Scope]()
	for i := range scope.NumMethod() {
		verb := scope.Method(i)
		sends := verb.Type.NumIn() > 1 && verb.Type.In(1) == reflect.TypeFor[context.Context]() && verb.Type.Out(0) != verb.Type.In(1)
		if sends && !slices.ContainsFunc(verbsCounted, func(v counted) bool { return slices.Contains(strings.Fields(v.name), verb.Name) }) {
			t.Errorf("no row of verbsCounted is named for %s", verb.Name)
		}
	}
}

// counter opens a pool, and returns a function that runs a sequence in a transaction,
// with join and release, and asks the server how many statements it has received.
func counter(tb testing.TB, engine testdb.Engine, guarded bool, v counted) func() int {
	tb.Helper()
	ctx := tb.Context()
	db := testdb.Open(tb, engine)
	pool := locksuite.OpenSQL(guarded, locksuite.BeginTx)(tb, db.Config(interpolating)).DB()
	key := uniqueKey(tb, "counted")
	check(tb, txlock.Ensure(ctx, pool, key, besides(key, "a"), besides(key, "b")))
	conn := takeConn(tb, pool)
	asked := begin(tb, conn) // asks whether the server is on a cluster, once per process and database, and has procedures, once per pool
	scope := join(tb, asked)
	lock(tb, scope, besides(key, "asked"))
	check(tb, errors.Join(txlock.Internal(bridge.Pass{}).OnePrimary(ctx, scope), asked.Rollback()))
	return func() int {
		before, tx := questions(tb, conn), begin(tb, conn)
		if guarded {
			join(tb, tx) // which sends nothing, and no more does the next one
		}
		scope := join(tb, tx)
		if v.reads {
			count(tb, tx, "SELECT COUNT(*) FROM lockstep_leases")
		}
		check(tb, v.run(ctx, scope, key))
		check(tb, tx.Commit())
		const beginCommitAndCount = 3
		return questions(tb, conn) - before - beginCommitAndCount
	}
}

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

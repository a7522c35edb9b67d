package locksqlc_test

import (
	"context"
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

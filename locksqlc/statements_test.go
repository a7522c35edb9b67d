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

	"github.com/go-sql-driver/mysql"

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
	run                                                    func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error
	guardedMariaDB, guardedMySQL, plainMariaDB, plainMySQL int
	merges                                                 bool // its first statement goes with BEGIN
}

var verbsCounted = []counted{
	{"Lock first", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.Lock(ctx, key))
	}, 1, 1, 4, 6, true},
	{"Lock after a read", func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM lockstep_leases").Scan(&n); err != nil {
			return err
		}
		return second(s.Lock(ctx, key))
	}, 1 + 1, 1 + 3, 1 + 4, 1 + 6, false},
	{"Lock twice", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		_, err := s.Lock(ctx, key)
		_, again := s.Lock(ctx, key)
		return errors.Join(err, again)
	}, 1, 1, 4 + 2, 6 + 4, true},
	{"TryLock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.TryLock(ctx, key))
	}, 1, 2, 4, 6, true},
	{"RLock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.RLock(ctx, key))
	}, 1, 1, 4, 5, true},
	{"TryRLock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.TryRLock(ctx, key))
	}, 1, 1, 4, 5, true},
	{"LockAny of 2", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.LockAny(ctx, key, besides(key, "a")))
	}, 1, 2, 4, 6, true},
	{"WaitAtMost Lock", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.WaitAtMost(time.Second).Lock(ctx, key))
	}, 1, 2, 4, 6, true},
	{"LockAll of 3", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.LockAll(ctx, key, besides(key, "a"), besides(key, "b")))
	}, 1, 2, 4, 7, true},
	{"RLockAll of 2", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.RLockAll(ctx, key, besides(key, "a")))
	}, 2, 2, 2 + 2*2, 2 + 2*3, true},
	{"LockAll of 1 and 1 shared", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.LockAll(ctx, key, txlock.Shared(besides(key, "a"))))
	}, 2, 2, 2 + 2*2, 2 + 4 + 3, true},
	{"Version and CompareAndBump", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		version, err := s.Version(ctx, key)
		if err != nil {
			return err
		}
		return s.CompareAndBump(ctx, key, version)
	}, 2, 2, 2 + 4, 2 + 4, true},
	{"CompareAndBump twice", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		version, err := s.Version(ctx, key)
		return errors.Join(err, s.CompareAndBump(ctx, key, version), s.CompareAndBump(ctx, key, version))
	}, 2, 2, 2 + 6, 2 + 6, true},
	{"CompareAndBump first", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return s.CompareAndBump(ctx, key, 0)
	}, 1, 1, 2 + 3, 2 + 3, true},
	{"CompareAndBump after a read", func(ctx context.Context, tx *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM lockstep_leases").Scan(new(int)); err != nil {
			return err
		}
		return s.CompareAndBump(ctx, key, 0)
	}, 1 + 2, 1 + 2, 1 + 2 + 3, 1 + 2 + 3, false},
	{"Once", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, key txlock.Key) error {
		return second(s.Once(ctx, key))
	}, 1, 1, 2 + 2, 2 + 2, true},
	{"Verify", func(ctx context.Context, _ *sql.Tx, s *txlock.Scope, _ txlock.Key) error { return s.Verify(ctx) }, 1, 1, 2 + 1, 2 + 1, false},
	{"release", func(context.Context, *sql.Tx, *txlock.Scope, txlock.Key) error { return nil }, 0, 0, 2, 2, false},
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
	pool := locksuite.OpenSQL(guarded, locksuite.BeginTx)(tb, db.Config(func(c *mysql.Config) { c.InterpolateParams = true })).DB()
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
		check(tb, v.run(ctx, tx, join(tb, tx), key))
		check(tb, tx.Commit())
		const beginCommitAndCount = 3
		return questions(tb, conn) - before - beginCommitAndCount
	}
}

// besides is another key of the same subtest.
func besides(key txlock.Key, name string) txlock.Key { return txlock.Named(key.String() + "/" + name) }

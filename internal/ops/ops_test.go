package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// onServers runs a test on each server, in a database without the rows of hashed keys, unless it is
// made by another function.
func onServers(t *testing.T, test func(t *testing.T, db *testdb.DB), made ...func(testing.TB, testdb.Engine) *testdb.DB) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) { test(t, append(made, shared)[0](t, engine)) })
}

// shared makes a database on the server of all tests.
func shared(tb testing.TB, engine testdb.Engine) *testdb.DB {
	return testdb.Shared(tb, engine).OpenLeases(tb)
}

// TestAlone runs tests that fail where others read the server's list of transactions, one after the
// other on a server of their own.
func TestAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, test := range []struct {
			name string
			run  func(*testing.T, *testdb.DB)
		}{{"End", end}, {"EndOfPrepared", endOfPrepared}, {"OldList", oldList}, {"BeyondUTF8MB3", beyondUTF8MB3}} {
			t.Run(test.name, func(t *testing.T) { test.run(t, db.Server().OpenLeases(t)) })
		}
	}, withArgs())
}

// withArgs makes a database on a server of its own, whose lists nobody else reads.
func withArgs(args ...string) func(testing.TB, testdb.Engine) *testdb.DB {
	return func(tb testing.TB, engine testdb.Engine) *testdb.DB {
		return testdb.Dedicated(tb, engine, testdb.Args(args...)).OpenLeases(tb)
	}
}

// TestLookAtMany proves that a look finds all locks and waiters, also new ones, and that most looks cost the server
// a fraction of one that reads the tables from end to end.
func TestLookAtMany(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		holders, each, waiters := 4, testdb.Long(10, 250), testdb.Long(10, 100)
		pool := db.Connect(t)
		fill(t, db, testdb.Long(1000, 300_000))
		holdLeases(t, db, testdb.Long(10, 20_000))
		keys := leasetest.Many(holders*each + 1)
		must(t, txlock.Ensure(t.Context(), pool, keys...))
		for i := range holders {
			scope := begin(t, pool)
			for _, key := range keys[i*each : (i+1)*each] {
				must(t, second(scope.Lock(t.Context(), key)))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer func() { cancel(); all.Wait() }()
		for range waiters {
			scope := begin(t, pool)
			all.Go(func() { _, _ = scope.Lock(ctx, keys[0]) }) // it is cancelled
		}
		admin, cpu := watched(t, db)
		room := ops.New(admin)
		var costs []time.Duration
		deadline := time.Now().Add(time.Minute)
		for found := 0; found < 5; {
			testdb.Refresh()
			began := cpu()
			p := leasetest.Got(room.Look(t.Context()))(t)
			costs = append(costs, cpu()-began)
			if locks := exclusive(p); locks == holders*each && len(p.Waits) == waiters && p.Waits[0].Key == keys[0].String() {
				found++
			} else if time.Now().After(deadline) {
				t.Fatalf("%d locks and %d waits were seen, not %d and %d", locks, len(p.Waits), holders*each, waiters)
			}
		}
		slices.Sort(costs)
		t.Logf("looks cost the server %v", costs)
		usual, whole := costs[len(costs)/2], costs[len(costs)-1]
		testdb.ErrorIf(t, usual > testdb.Long(time.Hour, whole/5), "a look costs the server %v, and one that reads all %v", usual, whole)
		scope := begin(t, pool)
		must(t, second(scope.Lock(t.Context(), keys[len(keys)-1])))
		lookUntil(t, ops.New(admin), func(p *ops.Picture) bool { return exclusive(p) == holders*each+1 })
	}, testdb.Long(shared, withArgs()))
}

// numbers is a table of the numbers n below most.
func numbers(most int) string {
	const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	sum, from := "0", "(SELECT 0) none"
	for power := 1; power < most; power *= 10 {
		sum += fmt.Sprintf(" + %d * d%[1]d.d", power)
		from += fmt.Sprintf(", %s d%d", digits, power)
	}
	return fmt.Sprintf("(SELECT %s AS n FROM %s HAVING n < %d) numbers", sum, from, most)
}

// fill makes rows that nobody holds.
func fill(t *testing.T, db *testdb.DB, rows int) {
	t.Helper()
	db.Exec(t, fmt.Sprintf("INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) SELECT CONCAT('idle:', n), 2, '-', 0, 1 FROM %s", numbers(rows)))
}

// lookUntil looks until the picture shows what is asked for.
func lookUntil(t *testing.T, room interface {
	Look(ctx context.Context, keys ...string) (*ops.Picture, error)
}, shows func(*ops.Picture) bool) *ops.Picture {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; testdb.Refresh() {
		p := leasetest.Got(room.Look(t.Context()))(t)
		if !old(p) && shows(p) {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatalf("what is looked for was not seen in a minute: %+v", p)
		}
	}
}

// old tells whether the picture was taken without the server's list of transactions, since that was old.
func old(p *ops.Picture) bool {
	return slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool { return strings.Contains(g.What, "is old") })
}

// exclusive counts the locks that were granted, without the neighbours that MySQL locks.
func exclusive(p *ops.Picture) (n int) {
	for _, l := range p.Locks {
		if l.Mode == ops.Exclusive && l.Token > 0 && l.Owner != "" {
			n++
		}
	}
	return n
}

// watched returns a pool of one connection, and how long a processor has worked for it,
// which is 0 where the server runs on another machine.
func watched(t *testing.T, db *testdb.DB) (*sql.DB, func() time.Duration) {
	t.Helper()
	pool := db.ConnectAdmin(t, func(c *mysql.Config) { c.InterpolateParams = true })
	pool.SetMaxOpenConns(1)
	query := "SELECT tid FROM information_schema.PROCESSLIST WHERE id = CONNECTION_ID()"
	if db.Engine() == testdb.MySQL {
		query = "SELECT thread_os_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID()"
	}
	var thread int
	must(t, pool.QueryRowContext(t.Context(), query).Scan(&thread))
	return pool, func() time.Duration {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", thread))
		if err != nil {
			return 0
		}
		ns := leasetest.Got(strconv.ParseInt(strings.Fields(string(text))[0], 10, 64))(t)
		return time.Duration(ns)
	}
}

func begin(t *testing.T, pool *sql.DB) *txlock.Scope {
	t.Helper()
	_, scope := beginTx(t, pool)
	return scope
}

// beginTx begins a transaction, which is rolled back at the end of the test.
func beginTx(t *testing.T, pool *sql.DB) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	tx := leasetest.Got(pool.BeginTx(t.Context(), nil))(t)
	t.Cleanup(func() { _ = tx.Rollback() })
	scope := leasetest.Got(txlock.Join(t.Context(), tx))(t)
	return tx, scope
}

// lock locks keys.
func lock(t *testing.T, scope *txlock.Scope, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, second(scope.Lock(t.Context(), txlock.Named(name))))
	}
}

func second[T any](_ T, err error) error { return err }

var must, wants = leasetest.Must, leasetest.Wants

// TestRowsThatLeaveTheMemory proves that locks and waits are seen when the server has moved the
// pages of their rows out of its memory, on both servers: they list such locks without a row.
func TestRowsThatLeaveTheMemory(t *testing.T) {
	lists := map[testdb.Engine]string{testdb.MariaDB: "information_schema.INNODB_LOCKS", testdb.MySQL: "performance_schema.data_locks"}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		db.Exec(t, "CREATE TABLE many (id INT PRIMARY KEY AUTO_INCREMENT, filler CHAR(250) NOT NULL DEFAULT 'x')")
		db.Exec(t, "INSERT INTO many (id) VALUES (1), (2), (3), (4), (5), (6), (7), (8)")
		for range 14 {
			db.Exec(t, "INSERT INTO many (filler) SELECT filler FROM many")
		}
		pool, key := db.Connect(t), txlock.Named("order:42")
		must(t, second(begin(t, pool).Lock(t.Context(), key)))
		tx, scope := beginTx(t, pool)
		db.KeepWaiting(t, tx, func(ctx context.Context) error { _, err := scope.Lock(ctx, key); return err })
		faded := func() bool {
			var rows, n int
			must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM many WHERE filler = 'y'").Scan(&rows))
			testdb.Refresh()
			must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+lists[db.Engine()]+" WHERE lock_type = 'RECORD' AND lock_data IS NULL").Scan(&n))
			return n > 0
		}
		if !testdb.Await(time.Minute, faded) {
			t.Fatal("the rows stay in memory")
		}
		lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool {
			return len(p.Locks) == 1 && p.Locks[0].Key == "order:42" && p.Locks[0].Token > 0 &&
				len(p.Waits) == 1 && p.Waits[0].Key == "order:42" && slices.Equal(p.Waits[0].Blockers, []uint64{p.Locks[0].Session}) &&
				!slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool { return strings.Contains(g.What, "memory") })
		})
	}, withArgs("--innodb-buffer-pool-size=8M"))
}

// oldList proves that a look finds what is new although others look, and tells
// where they never pause: the server doesn't make its list of transactions anew then.
func oldList(t *testing.T, db *testdb.DB) {
	pool, key := db.Connect(t), txlock.Named("order:42")
	prepared := txlock.Named("prepared") // beside it, who isn't on a list may have no session
	must(t, txlock.Ensure(t.Context(), pool, prepared))
	detach(t, db, pool, prepared)
	count := func() {
		var n int
		if err := db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.INNODB_TRX").Scan(&n); err != nil {
			t.Error(err) // it is called beside the test, too
		}
	}
	count()
	tx, scope := beginTx(t, pool)
	_, err := scope.Lock(t.Context(), key)
	must(t, err)
	count() // a look of others at the same time
	p, err := ops.New(db.Admin()).Look(t.Context())
	must(t, err)
	s := p.Sessions[uint64(testdb.ConnID(t, tx))]
	testdb.ErrorIf(t, old(p) || len(p.Locks) != 2 || db.Engine() == testdb.MySQL && s.RowLocks == 0, "one look beside another's shows %+v", p)

	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				count()
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	testdb.Refresh()
	tx, scope = beginTx(t, pool) // which is not on the list
	lock(t, scope, "order:43")
	told := testdb.Await(time.Minute, func() bool { // a busy machine pauses for it
		p, err = ops.New(db.Admin()).Look(t.Context())
		return err != nil || old(p)
	})
	must(t, err)
	if !told {
		t.Fatalf("a look beside one that never pauses shows %+v", p)
	}
	own := slices.IndexFunc(p.Locks, func(l ops.Lock) bool { return l.Key == "order:43" })
	if own < 0 || p.Locks[own].Session != uint64(testdb.ConnID(t, tx)) || p.Locks[own].Detached {
		t.Errorf("beside an old list, the locks are %#v", p.Locks)
	}
	if i := slices.IndexFunc(p.Locks, func(l ops.Lock) bool { return l.Key == "prepared" }); i >= 0 && p.Locks[i].Endable() {
		t.Errorf("beside an old list, the lock without a session is %#v", p.Locks[i])
	}
	var done []ops.Lock
	told = testdb.Await(time.Minute, func() bool {
		done, err = ops.New(db.Admin()).End(t.Context(), func(l ops.Lock) bool { return l.Key == "nobody's" })
		return err != nil
	})
	testdb.ErrorIf(t, !told || !errors.Is(err, ops.ErrUnknown) || len(done) > 0, "beside an old list, End has ended %+v: %v", done, err)
}

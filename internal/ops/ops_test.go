package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
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
				must(t, testdb.Err(scope.Lock(t.Context(), key)))
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
			p := testdb.Got(room.Look(t.Context()))(t)
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
		must(t, testdb.Err(scope.Lock(t.Context(), keys[len(keys)-1])))
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
		p := testdb.Got(room.Look(t.Context()))(t)
		if !old(p) && shows(p) {
			return p
		}
		testdb.FatalIf(t, time.Now().After(deadline), "what is looked for was not seen in a minute: %+v", p)
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
		ns := testdb.Got(strconv.ParseInt(strings.Fields(string(text))[0], 10, 64))(t)
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
	tx := testdb.Begin(t, pool)
	return tx, testdb.Got(txlock.Join(t.Context(), tx))(t)
}

// lock locks keys.
func lock(t *testing.T, scope *txlock.Scope, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, testdb.Err(scope.Lock(t.Context(), txlock.Named(name))))
	}
}

var must, wants = testdb.Must, testdb.Wants

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
		must(t, testdb.Err(begin(t, pool).Lock(t.Context(), key)))
		tx, scope := beginTx(t, pool)
		db.KeepWaiting(t, tx, func(ctx context.Context) error { _, err := scope.Lock(ctx, key); return err })
		faded := func() bool {
			var rows, n int
			must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM many WHERE filler = 'y'").Scan(&rows))
			testdb.Refresh()
			must(t, db.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+lists[db.Engine()]+" WHERE lock_type = 'RECORD' AND lock_data IS NULL").Scan(&n))
			return n > 0
		}
		testdb.FatalIf(t, !testdb.Await(time.Minute, faded), "the rows stay in memory")
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
	must(t, testdb.Err(scope.Lock(t.Context(), key)))
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
	testdb.FatalIf(t, !told, "a look beside one that never pauses shows %+v", p)
	own := slices.IndexFunc(p.Locks, func(l ops.Lock) bool { return l.Key == "order:43" })
	testdb.ErrorIf(t, own < 0 || p.Locks[own].Session != uint64(testdb.ConnID(t, tx)) || p.Locks[own].Detached, "beside an old list, the locks are %#v", p.Locks)
	i := slices.IndexFunc(p.Locks, func(l ops.Lock) bool { return l.Key == "prepared" })
	testdb.ErrorIf(t, i >= 0 && p.Locks[i].Endable(), "beside an old list, the lock without a session is %#v", p.Locks)
	var done []ops.Lock
	told = testdb.Await(time.Minute, func() bool {
		done, err = ops.New(db.Admin()).End(t.Context(), func(l ops.Lock) bool { return l.Key == "nobody's" })
		return err != nil
	})
	testdb.ErrorIf(t, !told || !errors.Is(err, ops.ErrUnknown) || len(done) > 0, "beside an old list, End has ended %+v: %v", done, err)
}

// modes are variables of sessions under which all statements do the same.
var modes = map[testdb.Engine][]string{
	testdb.MariaDB: {"sql_mode = 'ORACLE'", "sql_mode = 'ORACLE,EMPTY_STRING_IS_NULL'", "sql_mode = 'EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT'", "sql_mode = 'MSSQL,TIME_ROUND_FRACTIONAL'", "sql_mode = 'DB2,POSTGRESQL'"},
	testdb.MySQL:   {"sql_mode = 'TIME_TRUNCATE_FRACTIONAL,ONLY_FULL_GROUP_BY'"},
}

// everywhere are those of both servers.
var everywhere = []string{
	"sql_mode = ''", "sql_mode = 'ANSI,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE'", "sql_mode = 'TRADITIONAL,NO_UNSIGNED_SUBTRACTION,NO_AUTO_VALUE_ON_ZERO'",
	"max_join_size = 1000", "sql_select_limit = 1", "sql_safe_updates = 1", "group_concat_max_len = 4, div_precision_increment = 0", "time_zone = '+05:30', lc_time_names = 'de_DE', collation_connection = utf8mb4_bin", "sql_auto_is_null = 1",
}

// scanning are the queries that are sent by rawsql.Scanning, and Big for others.
var scanning = []string{"ListLeases", "IdleNamed", "ExpiredOnce", "ListQueues", "ListJobs", "InspectLease"}

// notSent are the names in package rawsql that are no statements, or parts of one.
var notSent = []string{
	"NoAutocommit", "OtherCharset", "OtherEngine", "DirtyReads", "FixedClock", "clockMoves", "SessionLevel", "LevelBegin", "SessionWords", "SeesOwnID", "Settings", "SettingsBegin", "For", "NoWait", "RefuseStale", "AllowStale", "InCase", "AtMost", "HintAtMost", "Clock", "ClockAfterWait", "Inline", "Text", "SQL", "LockProcedure", "CompareProcedure", "ForUpdate", "tiDBSettings", "tiDBBegan", "vitessSettings", "Nonce", "Limited",
	"Kill", "GroupView", // which ends what is tried, or needs a group
}

// ofOneServer are the statements that only one of the servers knows.
var ofOneServer = []string{"LockManyReturning"}

// TestModes sends every statement of packages gen and rawsql, and what reads the views, under
// every mode: each does what it does by default.
func TestModes(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		must(t, schema.Install(t.Context(), db.Admin()))
		must(t, schema.InstallViews(t.Context(), db.Admin()))
		for _, seed := range []string{
			"INSERT INTO lockstep_locks SELECT CONCAT('', slot), 5, 'me', 1, 6 FROM lockstep_centers WHERE slot < 2000",
			"INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) SELECT CONCAT('', slot), s.n, '1', IF(slot < 9, ';1', ''), 1, 1, IF(slot < 9, 1 << 60, 1), 0, 1 FROM lockstep_centers, (SELECT -1 n UNION SELECT 0 UNION SELECT 1) s WHERE slot < 2000",
			"INSERT INTO lockstep_once VALUES ('1', '', '', 1, 1), ('2', '', '', 1, 1)",
			"INSERT INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) SELECT CONCAT('', slot), 1, 1, 1, '', 1, 0, 1, 1, '', 1 FROM lockstep_centers WHERE slot < 2000",
			"ANALYZE TABLE lockstep_locks, lockstep_leases, lockstep_once, lockstep_jobs",
		} {
			db.Exec(t, seed)
		}
		statements := texts(t, db.Engine() == testdb.MariaDB)
		usual := replies(t, db.Admin(), "sql_mode = 'STRICT_TRANS_TABLES'", statements)
		for _, mode := range slices.Concat(modes[db.Engine()], everywhere) {
			switch variable, _, _ := strings.Cut(mode, " "); variable {
			case "max_join_size":
				delete(statements, "IdleLeases") // Purge is refused there
			case "sql_auto_is_null":
				delete(statements, "LockThen") // they are sent without the program's statement then
				delete(statements, "WriteAndCommit")
			}
			for name, got := range replies(t, db.Admin(), mode, statements) {
				want := usual[name]
				testdb.ErrorIf(t, got != want, "%s: %s is answered %q, and usually %q", mode, name, got, want)
			}
			variable, value, _ := strings.Cut(mode, " = ")
			if !strings.Contains(value, ", ") {
				pool := open(t, db, variable, value)
				wants(t, fmt.Sprintf("%s: Check", mode), schema.Check(t.Context(), pool), nil)
				must(t, testdb.Err(ops.New(pool).Jobs(t.Context())))
			}
		}
	}, testdb.Fresh)
}

// open returns an administrator's pool whose sessions have the variable.
func open(t *testing.T, db *testdb.DB, variable, value string) *sql.DB {
	t.Helper()
	return db.ConnectAdmin(t, func(c *mysql.Config) { c.Params = map[string]string{variable: value} })
}

// texts returns the statements by name: all of gen, and all of rawsql.
func texts(t *testing.T, mariaDB bool) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, text := range declared(t, "../../gen") {
		if !strings.HasPrefix(text, "-- name: ") {
			continue
		}
		name := strings.Fields(text)[2]
		all[name] = text
		if slices.Contains(scanning, name) {
			all[name] = rawsql.Big(text)
		}
	}
	holds := []rawsql.Hold{{Name: "1", Owner: "1", Hold: ";1", Token: 1}, {Name: "2", Owner: "1", Hold: ";1", Token: 1}}
	wanted := []rawsql.Wanted{{Name: "200", Hold: ";1", Owner: "1", Label: "1", TTLUs: 1, NotAfter: 1 << 60}}
	one, wire := rawsql.Named, rawsql.MySQL
	if mariaDB {
		wire = rawsql.MariaDB
	}
	raw := map[string]string{
		"Probe": rawsql.Probe, "ProbeSavepoint": rawsql.ProbeSavepoint, "ReleaseProbeSavepoint": rawsql.ReleaseProbeSavepoint, "Facts": rawsql.Facts, "Progress": rawsql.Progress, "Uptime": rawsql.Uptime, "Galera": rawsql.Galera,
		"MaxPacket": rawsql.MaxPacket, "Session": rawsql.Session, "Process": wire.Process(), "HasProcess": wire.HasProcess(),
		"SetQueueWait": wire.SetQueueWait(28800), "LockWaitSeconds": rawsql.LockWaitSeconds,
		"SetLockWait": rawsql.SetLockWait(50), "ShortenLockWait": rawsql.ShortenLockWait, "RestoreLockWait": rawsql.RestoreLockWait,
		"ReadCommitted": rawsql.ReadCommitted, "RenewMany": rawsql.RenewMany(holds), "HeldMany": rawsql.HeldMany(holds, 1),
		"DeleteReaders": rawsql.DeleteReaders([]byte("1"), []int64{1, 2}), "ReadersDone": rawsql.ReadersDone([]byte("1"), []int64{1, 2}),
		"AcquireMany": rawsql.AcquireMany(wanted, 1), "ReleaseMany": rawsql.ReleaseMany(wanted, 1),
		"LockMany": one.LockMany(2), "TouchMany": one.TouchMany(2), "TokensMany": one.TokensMany(2), "SnapshotMany": one.SnapshotMany(2),
		"InTurn": rawsql.InTurn(all["AcquireLease"]), "SkipShared": wire.SkipShared(all["NamedForShare"]), "HintNoWait": rawsql.HintNoWait(all["NamedForUpdate"]),
		"Big": rawsql.Big("SELECT COUNT(*) FROM lockstep_centers"), "Look": rawsql.Look("SELECT COUNT(*) FROM lockstep_centers"),
	}
	const write = "UPDATE lockstep_once SET keep_us = keep_us + 1 WHERE name = ?"
	raw["Refuse"], _ = wire.Refuse(all["AcquireLease"], false)
	raw["Refusing"], raw["Unlocked"] = wire.Refusing(all["AcquireLease"]), rawsql.Unlocked(all["IdleNamed"])
	for name := range declared(t, "../rawsql") {
		_, has := raw[name]
		testdb.ErrorIf(t, !has && !slices.Contains(notSent, name) && !slices.Contains(ofOneServer, name), "the statement %s of package rawsql isn't tried", name)
	}
	render := func(name string) func(s rawsql.Statement, ok bool) {
		return func(s rawsql.Statement, ok bool) {
			testdb.FatalIf(t, !ok, "%s shares no text", name)
			raw[name], _ = s.SQL()
		}
	}
	lock := rawsql.Statement{Query: "UPDATE lockstep_centers SET token = LAST_INSERT_ID(7) WHERE slot = 1"}
	if mariaDB {
		raw["LockManyReturning"] = one.LockManyReturning(2)
		render("Commit")(wire.Commit(rawsql.Statement{Query: all["CompareAndBumpNamed"]}))
		render("Open")(wire.Open(rawsql.Begin{}, rawsql.Statement{Query: all["LockNamed"]}, true))
		render("Open with a center")(wire.Open(rawsql.Begin{}, rawsql.Statement{Query: all["LockCenter"]}, true))
	} else {
		lock = rawsql.Statement{Procedure: rawsql.LockProcedure, Args: []any{"1", nil, "1", 1}}
		render("Open")(wire.Open(rawsql.Begin{}, lock, true))
		raw["CALL try_1"], _ = rawsql.Statement{Procedure: "lockstep_try_1", Args: lock.Args}.SQL()
	}
	render("LockThen")(wire.LockThen(rawsql.Begin{}, lock, "SELECT ?", 1))
	render("WriteAndCommit")(wire.WriteAndCommit(write, 1, 7))
	maps.Copy(all, raw)
	all["held"], all["waits"] = rawsql.Big("SELECT kind, name FROM lockstep_held WHERE name = '1' LIMIT 9"), rawsql.Big("SELECT * FROM lockstep_waits")
	return all
}

// declared returns the constants of a package with their texts, and its exported functions that return one.
func declared(t *testing.T, dir string) map[string]string {
	t.Helper()
	packages := testdb.Got(parser.ParseDir(token.NewFileSet(), dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0))(t) //nolint:staticcheck // the files are enough
	all := make(map[string]string)
	for _, p := range packages {
		for _, file := range p.Files {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					if text, ok := firstText(n.Values); ok && (n.Names[0].IsExported() || strings.HasPrefix(text, "-- name: ")) {
						all[n.Names[0].Name] = text
					}
				case *ast.FuncDecl:
					if results := n.Type.Results; n.Name.IsExported() && results != nil && fmt.Sprint(results.List[0].Type) == "string" {
						all[n.Name.Name] = ""
					}
					return false
				}
				return true
			})
		}
	}
	return all
}

// firstText returns the text with which a constant begins.
func firstText(values []ast.Expr) (string, bool) {
	if len(values) == 0 {
		return "", false
	}
	e := values[0]
	for {
		sum, ok := e.(*ast.BinaryExpr)
		if !ok {
			break
		}
		e = sum.X
	}
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}

// replies returns how each statement is answered under a mode, each in a transaction that is rolled back: the number
// of the error, or how many rows, and which columns of the first are NULL.
func replies(t *testing.T, pool *sql.DB, mode string, statements map[string]string) map[string]string {
	t.Helper()
	conn := testdb.Got(pool.Conn(t.Context()))(t)
	defer func() { _ = conn.Close() }()
	must(t, testdb.Err(conn.ExecContext(t.Context(), "SET @lockstep_lock_wait = 50, "+mode)))
	defer func() {
		_, err := conn.ExecContext(context.WithoutCancel(t.Context()), "SET sql_mode = DEFAULT, max_join_size = DEFAULT, sql_big_selects = 1, sql_select_limit = DEFAULT, sql_safe_updates = 0, sql_auto_is_null = 0, group_concat_max_len = DEFAULT, div_precision_increment = DEFAULT, time_zone = DEFAULT, lc_time_names = DEFAULT, collation_connection = DEFAULT")
		testdb.ErrorIf(t, err != nil, "%v", err)
	}()
	answers := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(statements)) {
		text := statements[name]
		var args []any
		for before := range strings.SplitAfterSeq(text, "?") {
			if strings.HasSuffix(before, "LIMIT ?") {
				args = append(args, int64(1))
			} else if strings.HasSuffix(before, "?") {
				args = append(args, "1") // which is a number, too, and finds a name by its index
			}
		}
		must(t, testdb.Err(conn.ExecContext(t.Context(), "START TRANSACTION")))
		answers[name] = reply(t, conn, text, args)
		must(t, testdb.Err(conn.ExecContext(t.Context(), "ROLLBACK")))
	}
	return answers
}

func reply(t *testing.T, conn *sql.Conn, text string, args []any) string {
	t.Helper()
	rows, err := conn.QueryContext(t.Context(), text, args...)
	for fault.Unreadable(err) { // by a statement of another test, until that ends
		rows, err = conn.QueryContext(t.Context(), text, args...)
	}
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		return fmt.Sprint("error ", server.Number)
	}
	must(t, err)
	defer func() { _ = rows.Close() }()
	columns := testdb.Got(rows.Columns())(t)
	n, nulls := 0, ""
	for ; rows.Next(); n++ {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(sql.RawBytes)
		}
		must(t, rows.Scan(values...))
		for i, v := range values {
			if n == 0 && *v.(*sql.RawBytes) == nil {
				nulls += " " + strconv.Itoa(i)
			}
		}
	}
	if errors.As(rows.Err(), &server) {
		return fmt.Sprint("error ", server.Number)
	}
	return fmt.Sprintf("%d rows, NULL:%s", n, nulls)
}

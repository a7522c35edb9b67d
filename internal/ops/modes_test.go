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
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

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
				must(t, second(ops.New(pool).Jobs(t.Context())))
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
		if _, has := raw[name]; !has && !slices.Contains(notSent, name) && !slices.Contains(ofOneServer, name) {
			t.Errorf("the statement %s of package rawsql isn't tried", name)
		}
	}
	render := func(name string) func(s rawsql.Statement, ok bool) {
		return func(s rawsql.Statement, ok bool) {
			if !ok {
				t.Fatalf("%s shares no text", name)
			}
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
	packages, err := parser.ParseDir(token.NewFileSet(), dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0) //nolint:staticcheck // the files are enough
	must(t, err)
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
	conn := leasetest.Got(pool.Conn(t.Context()))(t)
	defer func() { _ = conn.Close() }()
	must(t, second(conn.ExecContext(t.Context(), "SET @lockstep_lock_wait = 50, "+mode)))
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
		_, err := conn.ExecContext(t.Context(), "START TRANSACTION")
		must(t, err)
		answers[name] = reply(t, conn, text, args)
		must(t, second(conn.ExecContext(t.Context(), "ROLLBACK")))
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
	columns := leasetest.Got(rows.Columns())(t)
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

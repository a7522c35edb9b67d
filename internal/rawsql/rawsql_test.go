package rawsql_test

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestLimits: the servers know every limit: never 0, which means none, never more than they heed, and rounded up.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limit         time.Duration
		atMost, hint  string
		secondsOfWait int64
	}{
		{1, "0.000001", "(1)", 1},
		{499 * time.Nanosecond, "0.000001", "(1)", 1},
		{500 * time.Nanosecond, "0.000001", "(1)", 1},
		{time.Microsecond, "0.000001", "(1)", 1},
		{time.Microsecond + 1, "0.000002", "(1)", 1},
		{time.Millisecond, "0.001000", "(1)", 1},
		{time.Millisecond + 1, "0.001001", "(2)", 1},
		{time.Second, "1.000000", "(1000)", 1},
		{time.Second + 1, "1.000001", "(1001)", 2},
		{time.Hour, "3600.000000", "(3600000)", 3600},
		{math.MaxUint32 * time.Millisecond, "4294967.295000", "(4294967295)", 4294968},
		{math.MaxUint32*time.Millisecond + 1, "4294967.295001", "(4294967295)", 4294968},
		{31536000 * time.Second, "31536000.000000", "(4294967295)", 31536000},
		{31536000*time.Second + 1, "31536000.000000", "(4294967295)", 31536001},
		{math.MaxInt64 - 1, "31536000.000000", "(4294967295)", 9223372037},
		{math.MaxInt64, "31536000.000000", "(4294967295)", 9223372037},
	} {
		if got, want := rawsql.AtMost(c.limit), fmt.Sprintf("max_statement_time=%s, "+rawsql.InCase+"%d)", c.atMost, min(c.secondsOfWait, 31536000)+1); got != want {
			t.Errorf("AtMost(%d) is %s, want %s", c.limit, got, want)
		}
		if got := rawsql.HintAtMost("SELECT 1", c.limit); !strings.Contains(got, " MAX_EXECUTION_TIME"+c.hint+" ") {
			t.Errorf("HintAtMost(%d) is %s, want %s", c.limit, got, c.hint)
		}
		got := rawsql.LockWait(c.limit)
		testdb.ErrorIf(t, got != c.secondsOfWait, "LockWait(%d) is %d, want %d", c.limit, got, c.secondsOfWait)
	}
}

// TestOneClock proves that the queries read the server's clock by clock_us() and
// clock_after_wait_us(), which make generate expands, or in whole seconds for what is idle.
func TestOneClock(t *testing.T) {
	files, err := filepath.Glob("../../queries/*.sql")
	testdb.FatalIf(t, err != nil || len(files) == 0, "%d files: %v", len(files), err)
	comments := regexp.MustCompile("--[^\n]*")
	for _, file := range files {
		text := testdb.Got(os.ReadFile(file))(t)
		rest := comments.ReplaceAllString(string(text), "")
		for _, known := range []string{
			"UNIX_TIMESTAMP() * 1000000 - CAST(sqlc.arg(idle_us) AS SIGNED)", "UNIX_TIMESTAMP() * 1000000, ", "UNIX_TIMESTAMP() * 1000000)", "UNIX_TIMESTAMP() * 1000000\n)",
		} {
			rest = strings.ReplaceAll(rest, known, "")
		}
		for _, word := range []string{"UNIX_TIMESTAMP", "NOW(", "SYSDATE"} {
			at := strings.Index(rest, word)
			testdb.ErrorIf(t, at >= 0, "%s reads the clock in other words: %q", file, rest[max(0, at-80):min(len(rest), at+80)])
		}
	}
}

// TestRefuse: what skips a locked row fails instead, by what each server has for that.
func TestRefuse(t *testing.T) {
	t.Parallel()
	const skips = "SELECT token FROM t WHERE id = 1 FOR UPDATE SKIP LOCKED ON"
	for _, c := range []struct {
		query           string
		of              rawsql.Engine
		rollsBack       bool
		text, variables string
	}{
		{"UPDATE t SET n = 1", rawsql.MySQL, false, "UPDATE t SET n = 1", ""},
		{"UPDATE t SET n = 1", rawsql.MariaDB, true, "UPDATE t SET n = 1", ""},
		{skips, rawsql.MySQL, false, "SELECT token FROM t WHERE id = 1 FOR UPDATE NOWAIT ON", ""},
		{skips, rawsql.MySQL, true, "SELECT token FROM t WHERE id = 1 FOR UPDATE NOWAIT ON", ""}, // 3572 ends no transaction
		{skips, rawsql.MariaDB, false, "SELECT token FROM t WHERE id = 1 FOR UPDATE ON", "innodb_lock_wait_timeout=0"},
		{skips, rawsql.MariaDB, true, "SELECT token FROM t WHERE id = 1 FOR UPDATE ON", rawsql.AtMost(rawsql.ShortLimit)},
	} {
		text, variables := c.of.Refuse(c.query, c.rollsBack)
		testdb.ErrorIf(t, text != c.text || strings.Join(variables, ", ") != c.variables, "%s, %s: %q with %q", c.of.Name, c.query, text, variables)
	}
}

// TestInline: each argument replaces its question mark, and that what can't be written safely is refused.
func TestInline(t *testing.T) {
	for _, c := range []struct {
		query string
		args  []any
		want  string
	}{
		{"SELECT 1", nil, "SELECT 1"},
		{"a = ? AND b = ?", []any{[]byte("x?'\\\x00"), "?"}, "a = X'783f275c00' AND b = X'3f'"},
		{"? ? ? ?", []any{int64(math.MinInt64), uint64(math.MaxUint64), int32(-7), 3}, "-9223372036854775808 18446744073709551615 -7 3"},
		{"LIMIT ?", []any{int32(10)}, "LIMIT 10"},
		{"?", []any{[]byte{}}, "X''"},
	} {
		got, ok := rawsql.Inline(c.query, c.args)
		testdb.ErrorIf(t, !ok || got != c.want, "Inline(%q) = %q, %v, want %q", c.query, got, ok, c.want)
	}
	for _, args := range [][]any{{}, {1, 2}, {1.5}, {nil}, {[]byte(nil)}, {true}} {
		got, ok := rawsql.Inline("a = ?", args)
		testdb.ErrorIf(t, ok, "Inline of %v is not refused: %q", args, got)
	}
}

// TestQuestionMarks: every question mark in the statements of queries/ stands for an argument.
func TestQuestionMarks(t *testing.T) {
	files, err := filepath.Glob("../../gen/*.sql.go")
	testdb.FatalIf(t, err != nil || len(files) == 0, "%d files: %v", len(files), err)
	quoted := regexp.MustCompile("'[^']*'|--[^\n]*|/\\*.*?\\*/")
	for _, file := range files {
		text := testdb.Got(os.ReadFile(file))(t)
		queries := strings.Split(string(text), "`")
		for i := 1; i < len(queries); i += 2 {
			for _, found := range quoted.FindAllString(queries[i], -1) {
				testdb.ErrorIf(t, strings.Contains(found, "?"), "%s: %q", file, found)
			}
		}
	}
}

// TestText proves that every method sends the statement rewritten, once, with its argument in the text where
// that is asked for or nothing can be prepared, and apart from it otherwise.
func TestText(t *testing.T) {
	full, locked := &mysql.MySQLError{Number: 1461}, &mysql.MySQLError{Number: 1205}
	prefix := rawsql.Under("x=1")
	for name, c := range map[string]struct {
		rewrite func(rawsql.Statement) rawsql.Statement
		inline  bool
		arg     any
		refused error // what the first is answered
		want    error
		sent    string
	}{
		"as it is":                        {nil, false, 7, nil, errSent, "SELECT ?"},
		"rewritten":                       {prefix, false, 7, nil, errSent, "SET STATEMENT x=1 FOR SELECT ?"},
		"inline":                          {prefix, true, 7, nil, errSent, "SET STATEMENT x=1 FOR SELECT 7"},
		"inline, but can't be":            {nil, true, 1.5, nil, errSent, "SELECT ?"},
		"not prepared":                    {prefix, false, 7, full, errSent, "SET STATEMENT x=1 FOR SELECT ?|SET STATEMENT x=1 FOR SELECT 7"},
		"not prepared, and can't be text": {nil, false, 1.5, full, full, "SELECT ?"},
		"another error":                   {nil, false, 7, locked, locked, "SELECT ?"},
	} {
		for method, send := range map[string]func(text *rawsql.Text) error{
			"Exec":     func(text *rawsql.Text) error { return testdb.Err(text.ExecContext(t.Context(), "SELECT ?", c.arg)) },
			"Query":    func(text *rawsql.Text) error { return testdb.Err(text.QueryContext(t.Context(), "SELECT ?", c.arg)) },
			"QueryRow": func(text *rawsql.Text) error { return text.QueryRowContext(t.Context(), "SELECT ?", c.arg).Err() },
		} {
			base := &losing{refused: c.refused}
			pool := sql.OpenDB(base)
			err := send(&rawsql.Text{DBTX: pool, Rewrite: c.rewrite, Inline: c.inline})
			got := strings.Join(base.texts, "|")
			testdb.ErrorIf(t, got != c.sent || !errors.Is(err, c.want), "%s by %s: sent %s, want %s; %v, want %v", name, method, got, c.sent, err, c.want)
			testdb.Must(t, pool.Close())
		}
	}
}

// TestTakesText proves that only the pool of go-sql-driver is known to take text.
func TestTakesText(t *testing.T) {
	ours := testdb.Got(sql.Open("mysql", "user@tcp(localhost:1)/db"))(t)
	other := sql.OpenDB(&losing{})
	testdb.ErrorIf(t, rawsql.TakesText(other) || !rawsql.TakesText(ours), "another: %t, go-sql-driver: %t", rawsql.TakesText(other), rawsql.TakesText(ours))
	testdb.Must(t, ours.Close())
}

// TestEngines: what can't share a text is refused: what each engine has no text for, what an attempt before has left open on MySQL,
// and more arguments than its procedure takes. The texts themselves are executed by the tests of locksqlc.
func TestEngines(t *testing.T) {
	t.Parallel()
	lock, compare, insert := rawsql.Statement{Procedure: rawsql.LockProcedure}, rawsql.Statement{Procedure: rawsql.CompareProcedure, Args: []any{0}}, rawsql.Statement{Query: "INSERT"}
	shares := func(_ rawsql.Statement, ok bool) bool { return ok }
	for of, is := range map[string]bool{
		"MariaDB begins with a procedure":       shares(rawsql.MariaDB.Open(rawsql.Begin{}, lock, true)),
		"MySQL begins again":                    shares(rawsql.MySQL.Open(rawsql.Begin{Again: true}, lock, true)),
		"MySQL begins without a procedure":      shares(rawsql.MySQL.Open(rawsql.Begin{}, insert, true)),
		"TiDB begins":                           shares(rawsql.TiDB.Open(rawsql.Begin{}, insert, true)),
		"MariaDB commits a procedure":           shares(rawsql.MariaDB.Commit(compare)),
		"MySQL commits a lock":                  shares(rawsql.MySQL.Commit(lock)),
		"MySQL commits without a procedure":     shares(rawsql.MySQL.Commit(insert)),
		"TiDB commits":                          shares(rawsql.TiDB.Commit(insert)),
		"MariaDB reads behind a procedure":      shares(rawsql.MariaDB.LockThen(rawsql.Begin{}, lock, "SELECT 1", 0)),
		"MySQL reads with 17 arguments":         shares(rawsql.MySQL.LockThen(rawsql.Begin{}, lock, "SELECT ?", 17)),
		"MySQL reads behind another procedure":  shares(rawsql.MySQL.LockThen(rawsql.Begin{}, compare, "SELECT 1", 0)),
		"MySQL reads behind a lock, and again":  shares(rawsql.MySQL.LockThen(rawsql.Begin{Again: true}, lock, "SELECT 1", 0)),
		"TiDB locks with a text of the program": shares(rawsql.TiDB.LockThen(rawsql.Begin{}, insert, "", 0)),
		"MySQL writes with 17 arguments":        shares(rawsql.MySQL.WriteAndCommit("DELETE", 17, 1)),
	} {
		testdb.ErrorIf(t, is, "%s in one text", of)
	}
	s, _ := rawsql.MariaDB.Open(rawsql.Begin{}, rawsql.Statement{Query: "INSERT", Inserts: true}, true)
	testdb.ErrorIf(t, !strings.HasSuffix(s.Query, "INSERT RETURNING LAST_INSERT_ID(); END"), "what inserts is followed by a statement more: %s", s.Query)
}

// TestWordsOfEngines: each engine has its words for what the others have, too.
func TestWordsOfEngines(t *testing.T) {
	t.Parallel()
	const read, turn = "SELECT 1 FROM t LOCK IN SHARE MODE", "SET SESSION innodb_lock_wait_timeout = 100000000, %s = 0, wait_timeout = 9"
	for _, c := range []struct {
		e                     rawsql.Engine
		skips, turns, limited string
	}{
		{rawsql.MariaDB, "SELECT 1 FROM t LOCK IN SHARE MODE SKIP LOCKED", "max_statement_time", "SET STATEMENT " + rawsql.AtMost(7*time.Millisecond) + " FOR " + read},
		{rawsql.MySQL, "SELECT 1 FROM t FOR SHARE SKIP LOCKED", "max_execution_time", "SELECT /*+ MAX_EXECUTION_TIME(7) */ 1 FROM t LOCK IN SHARE MODE"},
	} {
		text, _ := c.e.Limited(7 * time.Millisecond)(rawsql.Statement{Query: read}).SQL()
		for want, got := range map[string]string{c.skips: c.e.SkipShared(read), fmt.Sprintf(turn, c.turns): c.e.SetQueueWait(9), c.limited: text} {
			testdb.ErrorIf(t, got != want, "%s: %s, want %s", c.e.Name, got, want)
		}
		got := rawsql.EngineOf("11.8.3-" + c.e.Name + "-log")
		testdb.ErrorIf(t, got != c.e, "a version of %s is taken for one of %s", c.e.Name, got.Name)
	}
}

// TestCommitKeepsTheCall: the statement that commits leaves the other as it was.
func TestCommitKeepsTheCall(t *testing.T) {
	t.Parallel()
	s := rawsql.Statement{Procedure: rawsql.CompareProcedure, Args: []any{1, 0}}
	both, _ := (rawsql.MySQL).Commit(s)
	testdb.ErrorIf(t, s.Args[1] != 0 || both.Args[1] != 1, "%v, and that which commits %v", s.Args, both.Args)
}

// TestStatementText: the arguments of the program stay question marks.
func TestStatementText(t *testing.T) {
	t.Parallel()
	s, _ := rawsql.MariaDB.LockThen(rawsql.Begin{}, rawsql.Statement{Query: "INSERT ?", Args: []any{7}}, "SELECT ?", 1)
	if text, ok := s.Text(); !ok || !strings.Contains(text, "REPEAT INSERT 7; UNTIL") || !strings.HasSuffix(text, " USING ?; END") {
		t.Errorf("%t: %s", ok, text)
	}
	text, ok := (rawsql.Statement{Procedure: "p", Args: []any{nil, 1, "x"}}).Text()
	testdb.ErrorIf(t, !ok || text != "CALL p(NULL, NULL, 1, X'78')", "%t: %s", ok, text)
}

// TestInTx proves that a transaction is committed, or rolled back with the error, that the end of the
// context is the error where that has ended the transaction, or where the driver has closed the
// connection for it, and that a COMMIT which has lost it is none that wasn't sent.
func TestInTx(t *testing.T) {
	wrong := errors.New("wrong")
	for name, c := range map[string]struct {
		f            func(tx *sql.Tx, cancel func()) error
		commit, want error
		sent         string
	}{
		"committed": {f: func(*sql.Tx, func()) error { return nil }, sent: "COMMIT"},
		"failed":    {f: func(*sql.Tx, func()) error { return wrong }, want: wrong, sent: "ROLLBACK"},
		"ended": {f: func(tx *sql.Tx, cancel func()) error {
			cancel()
			for { // until database/sql has rolled back
				if _, err := tx.Prepare("SELECT 1"); errors.Is(err, sql.ErrTxDone) {
					return err
				}
			}
		}, want: context.Canceled, sent: "ROLLBACK"},
		"lost in the function": {f: func(_ *sql.Tx, cancel func()) error { cancel(); return driver.ErrBadConn }, want: context.Canceled, sent: "ROLLBACK"},
		"lost in COMMIT":       {f: func(*sql.Tx, func()) error { return nil }, commit: driver.ErrBadConn, want: driver.ErrBadConn, sent: "COMMIT"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		base := &losing{commit: func() error { cancel(); return c.commit }}
		pool := sql.OpenDB(base)
		err := rawsql.InTx(ctx, pool, sql.TxOptions{}, func(tx *sql.Tx) error { return c.f(tx, cancel) })
		testdb.ErrorIf(t, !errors.Is(err, c.want) || errors.Is(err, sql.ErrTxDone), "%s: %v, want %v", name, err, c.want)
		for pool.Stats().InUse > 0 { // database/sql rolls back in the background
			runtime.Gosched()
		}
		sent := base.sent.Load()
		testdb.ErrorIf(t, sent != c.sent, "%s: %v is sent at the end", name, sent)
		testdb.Must(t, pool.Close())
		cancel()
	}
}

// losing is a driver whose COMMIT is a function. It notes the texts that it is to prepare, and never does.
type losing struct {
	commit  func() error
	sent    atomic.Value // the end
	texts   []string
	refused error // what the first is answered, the others are errSent
}

var errSent = errors.New("it was sent")

func (l *losing) Prepare(query string) (driver.Stmt, error) {
	err := cmp.Or(l.refused, errSent)
	l.texts, l.refused = append(l.texts, query), nil
	return nil, err
}

func (l *losing) Connect(context.Context) (driver.Conn, error) { return l, nil }
func (l *losing) Driver() driver.Driver                        { return nil }
func (l *losing) Close() error                                 { return nil }
func (l *losing) Begin() (driver.Tx, error)                    { return l, nil }
func (l *losing) Commit() error                                { l.sent.Store("COMMIT"); return l.commit() }
func (l *losing) Rollback() error                              { l.sent.Store("ROLLBACK"); return nil }

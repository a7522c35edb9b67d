package guard

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var (
	deadlock = &mysql.MySQLError{Number: 1213, Message: "deadlock"}
	inside   = &mysql.MySQLError{Number: 1568, Message: "inside a transaction"}
)

// newStub returns a base and a guarded pool on it with one connection.
func newStub(t *testing.T, lean bool) (*stub, *sql.DB) {
	t.Helper()
	base := &stub{lean: lean, uptime: 1000, answers: map[string]error{rawsql.Probe: inside}}
	pool := sql.OpenDB(Wrap(base, Options{}))
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = pool.Close() })
	return base, pool
}

// check ends the test if there is an error.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// isError fails the test unless the error is the wanted one, nil for none.
func isError(t *testing.T, what string, err, want error) {
	t.Helper()
	testdb.ErrorIf(t, !errors.Is(err, want), "%s: %v, want %v", what, err, want)
}

// equal fails the test unless the values are equal.
func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	testdb.ErrorIf(t, got != want, "%s: %v, want %v", what, got, want)
}

// isItself fails the test unless the error is the one of the base, unchanged.
func isItself(t *testing.T, what string, err, want error) {
	t.Helper()
	if err != want { //nolint:errorlint // unchanged
		t.Errorf("%s: %v, want %v itself", what, err, want)
	}
}

// exec sends a statement that succeeds.
func exec(t *testing.T, on Execer, query string) {
	t.Helper()
	check(t, testdb.Err(on.ExecContext(t.Context(), query)))
}

// locks is a scope for tests.
type locks struct {
	committed bool
	ends      []error
	unknown   error
}

func (l *locks) Committed()           { l.committed = true }
func (l *locks) Ended(why error)      { l.ends = append(l.ends, why) }
func (l *locks) Unanswered(why error) { l.unknown = why }

// ends are the ways to end a transaction, by what the base is sent.
var ends = map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback}

// joined lets locks join a transaction.
func joined(t *testing.T, tx Execer) (*TxState, *locks) {
	t.Helper()
	txState, _, _ := Ask(t.Context(), tx)
	kept := &locks{}
	txState.Scope(func() Scope { return kept })
	return txState, kept
}

var begin, connect = testdb.Begin, testdb.Taken

// begun begins a transaction that the server knows of.
func begun(t *testing.T, pool *sql.DB) *sql.Tx {
	t.Helper()
	tx := begin(t, pool)
	exec(t, tx, "DO 1")
	return tx
}

func TestCloseAndDriverAreForwarded(t *testing.T) {
	t.Parallel()
	base := &stub{answers: map[string]error{"close": errDead}}
	pool := sql.OpenDB(Wrap(base, Options{}))
	_, ok := pool.Driver().(*mysql.MySQLDriver)
	testdb.ErrorIf(t, !ok, "Driver() is a %T", pool.Driver())
	isError(t, "Close", pool.Close(), errDead)
	noCloser := struct{ driver.Connector }{base}
	isError(t, "Close of a base that has none", sql.OpenDB(Wrap(noCloser, Options{})).Close(), nil)
}

// TestConnect: a connection whose first answers fail is closed, and one that is lost before the program has it replaced.
func TestConnect(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"connect", rawsql.Facts, "row", "rows close"} {
		base, pool := newStub(t, false)
		base.will(at, errDead)
		isError(t, at+" fails: Ping", pool.PingContext(t.Context()), errDead)
		testdb.ErrorIf(t, at != "connect" && !base.has("close 1"), "%s fails: the connection stays open", at)
	}
	base, pool := newStub(t, false)
	base.will(rawsql.Facts, mysql.ErrInvalidConn)
	base.before = func(text string) {
		if text == rawsql.Facts && base.connections() == 2 {
			base.will(rawsql.Facts, nil)
		}
	}
	err, n := pool.PingContext(t.Context()), base.connections()
	testdb.ErrorIf(t, err != nil || n != 2, "%d connections: %v", n, err)
}

// TestLeanBase has a base with no optional interface but QueryContext: it behaves as it does under database/sql alone.
func TestLeanBase(t *testing.T) {
	t.Parallel()
	base, guarded := newStub(t, true)
	plain := sql.OpenDB(&stub{lean: true})
	defer func() { _ = plain.Close() }()
	var records [2]string
	for i, pool := range []*sql.DB{plain, guarded} {
		note := func(format string, args ...any) { records[i] += fmt.Sprintf(format, args...) + "\n" }
		note("%v", pool.PingContext(t.Context()))
		result, err := pool.ExecContext(t.Context(), "INSERT", 5)
		check(t, err)
		affected, err := result.RowsAffected()
		note("%d %v", affected, err)
		for range 2 { // the second time the session is reset
			rows, err := pool.QueryContext(t.Context(), "SELECT")
			check(t, err)
			types, err := rows.ColumnTypes()
			note("%v", err)
			for _, c := range types {
				nullable, known := c.Nullable()
				precision, scale, decimal := c.DecimalSize()
				note("%s %q %t %t %d %d %t %v", c.Name(), c.DatabaseTypeName(), nullable, known, precision, scale, decimal, c.ScanType())
			}
			note("%t %t %t %v %v", rows.Next(), rows.Next(), rows.NextResultSet(), rows.Err(), rows.Close())
		}
		note("%v", pool.QueryRowContext(t.Context(), "SELECT", uint8(3)).Scan(new(string), new(int), new(string), new(string)))
		_, err = pool.ExecContext(t.Context(), "INSERT", struct{}{})
		note("%v", err)
		tx := begin(t, pool)
		_, err = tx.ExecContext(t.Context(), "INSERT", 6)
		note("%v %v", err, tx.Commit())
		for _, options := range []sql.TxOptions{{ReadOnly: true}, {Isolation: sql.LevelSerializable}} {
			_, err := pool.BeginTx(t.Context(), &options)
			note("refused %t", err != nil)
		}
	}
	if records[0] != records[1] {
		t.Errorf("plain:\n%s\nguarded:\n%s", records[0], records[1])
	}
	testdb.ErrorIf(t, !base.has("execute INSERT[6]"), "the base was sent %q", base.sent)
}

// TestScopeEndsBeforeTheServer: the scope is told of the end before the server frees the locks.
func TestScopeEndsBeforeTheServer(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"commit", "rollback"} {
		base, pool := newStub(t, false)
		tx := begun(t, pool)
		txState, kept := joined(t, tx)
		txState.Hold()
		base.before = func(text string) {
			testdb.ErrorIf(t, text == end && (len(kept.ends) != 1 || !errors.Is(txState.Err(), fault.ErrEnded)),
				"at the %s of the server the locks were told of %d ends, and the state is %v", end, len(kept.ends), txState.Err())
		}
		err := ends[end](tx)
		testdb.ErrorIf(t, err != nil || !base.has(end), "%s: %v, sent %q", end, err, base.sent)
	}
}

// TestDeadlockAfterCommit: DDL or a procedure that ends in a deadlock may have committed before, so it is not run again.
func TestDeadlockAfterCommit(t *testing.T) {
	t.Parallel()
	for query, committed := range map[string]bool{"alter table x add y int": true, "CALL p()": true, "DO f()": false, "UPDATE": false} {
		base, pool := newStub(t, false)
		base.will(query, deadlock)
		tx := begin(t, pool)
		want := fault.ErrTxDoomed
		if committed {
			want = fault.ErrCommitted
		}
		_, err := tx.ExecContext(t.Context(), query)
		if !errors.Is(err, deadlock) || errors.Is(err, fault.ErrCommitted) != committed || !committed && err != error(deadlock) { //nolint:errorlint // unchanged
			t.Errorf("%s: %v", query, err)
		}
		if _, err := tx.ExecContext(t.Context(), "INSERT"); !errors.Is(err, want) || base.has("INSERT") {
			t.Errorf("after %s: %v, sent %t", query, err, base.has("INSERT"))
		}
		err = tx.Commit()
		testdb.ErrorIf(t, !errors.Is(err, want) || base.has("commit") || !base.has("rollback"), "Commit after %s: %v; the base was sent %q", query, err, base.sent)
	}
}

// TestLostConnectionIsKilledOnce: a lost session is killed once, if locks have joined it, and on its own server only, whose answer is told.
func TestLostConnectionIsKilledOnce(t *testing.T) {
	t.Parallel()
	refused := &mysql.MySQLError{Number: 1095, Message: "not the owner"}
	for name, c := range map[string]struct {
		other       func(s *stub)
		killed      bool
		connections int
		want        error // besides that of the connection
	}{
		"without locks":  {connections: 1},
		"with locks":     {func(*stub) {}, true, 2, nil},
		"restarted":      {func(s *stub) { s.uptime = -5 }, false, 2, nil},
		"another server": {func(s *stub) { s.moved = "other/3306/shop" }, false, 2, nil},
		"gone":           {func(s *stub) { s.will(rawsql.Kill(1), &mysql.MySQLError{Number: 1094}) }, true, 2, nil},
		"refused":        {func(s *stub) { s.will(rawsql.Kill(1), refused) }, true, 2, refused},
	} {
		base, pool := newStub(t, false)
		base.will("UPDATE", errDead)
		tx := begin(t, pool)
		txState, guarded, _ := Ask(t.Context(), tx)
		testdb.FatalIf(t, !guarded || txState.Server().Session != 1 || !txState.Server().Compound || txState.Server().Name != "host/3306/shop",
			"%s: the state is %t, %+v", name, guarded, txState.Server())
		if c.other != nil {
			c.other(base)
			joined(t, tx)
		}
		err := testdb.Err(tx.ExecContext(t.Context(), "UPDATE"))
		if c.want == nil {
			isItself(t, name, err, errDead)
		} else {
			isError(t, name, err, errDead)
			isError(t, name, err, c.want)
		}
		isError(t, "the next statement", testdb.Err(tx.ExecContext(t.Context(), "INSERT")), fault.ErrTxDoomed)
		isError(t, "a query", closed(tx.QueryContext(t.Context(), "SELECT")), fault.ErrTxDoomed)
		prepared, err := tx.PrepareContext(t.Context(), "SELECT ?")
		check(t, err)
		isError(t, "a prepared query", closed(prepared.QueryContext(t.Context())), fault.ErrTxDoomed)
		err = tx.Commit()
		testdb.ErrorIf(t, !errors.Is(err, fault.ErrTxDoomed) || !fault.Retryable(err), "%s: Commit: %v, want it to be run again", name, err)
		if killed := base.has(rawsql.Kill(1)); killed != c.killed || base.connections() != c.connections {
			t.Errorf("%s: killed %t, want %t; %d connections were opened", name, killed, c.killed, base.connections())
		}
	}
}

// TestSlowKillGoesOn has a server that is slow to end a session: the lost statement returns, and the KILL is sent all the same.
func TestSlowKillGoesOn(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	base.will("UPDATE", errDead)
	reached, goOn, killed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	base.before = func(text string) {
		switch text {
		case rawsql.Uptime:
			close(reached)
			select {
			case <-goOn:
			case <-time.After(10 * killPatience): // the statement has waited for it
			}
		case rawsql.Kill(1):
			close(killed)
		}
	}
	tx := begin(t, pool)
	joined(t, tx)
	_, err := tx.ExecContext(t.Context(), "UPDATE")
	testdb.ErrorIf(t, !errors.Is(err, errDead) || !strings.Contains(err.Error(), "lockstep retries"),
		"the statement: %v, want the driver's error and that KILL goes on", err)
	check(t, tx.Rollback())
	<-reached
	close(goOn)
	<-killed
}

// TestJudgementsStayFew: a connection doesn't remember what it thinks of any number of statements.
func TestJudgementsStayFew(t *testing.T) {
	t.Parallel()
	_, pool := newStub(t, false)
	check(t, connect(t, pool).Raw(func(base any) error {
		guarded := base.(*conn)
		for i := range 3 * mostJudged {
			guarded.judge(t.Context(), fmt.Sprintf("UPDATE t%d SET v = ?", i), make([]driver.NamedValue, 1))
			n := len(guarded.judged)
			testdb.FatalIf(t, n == 0 || n > mostJudged, "%d judgements", n)
		}
		return nil
	}))
}

// TestUnfencedCommitByALock: a lock statement doesn't commit a transaction that has lost a fence.
func TestUnfencedCommitByALock(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		base, pool := newStub(t, false)
		tx := begun(t, pool)
		txState, _ := joined(t, tx)
		exec(t, tx, "SAVEPOINT s")
		txState.Fence("lease", txState.Stamp())
		if lost {
			exec(t, tx, "ROLLBACK TO SAVEPOINT s")
		}
		_, err := tx.ExecContext(WithCall(t.Context(), Call{Tx: txState, Commits: true}), "COMMIT")
		unfenced := errors.Is(err, fault.ErrTxDoomed) && !fault.Retryable(err)
		testdb.ErrorIf(t, unfenced != lost || base.has("COMMIT") == lost, "lost=%t: %v, and COMMIT was sent: %t", lost, err, base.has("COMMIT"))
		check(t, tx.Rollback())
	}
}

// TestBeginTxEndsAText: BEGIN isn't left to the first statement where a transaction was begun as text: it ends that.
func TestBeginTxEndsAText(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	c, left := connect(t, pool), &locks{}
	for _, began := range []bool{false, true} {
		if began {
			exec(t, c, "BEGIN")
			_, left = joined(t, c)
		}
		tx, err := c.BeginTx(t.Context(), nil)
		check(t, err)
		if sent := base.has("begin 0 false"); sent != began || len(left.ends) == 1 != began || left.committed {
			t.Errorf("behind a BEGIN as text: %t; the other is sent: %t; the first was told of the ends %v", began, sent, left.ends)
		}
		check(t, tx.Rollback())
	}
}

// TestConnectionsNotUsedAgain: nobody is given a connection whose transaction may be open, which was lost or read-only, or whose BEGIN or SET was refused.
func TestConnectionsNotUsedAgain(t *testing.T) {
	t.Parallel()
	executed := func(text string) func(tx *sql.Tx) error {
		return func(tx *sql.Tx) error {
			return errors.Join(testdb.Err(tx.ExecContext(t.Context(), text)), tx.Rollback())
		}
	}
	at := func(level sql.IsolationLevel) *sql.TxOptions { return &sql.TxOptions{Isolation: level, ReadOnly: true} }
	xa := &mysql.MySQLError{Number: 1399, Message: "XA"}
	for _, c := range []struct {
		text    string // what the base answers so
		answer  error
		options *sql.TxOptions
		send    func(tx *sql.Tx) error
		want    int // connections
	}{
		{"commit", deadlock, nil, (*sql.Tx).Commit, 1},
		{"commit", xa, nil, (*sql.Tx).Commit, 2},
		{"rollback", deadlock, nil, (*sql.Tx).Rollback, 1},
		{"rollback", xa, nil, (*sql.Tx).Rollback, 2},
		{"UPDATE", driver.ErrBadConn, nil, executed("UPDATE"), 2},
		{"begin 0 true", deadlock, at(sql.LevelDefault), executed("UPDATE"), 1},
		{"begin 2 true", deadlock, at(sql.LevelReadCommitted), executed("UPDATE"), 2},
		{"begin 7 true", deadlock, at(sql.LevelLinearizable), executed("UPDATE"), 1},
		{"DELETE", deadlock, nil, func(tx *sql.Tx) error {
			return errors.Join(testdb.Err(tx.ExecContext(t.Context(), "DELETE")), executed("SET SESSION x = 1")(tx))
		}, 2},
		{"DELETE", deadlock, nil, func(tx *sql.Tx) error {
			return errors.Join(testdb.Err(tx.ExecContext(t.Context(), "DELETE")), executed("UPDATE")(tx))
		}, 1},
		{"UPDATE", &mysql.MySQLError{Number: 1290}, nil, executed("UPDATE"), 2},
		{"UPDATE", &mysql.MySQLError{Number: 1062}, nil, executed("UPDATE"), 1},
	} {
		base, pool := newStub(t, false)
		base.will(c.text, c.answer)
		tx, err := pool.BeginTx(t.Context(), c.options)
		if err == nil && c.options == nil {
			exec(t, tx, "DO 1") // the server knows of it
		}
		if err == nil {
			err = c.send(tx)
		}
		isError(t, c.text, err, c.answer)
		base.will(c.text, nil)
		check(t, begin(t, pool).Commit())
		check(t, pool.PingContext(t.Context()))
		equal(t, fmt.Sprintf("connections where %s is answered %v", c.text, c.answer), base.connections(), c.want)
	}
}

// TestBorrowedSession: nobody is given a connection on whose session a variable was set and not restored.
func TestBorrowedSession(t *testing.T) {
	t.Parallel()
	for _, restored := range []bool{true, false} {
		base, pool := newStub(t, false)
		tx := begin(t, pool)
		txState, _, _ := Ask(t.Context(), tx)
		check(t, testdb.Err(tx.ExecContext(WithCall(t.Context(), Call{Tx: txState, Borrows: true}), "SET limit")))
		if restored {
			check(t, testdb.Err(tx.ExecContext(WithCall(t.Context(), Call{Tx: txState, Restores: true}), "SET back")))
		}
		check(t, errors.Join(tx.Rollback(), begin(t, pool).Commit()))
		n := base.connections()
		testdb.ErrorIf(t, (n == 1) != restored, "restored=%t: %d connections", restored, n)
	}
}

// TestDoomedTextRollsBack: a COMMIT as text of a doomed transaction becomes a ROLLBACK, and a pool takes back no connection without either.
func TestDoomedTextRollsBack(t *testing.T) {
	t.Parallel()
	doomed := func() (*stub, *sql.DB, *sql.Conn) {
		base, pool := newStub(t, false)
		base.will("UPDATE", deadlock)
		c := connect(t, pool)
		exec(t, c, "BEGIN")
		isError(t, "UPDATE", testdb.Err(c.ExecContext(t.Context(), "UPDATE")), deadlock)
		isError(t, "INSERT", testdb.Err(c.ExecContext(t.Context(), "INSERT")), fault.ErrTxDoomed)
		return base, pool, c
	}
	for name, send := range ways {
		base, _, c := doomed()
		isError(t, name, send(t.Context(), c, "COMMIT"), fault.ErrTxDoomed)
		testdb.ErrorIf(t, base.has("INSERT") || base.has("COMMIT") || base.has("execute COMMIT[1]") || !base.has("ROLLBACK"),
			"%s: the base was sent %q", name, base.sent)
		exec(t, c, "INSERT")
	}
	for _, text := range []string{"ROLLBACK", "BEGIN", "START TRANSACTION"} {
		_, _, c := doomed()
		exec(t, c, text)
		exec(t, c, "INSERT")
	}
	base, pool, c := doomed()
	check(t, c.Close())
	exec(t, pool, "INSERT")
	equal(t, "connections", base.connections(), 2)
}

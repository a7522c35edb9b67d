package guard

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestChainThatBeginsNone shows what a transaction says that its program has committed by COMMIT AND CHAIN, on a server that begins no other.
func TestChainThatBeginsNone(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	sqlConn := connect(t, pool)
	flags := uint16(inTransactionFlag | autocommitFlag)
	check(t, sqlConn.Raw(func(c any) error {
		c.(*conn).status.flags = reflect.ValueOf(&flags).Elem()
		return nil
	}))
	base.before = func(text string) {
		if text == "COMMIT AND CHAIN" {
			flags = autocommitFlag
		}
	}
	tx, err := sqlConn.BeginTx(t.Context(), nil)
	check(t, err)
	defer func() { _ = tx.Rollback() }()
	exec(t, tx, "DO 1")
	exec(t, tx, "COMMIT AND CHAIN")
	txState, _, _ := Ask(t.Context(), tx)
	err = txState.Err()
	testdb.ErrorIf(t, !errors.Is(err, fault.ErrCommitted) || strings.Contains(err.Error(), "%!"), "after COMMIT AND CHAIN: %v, want ErrCommitted", err)
}

// TestLostWhileItCommits: nobody knows whether what was lost during a statement that may commit, or its rows, was committed.
func TestLostWhileItCommits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		query, lostBy string
		committed     bool
	}{
		{"CALL p()", "CALL p()", true},
		{"CALL p()", rawsql.ReleaseProbeSavepoint, true},
		{"CALL p()", rawsql.ProbeSavepoint, false},
		{"CALL p()", "row", true},
		{"CALL p()", "rows close", true},
		{"ALTER TABLE x ADD y INT", "ALTER TABLE x ADD y INT", true},
		{"COMMIT", "COMMIT", true},
		{"BEGIN", "BEGIN", true},
		{"COMMIT AND CHAIN; DO 1", "COMMIT AND CHAIN; DO 1", true},
		{"DO f()", "DO f()", false},
		{"ROLLBACK AND CHAIN", "ROLLBACK AND CHAIN", false},
		{"UPDATE x SET y = 1", "UPDATE x SET y = 1", false},
		{"SELECT 1", "rows close", false},
	} {
		base, pool := newStub(t, false)
		base.uptime = -5 // nobody should be killed
		tx := begin(t, pool)
		txState, _ := joined(t, tx)
		var err error
		if base.will(c.lostBy, driver.ErrBadConn); c.lostBy == "row" || c.lostBy == "rows close" {
			rows, queryErr := tx.QueryContext(t.Context(), c.query)
			if err = queryErr; err == nil {
				rows.Next()
				err = errors.Join(rows.Err(), rows.Close())
			}
		} else {
			_, err = tx.ExecContext(t.Context(), c.query)
		}
		testdb.ErrorIf(t, !errors.Is(err, driver.ErrBadConn) || (txState.Committed() != nil) != c.committed,
			"%s, lost by %s: %v, committed %v, want %t", c.query, c.lostBy, err, txState.Committed(), c.committed)
		maybe := fault.ErrCommitted
		if c.query == "COMMIT" {
			maybe = fault.ErrUnknownOutcome
		}
		if err := tx.Commit(); !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, maybe) || errors.Is(err, maybe) != c.committed || base.has("commit") {
			t.Errorf("%s, lost by %s: Commit: %v", c.query, c.lostBy, err)
		}
	}
}

// TestLostTwice: a second error may tell that something was committed, and the session is looked for once.
func TestLostTwice(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	tx := begin(t, pool)
	joined(t, tx)
	base.will("UPDATE", driver.ErrBadConn)
	base.will("rows close", driver.ErrBadConn)
	rows, err := tx.QueryContext(t.Context(), "CALL p()")
	check(t, err)
	isError(t, "the statement", testdb.Err(tx.ExecContext(t.Context(), "UPDATE")), driver.ErrBadConn)
	isError(t, "the rows", errors.Join(rows.Err(), rows.Close()), driver.ErrBadConn)
	err = tx.Commit()
	testdb.ErrorIf(t, !errors.Is(err, driver.ErrBadConn) || !errors.Is(err, fault.ErrCommitted), "Commit: %v, want that it may have been committed", err)
	equal(t, "connections, of which one ends the session", base.connections(), 2)
}

// TestDeadBeforeCommit finds the connection dead before COMMIT could be sent: nothing was committed.
func TestDeadBeforeCommit(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	c, err := pool.Conn(t.Context())
	check(t, err)
	tx, err := c.BeginTx(t.Context(), nil)
	check(t, err)
	exec(t, tx, "DO 1")
	check(t, c.Raw(func(dc any) error {
		dc.(*conn).base.(*stubConn).dead = true // the driver has noticed it when it closed a statement
		return nil
	}))
	base.will("commit", driver.ErrBadConn)
	err = tx.Commit()
	testdb.ErrorIf(t, !errors.Is(err, fault.ErrTxDoomed) || !fault.Retryable(err), "Commit: %v, want that the transaction can be retried", err)
	_ = c.Close() // it is lost
}

// TestDoomedAfterCommit ends the transaction that the program has begun after a COMMIT as text; the program doesn't notice.
func TestDoomedAfterCommit(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	base.will("UPDATE", deadlock)
	tx := begin(t, pool)
	for _, query := range []string{"COMMIT AND CHAIN", "UPDATE"} {
		_, _ = tx.ExecContext(t.Context(), query)
	}
	err := tx.Commit()
	testdb.ErrorIf(t, !errors.Is(err, deadlock) || !errors.Is(err, fault.ErrCommitted), "Commit: %v, want both the deadlock and that it was committed before", err)
}

// TestNoRowsAreClosed: rows without columns are closed before anything else is sent: the driver watches the context until then.
func TestNoRowsAreClosed(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	tx := begin(t, pool)
	base.empty = true
	joined(t, tx)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rows, err := tx.QueryContext(ctx, "CALL p()")
	check(t, err)
	n := len(base.sent)
	testdb.ErrorIf(t, n < 2 || base.sent[n-2] != "rows close" || base.sent[n-1] != rawsql.ReleaseProbeSavepoint, "the base was sent %q", base.sent)
	columns, err := rows.Columns()
	testdb.ErrorIf(t, err != nil || columns == nil || len(columns) != 0 || rows.Next() || rows.NextResultSet(), "the rows have %q, %v", columns, err)
	check(t, errors.Join(rows.Err(), rows.Close(), tx.Commit()))
}

// TestRefusedByTheGroup: a refused COMMIT is known to be rolled back only in a view of the group that was known before.
func TestRefusedByTheGroup(t *testing.T) {
	t.Parallel()
	refused := &mysql.MySQLError{Number: 3101, Message: "refused"}
	denied := &mysql.MySQLError{Number: 1142, Message: "no privilege"}
	base, pool := newStub(t, false)
	for i, c := range []struct {
		view   string // "" of one that is no member
		answer error  // to the question
		commit error
		known  bool // that it is rolled back
		asks   bool
	}{
		{view: "1:3"},
		{view: "1:3", commit: refused, asks: true},
		{view: "1:3", commit: refused, asks: true, known: true},
		{view: "1:3", commit: refused, asks: true, known: true},
		{view: "1:3", commit: deadlock},
		{view: "1:3", commit: errDead},
		{view: "1:4", commit: refused, asks: true}, // somebody has left, or has joined
		{view: "1:4", commit: refused, asks: true, known: true},
		{view: "", commit: refused, asks: true},
		{view: "1:4", commit: refused, answer: denied, asks: true},
		{view: "1:6", commit: refused, asks: true}, // it has come back
	} {
		base.mu.Lock()
		base.view, base.sent = c.view, nil
		base.answers["commit"], base.answers[rawsql.GroupView] = c.commit, c.answer
		base.mu.Unlock()
		err := begun(t, pool).Commit()
		testdb.ErrorIf(t, !errors.Is(err, c.commit) || errors.Is(err, fault.ErrDeadlock) != c.known, "%d: Commit: %v, want it known: %t", i, err, c.known)
		equal(t, fmt.Sprintf("%d: the server was asked", i), base.has(rawsql.GroupView), c.asks)
	}
	if n := base.connections(); n != 6 { // the first, and one after each of five that nobody knows the end of
		t.Errorf("%d connections", n)
	}
}

// TestRefusedTooLate: a refusal says nothing that comes as late as that of a member which leaves the group.
func TestRefusedTooLate(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	base.view = "1:3"
	check(t, connect(t, pool).Raw(func(driverConn any) error {
		guarded, known := driverConn.(*conn), "1:3"
		for late, rolledBack := range map[time.Duration]bool{0: true, groupPatience + time.Second: false} {
			s := sending{guarded, &known, time.Now().Add(-late)}
			err := s.outcome(&mysql.MySQLError{Number: 3101})
			testdb.ErrorIf(t, errors.Is(err, fault.ErrDeadlock) != rolledBack, "after %v: %v", late, err)
		}
		return nil
	}))
}

// TestAbortWhilePreparing: a statement isn't executed whose transaction a Galera node has ended while it prepared it.
func TestAbortWhilePreparing(t *testing.T) {
	t.Parallel()
	notReady := &mysql.MySQLError{Number: 1047, Message: "not prepared for application use"}
	for _, c := range []struct {
		name, galera string
		holds        bool
		probe        error
		want         error
		asks, doomed bool
	}{
		{name: "ended", galera: "ON", holds: true, want: fault.ErrTxDoomed, asks: true, doomed: true},
		{name: "open", galera: "ON", holds: true, probe: inside, asks: true},
		{name: "told by the question", galera: "ON", holds: true, probe: deadlock, want: fault.ErrTxDoomed, asks: true, doomed: true},
		{name: "no answer to the question", galera: "ON", holds: true, probe: notReady, want: notReady, asks: true},
		{name: "without locks", galera: "ON"},
		{name: "not on a cluster", galera: "OFF", holds: true},
		{name: "no Galera in the server", holds: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base, pool := newStub(t, false)
			base.galera = c.galera
			base.will(rawsql.Probe, c.probe)
			tx := begin(t, pool)
			txState, _, _ := Ask(t.Context(), tx)
			if c.holds {
				txState.Hold()
			}
			isError(t, "the statement", testdb.Err(tx.ExecContext(t.Context(), "INSERT", 6)), c.want)
			equal(t, "it was executed", base.has("execute INSERT[6]"), c.want == nil)
			testdb.ErrorIf(t, !base.has("close INSERT"), "the statement is left open on the server")
			equal(t, "the server was asked", base.has(rawsql.Probe), c.asks)
			doomed := txState.Err() != nil
			testdb.ErrorIf(t, doomed != c.doomed, "the transaction is doomed: %v, want %t", txState.Err(), c.doomed)
		})
	}
}

var interrupted = &mysql.MySQLError{Number: 1317, Message: "interrupted"}

// TestCommitWithoutAnswer: all errors of COMMIT leave its outcome unknown but those that only a refused one has.
func TestCommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer  error
		unknown bool
	}{
		{nil, false},
		{deadlock, false},
		{&mysql.MySQLError{Number: 1399, Message: "XA"}, false},
		{interrupted, true},
		{&mysql.MySQLError{Number: 4711, Message: "of an engine that nobody knows"}, true},
		{mysql.ErrInvalidConn, true},
		{driver.ErrBadConn, true},
		{errDead, true},
	} {
		for _, asText := range []bool{false, true} {
			base, pool := newStub(t, false)
			base.will("commit", c.answer)
			base.will("COMMIT", c.answer)
			conn, scope := connect(t, pool), (*locks)(nil)
			commit := func() error { return testdb.Err(conn.ExecContext(t.Context(), "COMMIT")) }
			if asText {
				exec(t, conn, "BEGIN")
				_, scope = joined(t, conn)
			} else {
				tx, err := conn.BeginTx(t.Context(), nil)
				check(t, err)
				_, scope = joined(t, tx)
				exec(t, tx, "UPDATE")
				commit = tx.Commit
			}
			err := commit()
			testdb.ErrorIf(t, !errors.Is(err, c.answer) || errors.Is(err, fault.ErrUnknownOutcome) != c.unknown || errors.Is(scope.unknown, fault.ErrUnknownOutcome) != c.unknown,
				"answered %v, as text %t: %v; the scope was told %v", c.answer, asText, err, scope.unknown)
			testdb.ErrorIf(t, scope.committed != (c.answer == nil) || len(scope.ends) != 1 || scope.ends[0] != nil,
				"answered %v, as text %t: the scope was told that it is committed: %t, and of the ends %v", c.answer, asText, scope.committed, scope.ends)
			if c.answer == nil || errors.Is(c.answer, deadlock) { // the session goes on
				exec(t, conn, "UPDATE")
			}
		}
	}
}

// TestCommitWithALock: what is known of a statement that commits, whose row comes before the COMMIT.
func TestCommitWithALock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		row       driver.Value
		err, last error // in place of the row; behind it
		closed    bool  // no transaction is open afterwards
		committed bool
		want      error // nil for the server's own
	}{
		{name: "committed", row: int64(7), closed: true, committed: true},
		{name: "a conflict", row: int64(0)},
		{name: "interrupted before", err: interrupted, want: interrupted},
		{name: "interrupted before, and rolled back", err: interrupted, closed: true, want: fault.ErrTxDoomed},
		{name: "interrupted between", row: int64(7), last: interrupted, want: interrupted},
		{name: "interrupted behind", row: int64(7), last: interrupted, closed: true, want: fault.ErrUnknownOutcome},
		{name: "a conflict, interrupted and rolled back", row: int64(0), last: interrupted, closed: true, want: fault.ErrTxDoomed},
		{name: "refused", row: int64(7), last: deadlock, closed: true, want: fault.ErrTxDoomed},
		{name: "refused before", err: deadlock, closed: true, want: fault.ErrTxDoomed},
		{name: "lost before", err: mysql.ErrInvalidConn, want: fault.ErrUnknownOutcome},
		{name: "lost behind", row: int64(7), last: mysql.ErrInvalidConn, want: fault.ErrUnknownOutcome},
		{name: "no row", want: fault.ErrUnknownOutcome},
		{name: "no number", row: []byte("x"), closed: true, want: fault.ErrUnknownOutcome},
	} {
		base, pool := newStub(t, false)
		tx := begin(t, pool)
		exec(t, tx, "DELETE")
		txState, _, _ := Ask(t.Context(), tx)
		base.raised = c.row
		update := rawsql.Statement{Query: "UPDATE x"}
		both, _ := rawsql.MariaDB.Commit(update)
		text, _ := both.SQL()
		base.will(text, c.err)
		base.will("rows close", c.last)
		if c.closed {
			base.will(rawsql.Probe, nil)
		}
		_, err := (&rawsql.Text{DBTX: tx, Inline: true}).Exec(WithCall(t.Context(), Call{Tx: txState, Commits: true}), update)
		testdb.ErrorIf(t, c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) && !errors.Is(txState.Err(), c.want),
			"%s: %v, want %v", c.name, err, c.want)
		testdb.ErrorIf(t, errors.Is(c.want, fault.ErrTxDoomed) && !fault.Retryable(cmp.Or(err, txState.Err())),
			"%s: %v; the state has %v, which can't be run again", c.name, err, txState.Err())
		unknown := c.want != nil && errors.Is(c.want, fault.ErrUnknownOutcome)
		testdb.ErrorIf(t, errors.Is(err, fault.ErrUnknownOutcome) != unknown || errors.Is(txState.Err(), fault.ErrUnknownOutcome) != unknown || txState.Finished() != c.committed,
			"%s: %v; the state has %v, finished %t", c.name, err, txState.Err(), txState.Finished())
		if c.committed || unknown {
			_, err := tx.ExecContext(t.Context(), "INSERT")
			testdb.ErrorIf(t, err == nil || base.has("INSERT"), "%s: the next statement: %v", c.name, err)
		}
		_ = tx.Rollback()
	}
}

// TestErrorThatMayEnd: a statement's error that isn't known to leave the transaction open has the server asked, by whichever way it comes.
func TestErrorThatMayEnd(t *testing.T) {
	t.Parallel()
	known := &mysql.MySQLError{Number: 1062, Message: "duplicate"}
	nonsense := &mysql.MySQLError{Number: 4711, Message: "what?"}
	for name, from := range map[string]string{"Exec": "UPDATE", "Prepare and Exec": "execute UPDATE[1]", "Query": "row"} {
		for _, answer := range []*mysql.MySQLError{interrupted, known} {
			for _, probe := range []error{inside, nil, nonsense, mysql.ErrInvalidConn} {
				base, pool := newStub(t, false)
				tx := begun(t, pool)
				base.sent = nil
				base.will(from, answer)
				base.will(rawsql.Probe, probe)
				answered := ways[name](t.Context(), tx, "UPDATE")
				isError(t, fmt.Sprintf("%s, %v", name, answer), answered, answer)
				equal(t, fmt.Sprintf("%s, %v: the server was asked", name, answer), base.has(rawsql.Probe), answer == interrupted)
				_, err := tx.ExecContext(t.Context(), "INSERT")
				open := answer == known || probe == error(inside) //nolint:errorlint // the one above
				testdb.ErrorIf(t, (err == nil) != open || base.has("INSERT") != open, "%s, %v, then %v: the next statement: %v", name, answer, probe, err)
				doomed := errors.Is(answered, fault.ErrTxDoomed) || name == "Query" // whose error is the server's alone
				testdb.ErrorIf(t, probe == nil && !open && (!doomed || !fault.Retryable(err)),
					"%s, %v, and over: %v; the next statement: %v, want it to be run again", name, answer, answered, err)
				if err := tx.Commit(); (err == nil) != base.has("INSERT") || slices.Contains(base.sent, "commit") != (err == nil) {
					t.Errorf("%s, %v, then %v: Commit: %v", name, answer, probe, err)
				}
			}
		}
	}
}

// TestNumberOfReply feeds the reader of a lock statement's number what is none.
func TestNumberOfReply(t *testing.T) {
	t.Parallel()
	one := func(values ...driver.Value) reply {
		return reply{columns: make([]string, len(values)), rows: [][]driver.Value{values}}
	}
	for _, c := range []struct {
		name  string
		reply reply
		want  int64
		ok    bool
	}{
		{"text", one([]byte("17"), nil), 17, true},
		{"of a prepared statement", one(int64(17)), 17, true},
		{"0", one(uint64(0)), 0, true},
		{"OK", reply{}, 0, false},
		{"no row", reply{columns: make([]string, 1)}, 0, false},
		{"a row more", reply{columns: make([]string, 1), rows: [][]driver.Value{{int64(1)}, {int64(1)}}}, 0, false},
		{"NULL", one(nil), 0, false},
		{"utf16", one([]byte("\x001\x007")), 0, false},
		{"a word", one([]byte("granted")), 0, false},
		{"empty", one([]byte{}), 0, false},
		{"out of range", one(uint64(math.MaxInt64 + 1)), 0, false},
	} {
		n, err := c.reply.LastInsertId()
		testdb.ErrorIf(t, n != c.want || c.ok != (err == nil) || !c.ok && !errors.Is(err, fault.ErrReply), "%s is read as %d, %v", c.name, n, err)
	}
}

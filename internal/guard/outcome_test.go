package guard

import (
	"cmp"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

var interrupted = &mysql.MySQLError{Number: 1317, Message: "interrupted"}

// TestCommitWithoutAnswer proves which errors of COMMIT, by database/sql and as text, leave
// its outcome unknown: none but those of which the server gives them to a refused one alone.
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
			commit := func() error { return second(conn.ExecContext(t.Context(), "COMMIT")) }
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
			if !errors.Is(err, c.answer) || errors.Is(err, fault.ErrUnknownOutcome) != c.unknown || errors.Is(scope.unknown, fault.ErrUnknownOutcome) != c.unknown {
				t.Errorf("answered %v, as text %t: %v; the scope was told %v", c.answer, asText, err, scope.unknown)
			}
			if scope.committed != (c.answer == nil) || len(scope.ends) != 1 || scope.ends[0] != nil {
				t.Errorf("answered %v, as text %t: the scope was told that it is committed: %t, and of the ends %v", c.answer, asText, scope.committed, scope.ends)
			}
			if c.answer == nil || errors.Is(c.answer, deadlock) { // the session goes on
				exec(t, conn, "UPDATE")
			}
		}
	}
}

// TestCommitWithALock proves what is known of a statement that commits: its row comes before
// the COMMIT. The server is asked where that may have begun and the connection lives.
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
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) && !errors.Is(txState.Err(), c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if errors.Is(c.want, fault.ErrTxDoomed) && !fault.Retryable(cmp.Or(err, txState.Err())) {
			t.Errorf("%s: %v; the state has %v, which can't be run again", c.name, err, txState.Err())
		}
		unknown := c.want != nil && errors.Is(c.want, fault.ErrUnknownOutcome)
		if errors.Is(err, fault.ErrUnknownOutcome) != unknown || errors.Is(txState.Err(), fault.ErrUnknownOutcome) != unknown || txState.Finished() != c.committed {
			t.Errorf("%s: %v; the state has %v, finished %t", c.name, err, txState.Err(), txState.Finished())
		}
		if c.committed || unknown {
			if _, err := tx.ExecContext(t.Context(), "INSERT"); err == nil || base.has("INSERT") {
				t.Errorf("%s: the next statement: %v", c.name, err)
			}
		}
		_ = tx.Rollback()
	}
}

// TestErrorThatMayEnd proves that a statement's error which isn't known to leave the
// transaction open has the server asked before anything else is sent, by whichever way it
// comes: Vitess answers 1317 to the statement that it ends the transaction with.
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
				if asked := base.has(rawsql.Probe); asked != (answer == interrupted) {
					t.Errorf("%s, %v: the server was asked: %t", name, answer, asked)
				}
				_, err := tx.ExecContext(t.Context(), "INSERT")
				open := answer == known || probe == error(inside) //nolint:errorlint // the one above
				if (err == nil) != open || base.has("INSERT") != open {
					t.Errorf("%s, %v, then %v: the next statement: %v", name, answer, probe, err)
				}
				doomed := errors.Is(answered, fault.ErrTxDoomed) || name == "Query" // whose error is the server's alone
				if probe == nil && !open && (!doomed || !fault.Retryable(err)) {
					t.Errorf("%s, %v, and over: %v; the next statement: %v, want it to be run again", name, answer, answered, err)
				}
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
		if n, err := c.reply.LastInsertId(); n != c.want || c.ok != (err == nil) || !c.ok && !errors.Is(err, fault.ErrReply) {
			t.Errorf("%s is read as %d, %v", c.name, n, err)
		}
	}
}

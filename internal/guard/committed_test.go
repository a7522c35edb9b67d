package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// TestChainThatBeginsNone proves what a transaction says that its program has committed by COMMIT AND CHAIN,
// on a server that begins no other.
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
	if err := txState.Err(); !errors.Is(err, fault.ErrCommitted) || strings.Contains(err.Error(), "%!") {
		t.Errorf("after COMMIT AND CHAIN: %v, want ErrCommitted", err)
	}
}

// TestLostWhileItCommits loses the connection during a statement, its rows or the
// question about it: nobody knows whether the transaction was committed.
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
		if !errors.Is(err, driver.ErrBadConn) || (txState.Committed() != nil) != c.committed {
			t.Errorf("%s, lost by %s: %v, committed %v, want %t", c.query, c.lostBy, err, txState.Committed(), c.committed)
		}
		maybe := fault.ErrCommitted
		if c.query == "COMMIT" {
			maybe = fault.ErrUnknownOutcome
		}
		if err := tx.Commit(); !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, maybe) || errors.Is(err, maybe) != c.committed || base.has("commit") {
			t.Errorf("%s, lost by %s: Commit: %v", c.query, c.lostBy, err)
		}
	}
}

// TestLostTwice learns only from the second error that something may have been committed. The
// session is looked for once.
func TestLostTwice(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	tx := begin(t, pool)
	joined(t, tx)
	base.will("UPDATE", driver.ErrBadConn)
	base.will("rows close", driver.ErrBadConn)
	rows, err := tx.QueryContext(t.Context(), "CALL p()")
	check(t, err)
	isError(t, "the statement", second(tx.ExecContext(t.Context(), "UPDATE")), driver.ErrBadConn)
	isError(t, "the rows", errors.Join(rows.Err(), rows.Close()), driver.ErrBadConn)
	if err := tx.Commit(); !errors.Is(err, driver.ErrBadConn) || !errors.Is(err, fault.ErrCommitted) {
		t.Errorf("Commit: %v, want that it may have been committed", err)
	}
	if n := base.connections(); n != 2 {
		t.Errorf("%d connections were opened, want one to end the session", n)
	}
}

// TestDoomedAfterCommit ends the transaction that the program has begun after a COMMIT as
// text; the program doesn't notice.
func TestDoomedAfterCommit(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	base.will("UPDATE", deadlock)
	tx := begin(t, pool)
	for _, query := range []string{"COMMIT AND CHAIN", "UPDATE"} {
		_, _ = tx.ExecContext(t.Context(), query)
	}
	if err := tx.Commit(); !errors.Is(err, deadlock) || !errors.Is(err, fault.ErrCommitted) {
		t.Errorf("Commit: %v, want both the deadlock and that it was committed before", err)
	}
}

// TestNoRowsAreClosed proves that rows without columns are closed before anything else is
// sent, since the driver watches the context until then.
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
	if n := len(base.sent); n < 2 || base.sent[n-2] != "rows close" || base.sent[n-1] != rawsql.ReleaseProbeSavepoint {
		t.Errorf("the base was sent %q", base.sent)
	}
	columns, err := rows.Columns()
	if err != nil || columns == nil || len(columns) != 0 || rows.Next() || rows.NextResultSet() {
		t.Errorf("the rows have %q, %v", columns, err)
	}
	check(t, errors.Join(rows.Err(), rows.Close(), tx.Commit()))
}

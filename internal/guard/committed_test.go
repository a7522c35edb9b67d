package guard

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

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
	if err := tx.Commit(); !errors.Is(err, fault.ErrTxDoomed) || !fault.Retryable(err) {
		t.Errorf("Commit: %v, want that the transaction can be retried", err)
	}
	_ = c.Close() // it is lost
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

// TestRefusedByTheGroup proves that a refused COMMIT is known to be rolled back only where
// the member is in a view of the group that was known before it was sent.
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
		if !errors.Is(err, c.commit) || errors.Is(err, fault.ErrDeadlock) != c.known {
			t.Errorf("%d: Commit: %v, want it known: %t", i, err, c.known)
		}
		if asked := base.has(rawsql.GroupView); asked != c.asks {
			t.Errorf("%d: the server was asked: %t", i, asked)
		}
	}
	if n := base.connections(); n != 6 { // the first, and one after each of five that nobody knows the end of
		t.Errorf("%d connections", n)
	}
}

// TestRefusedTooLate proves that a refusal says nothing that comes as late as that of a member
// which leaves the group.
func TestRefusedTooLate(t *testing.T) {
	t.Parallel()
	base, pool := newStub(t, false)
	base.view = "1:3"
	check(t, connect(t, pool).Raw(func(driverConn any) error {
		guarded, known := driverConn.(*conn), "1:3"
		for late, rolledBack := range map[time.Duration]bool{0: true, groupPatience + time.Second: false} {
			s := sending{guarded, &known, time.Now().Add(-late)}
			if err := s.outcome(&mysql.MySQLError{Number: 3101}); errors.Is(err, fault.ErrDeadlock) != rolledBack {
				t.Errorf("after %v: %v", late, err)
			}
		}
		return nil
	}))
}

// TestAbortWhilePreparing has a Galera node end a transaction with locks while it
// prepares a statement, without saying so: the statement must not be executed. Other
// cases answer the guard's question in other ways.
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
			isError(t, "the statement", second(tx.ExecContext(t.Context(), "INSERT", 6)), c.want)
			if executed := base.has("execute INSERT[6]"); executed != (c.want == nil) {
				t.Errorf("it was executed: %t", executed)
			}
			if !base.has("close INSERT") {
				t.Error("the statement is left open on the server")
			}
			if asked := base.has(rawsql.Probe); asked != c.asks {
				t.Errorf("the server was asked: %t, want %t", asked, c.asks)
			}
			if doomed := txState.Err() != nil; doomed != c.doomed {
				t.Errorf("the transaction is doomed: %v, want %t", txState.Err(), c.doomed)
			}
		})
	}
}

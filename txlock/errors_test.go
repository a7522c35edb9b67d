package txlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// answered is the server's error of a number, wrapped as a program might.
func answered(number uint16) error {
	return fmt.Errorf("the statement: %w", &mysql.MySQLError{Number: number, Message: "as it happens"})
}

// TestOvertaken proves that a commit that Group Replication has refused is no failure that
// is known to have left nothing.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	for number, want := range map[uint16]bool{3101: true, 1213: false, 1180: false, 1317: false} {
		if got := Overtaken(answered(number)); got != want || want && !Unknown(answered(number)) {
			t.Errorf("%d: overtaken %t, unknown %t", number, got, Unknown(answered(number)))
		}
	}
	if Overtaken(nil) || Overtaken(context.Canceled) {
		t.Error("what is no answer of a server is overtaken")
	}
}

// TestAbortDuringCommit proves that of the errors during COMMIT only that is known to
// have rolled back the transaction which MySQL's InnoDB gives to one that it has aborted.
func TestAbortDuringCommit(t *testing.T) {
	t.Parallel()
	for message, aborted := range map[string]bool{
		"Fehler 149 - 'Lock deadlock; Retry transaction' beim COMMIT":               true,
		"149 - 'Lock deadlock; Retry transaction' hiba a COMMIT vegrehajtasa soran": true,
		"Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT":          true,
		`Got error 149 "Lock deadlock; Retry transaction" during COMMIT`:            false, // MariaDB's
		"Got error 5 - 'OSError - Input/output error' during COMMIT":                false,
		"Got error 1490 - 'this could be any number' during COMMIT":                 false,
	} {
		err := &mysql.MySQLError{Number: 1180, Message: message}
		if got := interpret(err); got.gone != aborted || errors.Is(got.sentinel, ErrDeadlock) != aborted || Retryable(err) != aborted {
			t.Errorf("%q means %+v, retryable %t", message, got, Retryable(err))
		}
	}
}

func TestInterpret(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number          uint16
		sentinel        error
		gone, onTimeout bool
	}{
		{1213, ErrDeadlock, true, false},
		{3101, nil, false, false},
		{1180, nil, false, false},
		{1020, ErrStaleSnapshot, true, false},
		{1206, ErrTxDoomed, true, false},
		{1205, ErrWaitTimeout, false, true},
		{3572, ErrBusy, false, false},
		{1969, ErrWaitTimeout, false, false},
		{3024, ErrWaitTimeout, false, false},
		{3547, ErrWaitTimeout, false, false},
		{1044, ErrPrivilege, false, false},
		{1045, ErrPrivilege, false, false},
		{1142, ErrPrivilege, false, false},
		{1143, ErrPrivilege, false, false},
		{1227, ErrPrivilege, false, false},
		{1370, ErrPrivilege, false, false},
		{1290, ErrReadOnly, false, false},
		{1792, ErrReadOnly, false, false},
		{1836, ErrReadOnly, false, false},
		{1146, ErrSchema, false, false},
		{1054, ErrSchema, false, false},
		{1364, ErrSchema, false, false},
		{1046, ErrSchema, false, false},
		{1062, nil, false, false},
		{1064, nil, false, false},
		{1305, nil, false, false},
		{1317, nil, false, false},
		{1047, nil, false, false},
		{1390, nil, false, false},
		{1406, nil, false, false},
		{1568, nil, false, false},
		{4031, ErrTxDoomed, true, false},
	} {
		got := interpret(answered(c.number))
		if !errors.Is(got.sentinel, c.sentinel) || got.gone != c.gone || got.onTimeout != c.onTimeout {
			t.Errorf("%d means %+v, want %+v", c.number, got, c)
		}
		for _, rollbackOnTimeout := range []bool{false, true} {
			doom := rules.Ended(answered(c.number), guard.Server{RollbackOnTimeout: rollbackOnTimeout})
			if ends := c.gone || c.onTimeout && rollbackOnTimeout; errors.Is(doom, ErrTxDoomed) != ends {
				t.Errorf("%d (rollback on timeout: %t) dooms: %v, want %t", c.number, rollbackOnTimeout, doom, ends)
			}
		}
	}
	for _, err := range []error{nil, driver.ErrBadConn, mysql.ErrInvalidConn, context.Canceled, sql.ErrNoRows, sql.ErrTxDone} {
		if got := interpret(err); got != (verdict{}) {
			t.Errorf("%v means %+v", err, got)
		}
	}
}

func TestTransactionOpen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reply error
		open  bool
		err   error
	}{
		{nil, false, nil},
		{answered(1568), true, nil},
		{driver.ErrBadConn, false, driver.ErrBadConn},
		{sql.ErrTxDone, false, sql.ErrTxDone},
	} {
		if open, err := transactionOpen(c.reply); open != c.open || !errors.Is(err, c.err) {
			t.Errorf("the reply %v tells %t, %v", c.reply, open, err)
		}
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	committed := rules.Committed("CREATE TABLE")
	unseen := fmt.Errorf("verify: %w: %w", ErrTxDoomed, errUnknown)
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{ErrBusy, false},
		{ErrWaitTimeout, false},
		{ErrDeadlock, true},
		{ErrStaleSnapshot, true},
		{ErrTxDoomed, true},
		{ErrConflict, true},
		{ErrLost, false},
		{ErrNotHeld, false},
		{ErrTooManyHolds, false},
		{ErrUpgrade, false},
		{ErrNoTransaction, false},
		{ErrInvalidKey, false},
		{ErrInvalidOption, false},
		{ErrOpenRows, false},
		{ErrReadOnly, false},
		{ErrSchema, false},
		{ErrNoQuorum, false},

		{fmt.Errorf("order 7: %w", ErrDeadlock), true},
		{fmt.Errorf("order 7: %w", ErrBusy), false},
		{errors.Join(errors.New("order 7"), ErrStaleSnapshot), true},
		{errors.Join(ErrBusy, sql.ErrTxDone), false},

		{&mysql.MySQLError{Number: 1213}, true},
		{&mysql.MySQLError{Number: 1020}, true},
		{&mysql.MySQLError{Number: 1206}, true},
		{answered(1213), true},
		{answered(1205), false},
		{answered(1062), false},
		{answered(1317), false},
		{answered(3101), false},
		{errors.Join(sql.ErrTxDone, answered(1213)), true},

		{rules.Ended(answered(1213), noServer), true},
		{rules.Ended(answered(1205), guard.Server{RollbackOnTimeout: true}), true},
		{rules.Lost(driver.ErrBadConn), true},
		{lockError("lock", answered(1205), guard.Server{RollbackOnTimeout: true}), true},
		{committed, false},
		{fmt.Errorf("run: %w", committed), false},
		{errors.Join(committed, ErrDeadlock), false},
		{unseen, false},

		{context.Canceled, false},
		{context.DeadlineExceeded, false},
		{fmt.Errorf("lock: %w: %w", ErrTxDoomed, context.Canceled), false},
		{errors.Join(ErrDeadlock, context.DeadlineExceeded), false},
		{driver.ErrBadConn, false},
		{mysql.ErrInvalidConn, false},
		{fmt.Errorf("commit: %w", mysql.ErrInvalidConn), false},
		{sql.ErrTxDone, false},
		{errors.New("no such order"), false},
	} {
		if got := Retryable(c.err); got != c.want {
			t.Errorf("Retryable(%v) is %t", c.err, got)
		}
	}
}

// TestLockErrorReachesAll finds the sentinel, the cause and the driver's error in
// what a call returns.
func TestLockErrorReachesAll(t *testing.T) {
	t.Parallel()
	rollback := guard.Server{RollbackOnTimeout: true}
	for _, c := range []struct {
		name   string
		err    error
		server guard.Server
		is     []error
		isNot  []error
	}{
		{"deadlock", answered(1213), noServer, []error{ErrDeadlock}, []error{ErrTxDoomed, ErrBusy}},
		{"wait", answered(1205), noServer, []error{ErrWaitTimeout}, []error{ErrTxDoomed, ErrBusy}},
		{"wait that rolls back", answered(1205), rollback, []error{ErrWaitTimeout, ErrTxDoomed}, nil},
		{"try on MariaDB", fmt.Errorf("%w: %w", ErrBusy, answered(1205)), noServer, []error{ErrBusy}, []error{ErrWaitTimeout, ErrTxDoomed}},
		{"try that rolls back", fmt.Errorf("%w: %w", ErrBusy, answered(1205)), rollback, []error{ErrBusy, ErrTxDoomed}, []error{ErrWaitTimeout}},
		{"limit", answered(1969), rollback, []error{ErrWaitTimeout}, []error{ErrTxDoomed}},
		{"read only", answered(1290), noServer, []error{ErrReadOnly}, nil},
		{"context", fmt.Errorf("exec: %w", context.DeadlineExceeded), noServer, []error{context.DeadlineExceeded}, []error{ErrWaitTimeout}},
		{"open rows", guard.ErrOpenRows, noServer, []error{ErrOpenRows}, nil},
		{"open rows of the driver", mysql.ErrBusyBuffer, noServer, []error{ErrOpenRows, mysql.ErrBusyBuffer}, nil},
		{"finished", sql.ErrTxDone, noServer, []error{ErrNoTransaction, sql.ErrTxDone}, nil},
		{"connection closed", sql.ErrConnDone, noServer, []error{ErrNoTransaction, sql.ErrConnDone}, nil},
		{"ended", guard.ErrEnded, noServer, []error{ErrNoTransaction}, []error{ErrTxDoomed}},
		{"doomed before", rules.Ended(answered(1213), noServer), noServer, []error{ErrTxDoomed, ErrDeadlock}, nil},
		{"lost", rules.Lost(fmt.Errorf("%w: %w", context.Canceled, driver.ErrBadConn)), noServer, []error{ErrTxDoomed, context.Canceled, driver.ErrBadConn}, nil},
		{"unknown", answered(1064), noServer, nil, []error{ErrTxDoomed, ErrSchema, ErrWaitTimeout}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := lockError(`lock "k"`, c.err, c.server)
			for _, want := range append(c.is, c.err) {
				if !errors.Is(err, want) {
					t.Errorf("%v is not %v", err, want)
				}
			}
			for _, other := range c.isNot {
				if errors.Is(err, other) {
					t.Errorf("%v is %v", err, other)
				}
			}
			var before, after *mysql.MySQLError
			if errors.As(c.err, &before) && (!errors.As(err, &after) || after != before) {
				t.Errorf("the server's error is not in %v", err)
			}
		})
	}
}

// faulty is a plain transaction on a mock, which has answered the two questions of
// Join and what Lock asks before it sends the lock.
func faulty(t *testing.T, version string) (*Scope, *sql.Tx, sqlmock.Sqlmock) {
	t.Helper()
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mock.ExpectClose()
		if err := errors.Join(db.Close(), mock.ExpectationsWereMet()); err != nil {
			t.Error(err)
		}
	})
	mock.ExpectBegin()
	open := &mysql.MySQLError{Number: 1568}
	mock.ExpectExec(rawsql.Probe).WillReturnError(open)
	mock.ExpectQuery(rawsql.Facts).WillReturnRows(sqlmock.NewRows([]string{"v", "c", "r", "n"}).AddRow(version, 7, 0, "mock/3306/"+t.Name()))
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := Join(t.Context(), tx, NothingRead())
	if err != nil {
		t.Fatal(err)
	}
	mock.ExpectExec(rawsql.Probe).WillReturnError(open)
	return scope, tx, mock
}

// TestFaultsOfServer takes a lock that the server answers with an error it gives
// on no demand.
func TestFaultsOfServer(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"9.7.4", "10.11.19-MariaDB"} {
		for _, c := range []struct {
			err       error
			sentinel  error
			retryable bool
		}{
			{&mysql.MySQLError{Number: 1206, Message: "The total number of locks exceeds the lock table size"}, ErrTxDoomed, true},
			{&mysql.MySQLError{Number: 1020, Message: "Record has changed since last read"}, ErrStaleSnapshot, true},
			{&mysql.MySQLError{Number: 1290, Message: "--read-only"}, ErrReadOnly, false},
			{&mysql.MySQLError{Number: 1836, Message: "Running in read-only mode"}, ErrReadOnly, false},
			{&mysql.MySQLError{Number: 1146, Message: "Table 'lockstep_locks' doesn't exist"}, ErrSchema, false},
			{&mysql.MySQLError{Number: 1364, Message: "Field 'x' doesn't have a default value"}, ErrSchema, false},
			{driver.ErrBadConn, ErrTxDoomed, true}, // before any COMMIT: the server rolls back
			{mysql.ErrInvalidConn, ErrTxDoomed, true},
		} {
			t.Run(fmt.Sprintf("%s/%v", version, c.err), func(t *testing.T) {
				t.Parallel()
				scope, tx, mock := faulty(t, version)
				expectLock(mock).WillReturnError(c.err)
				key := Named("k")
				grant, err := scope.Lock(t.Context(), key)
				if !errors.Is(err, c.sentinel) || !errors.Is(err, c.err) || grant != (Grant{}) {
					t.Errorf("Lock returned %+v, %v, want %v", grant, err, c.sentinel)
				}
				if Retryable(err) != c.retryable {
					t.Errorf("Retryable(%v) is %t", err, !c.retryable)
				}
				if _, held := scope.Held(key); held {
					t.Error("a lock that failed is held")
				}
				mock.ExpectRollback()
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// expectLock is the one statement of a first lock.
func expectLock(mock sqlmock.Sqlmock) *sqlmock.ExpectedExec {
	return mock.ExpectExec(gen.LockNamed)
}

// TestAfterFault tells what the next call on a plain pool says: the transaction
// goes on after a fault that left it alone, and is over after one that ended it.
func TestAfterFault(t *testing.T) {
	t.Parallel()
	open := &mysql.MySQLError{Number: 1568}
	t.Run("alive", func(t *testing.T) {
		t.Parallel()
		scope, tx, mock := faulty(t, "9.7.4")
		expectLock(mock).WillReturnError(answered(1290))
		_, err := scope.Lock(t.Context(), Named("k"))
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("Lock: %v", err)
		}
		mock.ExpectExec(rawsql.Probe).WillReturnError(open)
		if err := scope.Verify(t.Context()); err != nil {
			t.Errorf("Verify: %v", err)
		}
		mock.ExpectCommit()
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		scope, tx, mock := faulty(t, "9.7.4")
		expectLock(mock).WillReturnError(answered(1206))
		if _, err := scope.Lock(t.Context(), Named("k")); !errors.Is(err, ErrTxDoomed) {
			t.Errorf("Lock: %v", err)
		}
		mock.ExpectExec(rawsql.Probe).WillReturnResult(sqlmock.NewResult(0, 0))
		if _, err := scope.Lock(t.Context(), Named("l")); !errors.Is(err, ErrTxDoomed) || Retryable(err) {
			t.Errorf("the next Lock: %v", err)
		}
		mock.ExpectExec(rawsql.Probe).WillReturnResult(sqlmock.NewResult(0, 0))
		if err := scope.Confirm(t.Context()); !errors.Is(err, ErrTxDoomed) {
			t.Errorf("Confirm: %v", err)
		}
		mock.ExpectRollback()
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	})
	t.Run("lost while it is asked whether it is open", func(t *testing.T) {
		t.Parallel()
		scope, tx, mock := faulty(t, "9.7.4")
		expectLock(mock).WillReturnError(answered(1146))
		if _, err := scope.Lock(t.Context(), Named("k")); !errors.Is(err, ErrSchema) {
			t.Errorf("Lock: %v", err)
		}
		mock.ExpectExec(rawsql.Probe).WillReturnError(driver.ErrBadConn)
		if _, err := scope.Lock(t.Context(), Named("l")); !errors.Is(err, driver.ErrBadConn) {
			t.Errorf("the next Lock: %v", err)
		}
		mock.ExpectRollback()
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	})
}

// TestExplain proves that the error of a statement outside of transactions says what
// was asked for, and dooms no transaction.
func TestExplain(t *testing.T) {
	t.Parallel()
	if err := Explain("acquire", nil); err != nil {
		t.Errorf("no error is explained as %v", err)
	}
	for _, c := range []struct {
		err      error
		sentinel error // nil: none
	}{
		{answered(1213), ErrDeadlock},
		{answered(1146), ErrSchema},
		{answered(1206), nil},
		{answered(4031), nil},
		{driver.ErrBadConn, nil},
		{mysql.ErrInvalidConn, nil},
		{fmt.Errorf("%w: %w", ErrTxDoomed, driver.ErrBadConn), ErrTxDoomed}, // it was in one
	} {
		err := Explain("acquire", c.err)
		if !errors.Is(err, c.err) || !strings.HasPrefix(err.Error(), "acquire: ") {
			t.Errorf("%v is explained as %v", c.err, err)
		}
		if c.sentinel != nil && !errors.Is(err, c.sentinel) || errors.Is(err, ErrTxDoomed) != errors.Is(c.sentinel, ErrTxDoomed) {
			t.Errorf("%v is explained as %v, want %v", c.err, err, c.sentinel)
		}
	}
}

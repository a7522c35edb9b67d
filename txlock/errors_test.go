package txlock

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answered is the server's error of a number, wrapped as a program might.
func answered(number uint16) error {
	return fmt.Errorf("the statement: %w", &mysql.MySQLError{Number: number, Message: "as it happens"})
}

// faulty is a plain transaction on a mock, which has answered the two questions of
// Join and what Lock asks before it sends the lock.
func faulty(t *testing.T, version string) (*Scope, *sql.Tx, sqlmock.Sqlmock) {
	t.Helper()
	equal := sqlmock.QueryMatcherFunc(func(expected, actual string) error { // what MariaDB's first lock begins with
		return sqlmock.QueryMatcherEqual.Match(expected, strings.TrimPrefix(actual, rawsql.For(rawsql.AllowStale)))
	})
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(equal))
	check(t, err)
	t.Cleanup(func() {
		mock.ExpectClose()
		check(t, errors.Join(db.Close(), mock.ExpectationsWereMet()))
	})
	mock.ExpectBegin()
	open := &mysql.MySQLError{Number: 1568}
	mock.ExpectExec(rawsql.Probe).WillReturnError(open)
	mock.ExpectQuery(rawsql.Facts).WillReturnRows(sqlmock.NewRows(make([]string, session.Columns)).AddRow(session.Reply(version, "mock/3306/"+t.Name())...))
	tx, err := db.BeginTx(t.Context(), nil)
	check(t, err)
	scope, err := Join(t.Context(), tx, NothingRead())
	check(t, err)
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
				check(t, tx.Rollback())
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
		check(t, tx.Commit())
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
		if _, err := (internals{}).Confirm(t.Context(), scope); !errors.Is(err, ErrTxDoomed) {
			t.Errorf("Confirm: %v", err)
		}
		mock.ExpectRollback()
		check(t, tx.Rollback())
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
		check(t, tx.Rollback())
	})
}

// TestInterruptedUpdate proves that an UPDATE of a center row which MariaDB has interrupted,
// and answers with success and no row, is no missing row.
func TestInterruptedUpdate(t *testing.T) {
	t.Parallel()
	key := NewFamily[int]("interrupted", Hashed()).Key(1)
	for name, c := range map[string]struct {
		version string
		there   bool
		want    error
	}{
		"interrupted":          {"10.11.19-MariaDB", true, ErrWaitTimeout},
		"missing":              {"10.11.19-MariaDB", false, ErrSchema},
		"missing, MySQL knows": {"9.7.4", false, ErrSchema},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scope, tx, mock := faulty(t, c.version)
			mock.ExpectExec(gen.LockCenter).WillReturnResult(sqlmock.NewResult(0, 0))
			if c.version != "9.7.4" {
				rows := sqlmock.NewRows([]string{"token"})
				if c.there {
					rows.AddRow(7)
				}
				mock.ExpectQuery(gen.CenterToken).WillReturnRows(rows)
			}
			if _, err := scope.Lock(t.Context(), key); !errors.Is(err, c.want) {
				t.Errorf("Lock: %v, want %v", err, c.want)
			}
			mock.ExpectRollback()
			check(t, tx.Rollback())
		})
	}
}

package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// opened is a connector for a driver that has none.
type opened struct {
	driver driver.Driver
	name   string
}

func (o opened) Connect(context.Context) (driver.Conn, error) { return o.driver.Open(o.name) }
func (o opened) Driver() driver.Driver                        { return o.driver }

// TestRunAfterRefusedCommit has a Group Replication refuse COMMIT (3101). Run begins again
// where the member is in a view that the pool knew of before, and nowhere else: who has left
// the group meanwhile may have left the transaction to the others.
func TestRunAfterRefusedCommit(t *testing.T) {
	t.Parallel()
	db, mock, err := sqlmock.NewWithDSN(t.Name(), sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	check(t, err)
	defer func() { _ = db.Close() }()
	pool := sql.OpenDB(locksqlc.Connector(opened{db.Driver(), t.Name()}))
	defer func() { _ = pool.Close() }()
	connects := func() {
		mock.ExpectQuery(rawsql.Facts).WillReturnRows(sqlmock.NewRows(make([]string, session.Columns)).AddRow(session.Reply("9.7.4", "mock/3306/test")...))
	}
	transaction := func(commit error) {
		mock.ExpectBegin()
		mock.ExpectExec("UPDATE").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit().WillReturnError(commit)
	}
	refused := &mysql.MySQLError{Number: 3101, Message: "refused"}
	asks := func(views ...string) {
		rows := sqlmock.NewRows([]string{"VIEW_ID"})
		for _, view := range views {
			rows.AddRow(view)
		}
		mock.ExpectQuery(rawsql.GroupView).WillReturnRows(rows)
	}
	for _, c := range []struct {
		name   string
		expect func()
		want   error
		runs   int
	}{
		{"the first makes the view known", func() { connects(); transaction(refused); asks("1:3") }, refused, 1},
		{"refused by the group", func() {
			connects()
			transaction(refused)
			asks("1:3")
			transaction(refused)
			asks("1:3")
			transaction(nil)
		}, nil, 3},
		{"the member has left", func() { transaction(refused); asks() }, refused, 1},
		{"and has come back", func() { connects(); transaction(refused); asks("1:5") }, refused, 1},
		{"known again", func() { connects(); transaction(refused); asks("1:5"); transaction(nil) }, nil, 2},
	} {
		c.expect()
		runs := 0
		err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			runs++
			return second(tx.ExecContext(t.Context(), "UPDATE"))
		})
		if !errors.Is(err, c.want) || txlock.Retryable(err) || runs != c.runs {
			t.Errorf("%s: %d runs and %v, want %d and %v", c.name, runs, err, c.runs, c.want)
		}
	}
	check(t, mock.ExpectationsWereMet())
}

package schema_test

import (
	"regexp"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/schema"
)

var errSyntax = &mysql.MySQLError{Number: 1064, Message: "You have an error in your SQL syntax"}

// TestCheckFindsProxies plays proxies. Those that the statements really go through are in
// module tests.
func TestCheckFindsProxies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sessions, numbers [5]int
		savepoint         error // at its end
		ignored           int   // the hint
		shares            bool
		says              string
	}{
		"none":                   {numbers: [5]int{1, 2, 3, 4, 5}},
		"another session at all": {numbers: [5]int{1, 2, 3, 4, 5}, sessions: [5]int{0, 1, 1, 1, 0}, says: "reach several sessions"},
		"reads go elsewhere":     {numbers: [5]int{1, 2, 30, 3, 4}, sessions: [5]int{0, 0, 1, 0, 0}, says: "reach several sessions"},
		"the next transaction":   {numbers: [5]int{1, 2, 3, 4, 5}, sessions: [5]int{0, 0, 0, 0, 1}, says: "reach several sessions"},
		"a cache":                {numbers: [5]int{1, 1, 2, 1, 1}, says: "answered from a cache"},
		"a reset":                {numbers: [5]int{1, 2, 3, 4, 5}, savepoint: errCold, says: "a transaction that does nothing has failed"},
		"no comments":            {numbers: [5]int{1, 2, 3, 4, 5}, ignored: 1, says: "comments are taken out"},
		"a router that shares":   {numbers: [5]int{1, 2, 3, 4, 5}, shares: true, says: "gives sessions to other clients"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, mock, err := sqlmock.New()
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range append(good(), answer{"wsrep_on", sqlmock.NewRows([]string{"n", "v"})}) {
				mock.ExpectQuery(regexp.QuoteMeta(a.question)).WillReturnRows(a.rows)
			}
			asked := func(i int) {
				mock.ExpectQuery(regexp.QuoteMeta("SELECT CONNECTION_ID(), UUID_SHORT()")).WillReturnRows(row(7+c.sessions[i], c.numbers[i]))
			}
			asked(0)
			mock.ExpectBegin()
			mock.ExpectExec("^SAVEPOINT").WillReturnResult(sqlmock.NewResult(0, 0))
			asked(1)
			asked(2)
			asked(3)
			mock.ExpectExec("^RELEASE SAVEPOINT").WillReturnResult(sqlmock.NewResult(0, 0)).WillReturnError(c.savepoint)
			mock.ExpectRollback()
			if c.savepoint == nil {
				asked(4)
				mock.ExpectQuery("SET_VAR").WillReturnRows(row(c.ignored))
				order := mock.ExpectExec("^ROUTER SET").WillReturnResult(sqlmock.NewResult(0, 0))
				if !c.shares {
					order.WillReturnError(errSyntax)
				}
			}
			mock.ExpectClose()
			if err = schema.Check(t.Context(), db); c.says == "" {
				demand(t, err, nil)
			} else {
				demand(t, err, schema.ErrProxy, c.says)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			if err := mock.ExpectationsWereMet(); err != nil {
				t.Error(err)
			}
		})
	}
}

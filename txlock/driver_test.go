package txlock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/txlock"
)

// TestOtherDriver joins a transaction whose driver has errors of its own, as those of other
// drivers for MySQL are: what is needed is said, as it isn't for errors of go-sql-driver.
func TestOtherDriver(t *testing.T) {
	t.Parallel()
	const needs = "github.com/go-sql-driver/mysql, which lockstep needs"
	for _, c := range []struct {
		reply error
		told  bool
	}{
		{errors.New("ERROR 1568 (25001): Transaction characteristics can't be changed while a transaction is in progress"), true},
		{&mysql.MySQLError{Number: 1317, Message: "Query execution was interrupted"}, false},
		{mysql.ErrInvalidConn, false},
	} {
		db, mock, err := sqlmock.New()
		noError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		mock.ExpectBegin()
		mock.ExpectExec("SET TRANSACTION READ WRITE").WillReturnError(c.reply)
		tx, err := db.BeginTx(t.Context(), nil)
		noError(t, err)
		if _, err := txlock.Join(t.Context(), tx); !errors.Is(err, c.reply) || strings.Contains(err.Error(), needs) != c.told {
			t.Errorf("Join: %v, told=%t", err, c.told)
		}
	}
}

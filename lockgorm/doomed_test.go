package lockgorm_test

import (
	"database/sql"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// deadlock makes one statement of tx, which needs no transaction, the victim of a deadlock with
// somebody who has written more, and returns its error. It needs the table of Note.
func (e *env) deadlock(t *testing.T, tx *gorm.DB) error {
	t.Helper()
	table := e.names.tables["Note"]
	rival, err := e.Admin().BeginTx(t.Context(), nil)
	noError(t, err)
	defer func() { _ = rival.Rollback() }()
	var first, last int64
	for i := range 20 {
		result, err := e.Admin().ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")
		noError(t, err)
		last, err = result.LastInsertId()
		noError(t, err)
		if i == 0 {
			first = last
		}
		noError(t, second(rival.ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")))
	}
	noError(t, second(rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", last)))
	waited := e.Waiting(t, testdb.ConnID(t, tx.Statement.ConnPool), func() error {
		return tx.Exec("UPDATE "+table+" SET n = n + 2 WHERE id IN (?, ?) ORDER BY id", first, last).Error
	})
	noError(t, second(rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", first)))
	err = <-waited
	if err == nil {
		t.Error("there was no deadlock")
	}
	return err
}

// drained reads rows to their end.
func drained(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		continue
	}
	return rows.Err()
}

// skipInner leaves out the error by which a test rolls back.
func skipInner(err error) error {
	if errors.Is(err, errInner) {
		return nil
	}
	return err
}

// TestDoomedTransaction ignores a deadlock in db.Transaction, and writes: Transaction must return the error.
func TestDoomedTransaction(t *testing.T) {
	eachGuarded(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		err := db.Transaction(func(tx *gorm.DB) error {
			_ = e.deadlock(t, tx)
			_ = tx.Create(&Order{ID: 1})
			return nil
		})
		wantError(t, "Transaction", err, txlock.ErrTxDoomed)
		err = db.Transaction(func(tx *gorm.DB) error {
			_ = tx.Transaction(func(tx *gorm.DB) error { return e.deadlock(t, tx) })
			return nil
		})
		wantError(t, "Transaction with a nested one", err, txlock.ErrTxDoomed)
		if !txlock.Retryable(err) {
			t.Errorf("not to be run again: %v", err)
		}
		e.wantRows(t, "a row was written behind the deadlock", 0, "Order", "1 = 1")
	})
}

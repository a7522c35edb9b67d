package rawsql

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
)

// TestInTx proves that a transaction is committed, or rolled back with the error, and that
// the end of the context is the error where that has ended the transaction.
func TestInTx(t *testing.T) {
	pool, mock, err := sqlmock.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	mock.ExpectBegin()
	mock.ExpectCommit()
	if err := InTx(t.Context(), pool, sql.TxOptions{}, func(*sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}

	wrong := errors.New("wrong")
	mock.ExpectBegin()
	mock.ExpectRollback()
	if err := InTx(t.Context(), pool, sql.TxOptions{}, func(*sql.Tx) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("%v, want %v", err, wrong)
	}

	mock.ExpectBegin()
	mock.ExpectRollback()
	ctx, cancel := context.WithCancel(t.Context())
	err = InTx(ctx, pool, sql.TxOptions{}, func(tx *sql.Tx) error {
		cancel()
		for { // until database/sql has rolled back
			if _, err := tx.Prepare("SELECT 1"); errors.Is(err, sql.ErrTxDone) {
				return err
			}
		}
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, sql.ErrTxDone) {
		t.Errorf("a context that ends: %v", err)
	}
	for pool.Stats().InUse > 0 { // database/sql rolls back in the background
		runtime.Gosched()
	}
	if err := mock.ExpectationsWereMet(); err != nil {
		t.Error(err)
	}
}

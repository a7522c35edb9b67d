package rawsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
)

// TestInTx proves that a transaction is committed, or rolled back with the error, and that
// the end of the context is the error where that has ended the transaction.
func TestInTx(t *testing.T) {
	pool, mock, err := sqlmock.New()
	check(t, err)
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

// TestInTxLosesItsConnection proves that the end of the context is the error where the driver has
// closed the connection for it, and that a COMMIT which has lost it is none that wasn't sent.
func TestInTxLosesItsConnection(t *testing.T) {
	for name, c := range map[string]struct {
		f, commit, want error
	}{
		"in the function": {driver.ErrBadConn, nil, context.Canceled},
		"in COMMIT":       {nil, driver.ErrBadConn, driver.ErrBadConn},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		pool := sql.OpenDB(losing{func() error { cancel(); return c.commit }})
		err := InTx(ctx, pool, sql.TxOptions{}, func(*sql.Tx) error {
			if c.f != nil {
				cancel()
			}
			return c.f
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

// losing is a driver whose COMMIT is a function.
type losing struct{ commit func() error }

func (l losing) Connect(context.Context) (driver.Conn, error) { return l, nil }
func (l losing) Driver() driver.Driver                        { return nil }
func (l losing) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (l losing) Close() error                                 { return nil }
func (l losing) Begin() (driver.Tx, error)                    { return l, nil }
func (l losing) Commit() error                                { return l.commit() }
func (l losing) Rollback() error                              { return nil }

package rawsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
)

// TestInTx proves that a transaction is committed, or rolled back with the error, that the end of the
// context is the error where that has ended the transaction, or where the driver has closed the
// connection for it, and that a COMMIT which has lost it is none that wasn't sent.
func TestInTx(t *testing.T) {
	wrong := errors.New("wrong")
	for name, c := range map[string]struct {
		f            func(tx *sql.Tx, cancel func()) error
		commit, want error
		sent         string
	}{
		"committed": {f: func(*sql.Tx, func()) error { return nil }, sent: "COMMIT"},
		"failed":    {f: func(*sql.Tx, func()) error { return wrong }, want: wrong, sent: "ROLLBACK"},
		"ended": {f: func(tx *sql.Tx, cancel func()) error {
			cancel()
			for { // until database/sql has rolled back
				if _, err := tx.Prepare("SELECT 1"); errors.Is(err, sql.ErrTxDone) {
					return err
				}
			}
		}, want: context.Canceled, sent: "ROLLBACK"},
		"lost in the function": {f: func(_ *sql.Tx, cancel func()) error { cancel(); return driver.ErrBadConn }, want: context.Canceled, sent: "ROLLBACK"},
		"lost in COMMIT":       {f: func(*sql.Tx, func()) error { return nil }, commit: driver.ErrBadConn, want: driver.ErrBadConn, sent: "COMMIT"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		base := &losing{commit: func() error { cancel(); return c.commit }}
		pool := sql.OpenDB(base)
		err := InTx(ctx, pool, sql.TxOptions{}, func(tx *sql.Tx) error { return c.f(tx, cancel) })
		if !errors.Is(err, c.want) || errors.Is(err, sql.ErrTxDone) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		for pool.Stats().InUse > 0 { // database/sql rolls back in the background
			runtime.Gosched()
		}
		if sent := base.sent.Load(); sent != c.sent {
			t.Errorf("%s: %v is sent at the end", name, sent)
		}
		check(t, pool.Close())
		cancel()
	}
}

// losing is a driver whose COMMIT is a function.
type losing struct {
	commit func() error
	sent   atomic.Value // the end
}

func (l *losing) Connect(context.Context) (driver.Conn, error) { return l, nil }
func (l *losing) Driver() driver.Driver                        { return nil }
func (l *losing) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (l *losing) Close() error                                 { return nil }
func (l *losing) Begin() (driver.Tx, error)                    { return l, nil }
func (l *losing) Commit() error                                { l.sent.Store("COMMIT"); return l.commit() }
func (l *losing) Rollback() error                              { l.sent.Store("ROLLBACK"); return nil }

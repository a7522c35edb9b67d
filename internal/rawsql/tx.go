package rawsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/go-sql-driver/mysql"
)

// Beginner begins transactions: a pool, or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// InTx runs f in a transaction of lockstep's own, which it commits unless f returns an
// error. Where the end of the context has ended the transaction or its connection, it returns the
// context's error.
func InTx(ctx context.Context, db Beginner, options sql.TxOptions, f func(tx *sql.Tx) error) error {
	ended := func(err error) error { // not that of COMMIT, which may have been executed
		if ctx.Err() != nil && errors.Is(err, driver.ErrBadConn) {
			return ctx.Err()
		}
		return err
	}
	tx, err := db.BeginTx(ctx, &options)
	if err != nil {
		return ended(err)
	}
	if err = ended(f(tx)); err == nil {
		err = tx.Commit()
	} else if rollback := tx.Rollback(); !errors.Is(rollback, sql.ErrTxDone) && !errors.Is(rollback, driver.ErrBadConn) && !errors.Is(rollback, mysql.ErrInvalidConn) {
		err = errors.Join(err, rollback) // else it is rolled back, or the connection gone
	}
	if ctx.Err() != nil && errors.Is(err, sql.ErrTxDone) {
		return ctx.Err()
	}
	return err
}

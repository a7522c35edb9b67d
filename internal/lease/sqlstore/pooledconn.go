package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
)

// pooledConn is a connection of the program's pool that the renewal connection uses as its own.
// Only text without arguments is sent on it.
type pooledConn struct {
	driver.Conn
	taken  *sql.Conn
	failed bool // a statement has failed, so its state is not known
}

var (
	_ driver.ExecerContext   = (*pooledConn)(nil)
	_ driver.QueryerContext  = (*pooledConn)(nil)
	_ driver.ConnBeginTx     = (*pooledConn)(nil)
	_ driver.SessionResetter = (*pooledConn)(nil)
	_ driver.Validator       = (*pooledConn)(nil)
)

// ExecContext executes a statement without rows.
func (b *pooledConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	execer, ok := b.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	result, err := execer.ExecContext(ctx, query, args)
	b.failed = b.failed || err != nil
	return result, err
}

// QueryContext executes a statement with rows.
func (b *pooledConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	queryer, ok := b.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	rows, err := queryer.QueryContext(ctx, query, args)
	b.failed = b.failed || err != nil
	return rows, err
}

// BeginTx begins a transaction.
func (b *pooledConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	beginner, ok := b.Conn.(driver.ConnBeginTx)
	if !ok {
		return nil, fmt.Errorf("lease: %T does not implement driver.ConnBeginTx", b.Conn)
	}
	tx, err := beginner.BeginTx(ctx, opts)
	b.failed = b.failed || err != nil
	return tx, err
}

// ResetSession checks that the connection is still there.
func (b *pooledConn) ResetSession(ctx context.Context) error {
	if resetter, ok := b.Conn.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

// IsValid reports whether the connection can be used again.
func (b *pooledConn) IsValid() bool {
	if validator, ok := b.Conn.(driver.Validator); ok {
		return validator.IsValid()
	}
	return true
}

// Close returns the connection to the pool, which closes it if a statement has failed on
// it.
func (b *pooledConn) Close() error {
	if b.failed || !b.IsValid() {
		discard(b.taken)
		return nil
	}
	return b.taken.Close()
}

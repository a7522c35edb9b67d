package testdb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
)

// Conn is what a connection of go-sql-driver can do, and one of a guarded pool.
type Conn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// Wrapped returns a connector whose connections are what wrap makes of those of another, as
// instrumentation wraps them.
func Wrapped(c driver.Connector, wrap func(Conn) driver.Conn) driver.Connector {
	return wrapped{c, wrap}
}

type wrapped struct {
	driver.Connector
	wrap func(Conn) driver.Conn
}

// Connect connects to what can do all that the driver can.
func (w wrapped) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T lacks a method", conn), conn.Close())
	}
	return w.wrap(full), nil
}

// Edited is a connection that changes the text of each statement. It doesn't show the server's flags,
// without which a guarded pool merges no texts.
type Edited struct {
	Conn
	Edit func(query string) string
}

// PrepareContext prepares what Edit returns.
func (e Edited) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return e.Conn.PrepareContext(ctx, e.Edit(query))
}

// ExecContext executes what Edit returns.
func (e Edited) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return e.Conn.ExecContext(ctx, e.Edit(query), args)
}

// QueryContext runs what Edit returns.
func (e Edited) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return e.Conn.QueryContext(ctx, e.Edit(query), args)
}

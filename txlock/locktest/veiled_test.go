package locktest_test

import (
	"context"
	sqldriver "database/sql/driver"
)

// veiledConnector changes the texts of its connections. Being wrapped they don't show the
// server's flags, without which a guarded pool merges no texts.
type veiledConnector struct {
	sqldriver.Connector
	change func(query string) string
}

func (v veiledConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	base, err := v.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return veiled{base.(connection), v.change}, nil
}

// connection has the methods of go-sql-driver's connections.
type connection interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.Validator
	sqldriver.SessionResetter
	sqldriver.NamedValueChecker
}

type veiled struct {
	connection
	change func(query string) string
}

func (v veiled) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return v.connection.ExecContext(ctx, v.change(query), args)
}

func (v veiled) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return v.connection.QueryContext(ctx, v.change(query), args)
}

func (v veiled) PrepareContext(ctx context.Context, query string) (sqldriver.Stmt, error) {
	return v.connection.PrepareContext(ctx, v.change(query))
}

package faults

import (
	"context"
	"database/sql/driver"
	"maps"
	"slices"

	"github.com/XSAM/otelsql"
	"github.com/ngrok/sqlmw"
	"go.opentelemetry.io/otel/propagation"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// wrappers are what programs put around a driver, or a pool around what they have put
// around a driver, each in the shape of one that is in use.
var wrappers = map[string]func(driver.Connector) driver.Connector{
	// A SQL commenter (otelsql, Datadog) changes the text of each statement.
	"comment before": func(c driver.Connector) driver.Connector {
		return Rewriter(c, func(query string) string { return "/* application='chaos' */ " + query })
	},
	"comment behind": func(c driver.Connector) driver.Connector {
		return Rewriter(c, func(query string) string { return query + " /*traceparent='00-5bd66ef5095369c7b0d1f8f4bd33716a-01'*/" })
	},
	// Middleware (ngrok/sqlmw), which comments by an interceptor.
	"sqlmw": func(c driver.Connector) driver.Connector {
		wrapped, err := sqlmw.Driver(opened{c}, commenter{}).(driver.DriverContext).OpenConnector("")
		if err != nil {
			panic(err) // opened returns none
		}
		return wrapped
	},
	// OpenTelemetry (XSAM/otelsql), with the comment of its own commenter.
	"otelsql": func(c driver.Connector) driver.Connector {
		wrapped, err := otelsql.WrapDriver(opened{c}, otelsql.WithSQLCommenter(true), otelsql.WithTextMapPropagator(traceparent{})).(driver.DriverContext).OpenConnector("")
		if err != nil {
			panic(err) // opened returns none
		}
		return wrapped
	},
	// sqlhooks, instrumentedsql and New Relic leave out what database/sql does without.
	"no validator": func(c driver.Connector) driver.Connector {
		return testdb.Wrapped(c, func(conn testdb.Conn) driver.Conn { return unvalidated{conn, conn, conn, conn, conn, conn, conn} })
	},
	"no exec": func(c driver.Connector) driver.Connector {
		return testdb.Wrapped(c, func(conn testdb.Conn) driver.Conn { return unexecuting{conn, conn, conn, conn, conn, conn, conn, conn} })
	},
	// A wrapper from before contexts.
	"no context": func(c driver.Connector) driver.Connector {
		return testdb.Wrapped(c, func(conn testdb.Conn) driver.Conn { return detached{conn} })
	},
}

// WrapperNames are the names of all wrappers, in the order of the alphabet.
func WrapperNames() []string { return slices.Sorted(maps.Keys(wrappers)) }

// Wrapped returns a connector in the wrapper of that name, and the connector itself
// for "".
func Wrapped(name string, c driver.Connector) driver.Connector {
	if name == "" {
		return c
	}
	return wrappers[name](c)
}

// unvalidated is a connection that can't tell that it is broken.
type unvalidated struct {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.NamedValueChecker
}

// unexecuting is one whose statements without rows are prepared.
type unexecuting struct {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// detached is one that hands no context on.
type detached struct{ testdb.Conn }

func (c detached) BeginTx(_ context.Context, options driver.TxOptions) (driver.Tx, error) {
	return c.Conn.BeginTx(context.Background(), options)
}

func (c detached) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.Conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	full, ok := stmt.(fullStmt)
	if !ok {
		return stmt, nil
	}
	return detachedStmt{full}, nil
}

func (c detached) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.ExecContext(context.Background(), query, args)
}

func (c detached) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(context.Background(), query, args)
}

type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
}

type detachedStmt struct{ fullStmt }

func (s detachedStmt) ExecContext(_ context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.fullStmt.ExecContext(context.Background(), args)
}

func (s detachedStmt) QueryContext(_ context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.fullStmt.QueryContext(context.Background(), args)
}

// opened makes a connector a driver, which sqlmw begins with.
type opened struct{ connector driver.Connector }

func (o opened) Open(string) (driver.Conn, error) { return o.connector.Connect(context.Background()) }

func (o opened) OpenConnector(string) (driver.Connector, error) { return o.connector, nil }

// traceparent comments each statement, as a trace would that is under way.
type traceparent struct{}

func (traceparent) Inject(_ context.Context, carrier propagation.TextMapCarrier) {
	carrier.Set("traceparent", "00-5bd66ef5095369c7b0d1f8f4bd33716a-c532cb4098ac3dd2-01")
}

func (traceparent) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context {
	return ctx
}

func (traceparent) Fields() []string { return []string{"traceparent"} }

// commenter is an interceptor that comments each statement.
type commenter struct{ sqlmw.NullInterceptor }

const commented = "/* action='run' */ "

func (commenter) ConnPrepareContext(ctx context.Context, conn driver.ConnPrepareContext, query string) (context.Context, driver.Stmt, error) {
	stmt, err := conn.PrepareContext(ctx, commented+query)
	return ctx, stmt, err
}

func (commenter) ConnExecContext(ctx context.Context, conn driver.ExecerContext, query string, args []driver.NamedValue) (driver.Result, error) {
	return conn.ExecContext(ctx, commented+query, args)
}

func (commenter) ConnQueryContext(ctx context.Context, conn driver.QueryerContext, query string, args []driver.NamedValue) (context.Context, driver.Rows, error) {
	rows, err := conn.QueryContext(ctx, commented+query, args)
	return ctx, rows, err
}

package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/faults"
)

// wire is what stands between a pool and its server.
type wire struct {
	rewrite func(query string) string // plants a bug; nil for none
	clock   *atomic.Int64             // what the server's clock shows, in microseconds; nil for the true one
}

// open opens a pool over the wire, which is closed at the end of the test.
func (w wire) open(t *testing.T, db *testdb.DB, guarded bool) *sql.DB {
	t.Helper()
	pool, err := w.pool(db, guarded)
	fatal(t, err)
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Errorf("close the pool: %v", err)
		}
	})
	return pool
}

// pool returns a pool over the wire, to be closed.
func (w wire) pool(db *testdb.DB, guarded bool) (*sql.DB, error) {
	connector, err := mysql.NewConnector(db.Config())
	if err != nil {
		return nil, err
	}
	if w.rewrite != nil {
		connector = faults.Rewriter(connector, w.rewrite)
	}
	if w.clock != nil {
		connector = clocked{connector, w.clock}
	}
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	return sql.OpenDB(connector), nil
}

// clocked sets the clock of every session before each statement.
type clocked struct {
	driver.Connector
	clock *atomic.Int64
}

func (c clocked) Connect(ctx context.Context) (driver.Conn, error) {
	base, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := base.(faults.Conn)
	if !ok {
		return nil, fmt.Errorf("%T lacks a method", base)
	}
	conn := &clockedConn{Conn: full, clock: c.clock}
	if err := conn.sync(ctx); err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return conn, nil
}

type clockedConn struct {
	faults.Conn
	clock *atomic.Int64
	at    int64 // what the session's clock shows
}

// sync sets the session's clock, where that has moved. It stands still then until it
// is set again (MySQL manual, "Server System Variables", timestamp).
func (c *clockedConn) sync(ctx context.Context) error {
	at := c.clock.Load()
	if c.at == at {
		return nil
	}
	_, err := c.Conn.ExecContext(ctx, fmt.Sprintf("SET timestamp = %d.%06d", at/1e6, at%1e6), nil)
	if err == nil {
		c.at = at
	}
	return err
}

func (c *clockedConn) ResetSession(ctx context.Context) error {
	if err := c.Conn.ResetSession(ctx); err != nil {
		return err
	}
	return c.sync(ctx)
}

func (c *clockedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	return c.Conn.ExecContext(ctx, testdb.Unseen(query), args)
}

func (c *clockedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	return c.Conn.QueryContext(ctx, testdb.Unseen(query), args)
}

func (c *clockedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	return c.Conn.PrepareContext(ctx, testdb.Unseen(query))
}

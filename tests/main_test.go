package tests

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) {
	// The defaults of rapid, which the command line overrides: -rapid.seed=0 draws a new seed.
	for name, value := range map[string]string{
		"rapid.checks": testdb.Long("8", "1000"), "rapid.seed": fmt.Sprint(testdb.Seed()), "rapid.nofailfile": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	testdb.Main(m)
}

var onServers, fatal, wants = testdb.OnServers, leasetest.Must, leasetest.Wants

func second[T any](_ T, err error) error { return err }

// wire is what stands between a pool and its server.
type wire struct {
	rewrite func(query string) string // plants a bug; nil for none
	clock   *atomic.Int64             // what the server's clock shows, in microseconds; nil for the true one
}

// open opens a pool over the wire, which is closed at the end of the test.
func (w wire) open(t *testing.T, db *testdb.DB, guarded bool) *sql.DB {
	t.Helper()
	pool := leasetest.Got(w.pool(db, guarded))(t)
	t.Cleanup(func() {
		wants(t, "close the pool", pool.Close(), nil)
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
	full, ok := base.(testdb.Conn)
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
	testdb.Conn
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

// network is a way to a server that can be made bad.
type network struct{ *faults.Network }

// newNetwork puts a network before the server.
func newNetwork(t testing.TB, db *testdb.DB) network {
	t.Helper()
	n := leasetest.Got(faults.NewNetwork(db.AdminConfig().Addr))(t)
	t.Cleanup(func() { fatal(t, n.Close()) })
	return network{n}
}

// faultPool is a pool of the application's user, whose connections go by the
// network where one is given.
func faultPool(t testing.TB, db *testdb.DB, n network, wrap func(driver.Connector) driver.Connector) *sql.DB {
	t.Helper()
	cfg := db.Config()
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	if n.Network != nil {
		cfg.DialFunc = n.Dial
	}
	connector := leasetest.Got(mysql.NewConnector(cfg))(t)
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() {
		if n := testdb.InUse(pool); n != 0 {
			t.Errorf("%d connections are in use at the end", n)
		}
		_ = pool.Close() // which complains of connections that were cut
	})
	return pool
}

func guarded(c driver.Connector) driver.Connector { return locksqlc.Connector(c) }

// faultManager is a manager that is closed at the end, whatever has become of its
// leases.
func faultManager(t testing.TB, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m := leasetest.Got(lease.NewManager(pool, options...))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = m.Close(ctx) // which complains of what it can't release over a bad network
	})
	return m
}

// count reads a number as the administrator, past the network.
func count(t testing.TB, db *testdb.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.Admin().QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestFailoverBreaksALease proves what a quorum is for: a lease of one database, for which another
// stands in that knows nothing of it, is held by two when a client can't reach the first.
func TestFailoverBreaksALease(t *testing.T) {
	t.Parallel()
	server := testdb.Shared(t, testdb.Engines()[0])
	first, second := server.OpenLeases(t), server.OpenLeases(t)
	standby := leasetest.Got(mysql.NewConnector(second.Config()))(t)
	pair := func(primary driver.Connector) driver.Connector { return failover{primary, standby} }
	key := txlock.Named("failover:" + rand.Text())
	held := leasetest.Got(faultManager(t, faultPool(t, first, network{}, pair)).Acquire(t.Context(), key))(t)
	way := newNetwork(t, first)
	fatal(t, way.Down())
	other := leasetest.Got(faultManager(t, faultPool(t, first, way, pair)).Acquire(t.Context(), key))(t)
	wants(t, "one of two holders knows that it is not alone", errors.Join(held.Err(), other.Err()), nil)
}

// failover connects to the second database when the first can't be reached.
type failover struct {
	driver.Connector
	second driver.Connector
}

func (f failover) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	if err != nil {
		conn, err = f.second.Connect(ctx)
	}
	return conn, err
}

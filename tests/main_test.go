package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
		connector = testdb.Wrapped(connector, func(base testdb.Conn) driver.Conn {
			c := &clocked{clock: w.clock}
			c.Edited = testdb.Edited{Conn: base, Edit: func(query string) string {
				c.sync()
				return testdb.Unseen(query)
			}}
			return c
		})
	}
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	return sql.OpenDB(connector), nil
}

// clocked is a connection that sets the clock of its session before each statement.
type clocked struct {
	testdb.Edited
	clock *atomic.Int64
	at    int64 // what the session's clock shows
}

// sync sets the session's clock, where that has moved. It stands still then until it
// is set again (MySQL manual, "Server System Variables", timestamp).
func (c *clocked) sync() {
	at := c.clock.Load()
	if c.at == at {
		return
	}
	if _, err := c.Conn.ExecContext(context.Background(), fmt.Sprintf("SET timestamp = %d.%06d", at/1e6, at%1e6), nil); err == nil {
		c.at = at // else the statement fails, too
	}
}

func (c *clocked) ResetSession(ctx context.Context) error {
	err := c.Conn.ResetSession(ctx)
	if err == nil {
		c.sync() // for statements that are prepared
	}
	return err
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

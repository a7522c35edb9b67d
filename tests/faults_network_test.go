package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/txlock/lease"
)

// network is a way to a server that can be made bad.
type network struct{ *faults.Network }

// newNetwork puts a network before the server.
func newNetwork(t testing.TB, db *testdb.DB) network {
	t.Helper()
	n, err := faults.NewNetwork(db.AdminConfig().Addr)
	fatal(t, err)
	t.Cleanup(func() { fatal(t, n.Close()) })
	return network{n}
}

// slow and hang are Slow and Hang.
func (n network) slow(t testing.TB, stream string, least, most time.Duration) {
	t.Helper()
	fatal(t, n.Slow(stream, least, most))
}

func (n network) hang(t testing.TB) {
	t.Helper()
	fatal(t, n.Hang())
}

// down is Down.
func (n network) down(t testing.TB) {
	t.Helper()
	if err := n.Down(); err != nil {
		t.Error(err)
	}
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
	connector, err := mysql.NewConnector(cfg)
	fatal(t, err)
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() {
		if n := testdb.InUse(pool); n != 0 {
			t.Errorf("%d connections are in use at the end", n)
		}
		_ = pool.Close() // which complains of connections that were cut
	})
	return pool
}

// The kinds of pools.
func guarded(c driver.Connector) driver.Connector { return locksqlc.Connector(c) }
func plain(c driver.Connector) driver.Connector   { return c }

// rewritten is a plain pool, the text of whose statements is changed, to plant a
// bug.
func rewritten(rewrite func(string) string) func(driver.Connector) driver.Connector {
	return func(c driver.Connector) driver.Connector { return faults.Rewriter(c, rewrite) }
}

// faultManager is a manager that is closed at the end, whatever has become of its
// leases.
func faultManager(t testing.TB, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(pool, options...)
	fatal(t, err)
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

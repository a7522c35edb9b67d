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

func guarded(c driver.Connector) driver.Connector { return locksqlc.Connector(c) }

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

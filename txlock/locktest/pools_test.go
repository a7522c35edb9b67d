package locktest_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock/lease"
)

// leasesOf returns a manager, which is closed when the test ends.
func leasesOf(t *testing.T, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(pool, options...)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

// guardedPool opens a guarded pool of a server.
func guardedPool(t *testing.T, db *testdb.DB) *sql.DB { return opened(t, db, guarded) }

// plainPool opens one without the guard.
func plainPool(t *testing.T, db *testdb.DB) *sql.DB {
	return opened(t, db, func(base sqldriver.Connector) sqldriver.Connector { return base })
}

// opened opens a pool of a server, whose connector wrap changes.
func opened(t *testing.T, db *testdb.DB, wrap func(sqldriver.Connector) sqldriver.Connector) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(db.Config())
	must(t, err)
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() { must(t, pool.Close()) })
	return pool
}

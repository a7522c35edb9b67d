package recipes_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/newrelic/go-agent/v3/newrelic"

	"github.com/dca00107/lockstep/locksqlc"
)

// openGuarded opens a guarded pool over a driver that a library has registered by name, as
// nrmysql registers "nrmysql".
func openGuarded(driverName, dsn string) (*sql.DB, error) {
	pool, err := sql.Open(driverName, dsn) // connects to nothing
	if err != nil {
		return nil, err
	}
	wrapped, ok := pool.Driver().(driver.DriverContext)
	if err := pool.Close(); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("the driver %s has no connectors", driverName)
	}
	base, err := wrapped.OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(locksqlc.Connector(base)), nil
}

func init() { // what nrmysql does, which parses the statements as well
	sql.Register("nrmysql", newrelic.InstrumentSQLDriver(mysql.MySQLDriver{}, newrelic.SQLDriverSegmentBuilder{
		BaseSegment: newrelic.DatastoreSegment{Product: newrelic.DatastoreMySQL},
	}))
}

func TestNewRelic(t *testing.T) {
	onShops(t, func(t *testing.T, dsn string, product int64) {
		db, err := openGuarded("nrmysql", dsn)
		check(t, err)
		defer func() { check(t, db.Close()) }()
		sells(t, db, product, func(ctx context.Context) error { return sell(ctx, db, product) })
	})
	if _, err := openGuarded("nrmysql", "no slash"); err == nil {
		t.Error("a wrong data source name has opened a pool")
	}
}

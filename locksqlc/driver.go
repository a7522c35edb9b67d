package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// DriverName is the name under which this package registers a driver with database/sql.
// The pools of this driver are guarded, as those of Open. Use it with libraries that open
// a pool by the name of a driver:
//
//	db, err := otelsql.Open(locksqlc.DriverName, dsn)
//	db, err := sqlx.Connect(locksqlc.DriverName, dsn)
//
// The name begins with "mysql" because some libraries derive the dialect from it. A pool
// that is opened by name has no options; use Connector for these.
const DriverName = "mysql-lockstep"

func init() { sql.Register(DriverName, namedDriver{}) }

// namedDriver opens connections of guarded pools.
type namedDriver struct{}

// Open is called by wrappers that don't know driver.DriverContext.
func (d namedDriver) Open(dsn string) (driver.Conn, error) {
	c, err := d.OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	return c.Connect(context.Background())
}

// OpenConnector parses the data source name.
func (namedDriver) OpenConnector(dsn string) (driver.Connector, error) {
	base, err := connectorOf(dsn)
	if err != nil {
		return nil, err
	}
	return namedConnector{Connector(base)}, nil
}

// TakesText says to package rawsql that the driver below is go-sql-driver/mysql.
func (namedDriver) TakesText() bool { return true }

// namedConnector is a guarded connector whose pool has namedDriver as its driver: wrappers
// such as otelsql.Open take the driver of the pool and open connections with it.
type namedConnector struct{ driver.Connector }

func (namedConnector) Driver() driver.Driver { return namedDriver{} }

var _ driver.DriverContext = namedDriver{}

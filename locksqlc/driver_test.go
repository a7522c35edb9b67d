package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// byOpen is a connector as wrappers make them that know only Driver.Open.
type byOpen struct {
	driver driver.Driver
	dsn    string
}

func (c byOpen) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c byOpen) Driver() driver.Driver                        { return c.driver }

// byContext is a connector as wrappers make them that know driver.DriverContext.
func byContext(t *testing.T, d driver.Driver, dsn string) driver.Connector {
	c, err := d.(driver.DriverContext).OpenConnector(dsn)
	check(t, err)
	return c
}

// TestDriverName proves that each pool that is opened by name, or by the driver of such a
// pool, is guarded, and that its locks exclude those of Open.
func TestDriverName(t *testing.T) {
	onServers(t, func(t *testing.T, server *testdb.DB) {
		dsn := server.DSN()
		named, err := sql.Open(locksqlc.DriverName, dsn)
		check(t, err)
		ours := namedDriver(t) // found with an empty name, as otelsql does
		pools := map[string]*sql.DB{
			"sql.Open": named, "Driver.Open": sql.OpenDB(byOpen{ours, dsn}), "OpenConnector": sql.OpenDB(byContext(t, ours, dsn)),
		}
		other := newPool(t, server.Config(), true)
		for how, pool := range pools {
			t.Cleanup(func() { check(t, pool.Close()) })
			isError(t, how, txlock.CheckGuarded(t.Context(), pool), nil)
			if !rawsql.TakesText(pool) {
				t.Errorf("%s: its statements would be prepared", how)
			}
			key := txlock.NewFamily[string]("named", txlock.Exact()).Key(how)
			try := func() error {
				return locksqlc.Run(t.Context(), other, nil, func(tx *sql.Tx) error { return second(join(t, tx).TryLock(t.Context(), key)) })
			}
			check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error {
				isError(t, how, try(), txlock.ErrBusy)
				return nil
			}))
			check(t, try())
		}
	})
}

// TestDriverNameRefusesWrongNames proves that a data source name that can't be parsed is
// refused before a connection is made.
func TestDriverNameRefusesWrongNames(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"no slash", "user@tcp(host:1)/db?parseTime=perhaps"} {
		says(t, dsn, second(sql.Open(locksqlc.DriverName, dsn)), nil, "parse the data source name")
	}
	pool := sql.OpenDB(byOpen{namedDriver(t), "no slash"})
	says(t, "Open", pool.PingContext(t.Context()), nil, "parse the data source name")
	check(t, pool.Close())
}

func namedDriver(t *testing.T) driver.Driver {
	pool, err := sql.Open(locksqlc.DriverName, "")
	check(t, err)
	defer func() { check(t, pool.Close()) }()
	return pool.Driver()
}

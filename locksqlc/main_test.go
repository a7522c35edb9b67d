package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestSuite(t *testing.T) { locksuite.Run(t, adapters...) }

var adapters = []locksuite.Adapter{
	{Name: "sqltx-guarded", Guarded: true, Open: locksuite.OpenSQL(true, locksuite.BeginTx)},
	{Name: "sqltx-plain", Open: locksuite.OpenSQL(false, locksuite.BeginTx)},
	{Name: "sqlconn-guarded", Guarded: true, Open: locksuite.OpenSQL(true, beginConn)},
	{Name: "sqlconn-plain", Open: locksuite.OpenSQL(false, beginConn)},
}

// connSession joins a *sql.Conn on which BEGIN was sent.
type connSession struct {
	locksuite.Statements
	conn *sql.Conn
}

func beginConn(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := connSession{locksuite.Statements{On: conn}, conn}
	for _, text := range []string{"SET TRANSACTION ISOLATION LEVEL " + map[sql.IsolationLevel]string{
		sql.LevelRepeatableRead: "REPEATABLE READ", sql.LevelReadCommitted: "READ COMMITTED",
	}[level], "BEGIN"} {
		if err := s.Exec(ctx, text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s connSession) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.JoinConn(ctx, s.conn, options...)
}

func (s connSession) Commit() error   { return s.end("COMMIT") }
func (s connSession) Rollback() error { return s.end("ROLLBACK") }

// end ends the transaction and returns the connection.
func (s connSession) end(text string) error {
	err := s.Exec(context.Background(), text)
	if closeErr := s.conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

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

func namedDriver(t *testing.T) driver.Driver {
	pool, err := sql.Open(locksqlc.DriverName, "")
	check(t, err)
	defer func() { check(t, pool.Close()) }()
	return pool.Driver()
}

package recipes_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/XSAM/otelsql"
	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/newrelic/go-agent/v3/newrelic"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"xorm.io/xorm"

	lockent "github.com/dca00107/lockstep/contrib/ent"
	lockxorm "github.com/dca00107/lockstep/contrib/xorm"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// pieces is how many of a product there are.
const pieces = 40

// Stock makes the keys of products.
var Stock = txlock.NewFamily[int64]("stock")

var check = testdb.Must

// sells sells all pieces of a product with several programs at once, and finds none left. A
// guarded pool is what they must have.
func sells(t *testing.T, db *sql.DB, product int64, sell func(ctx context.Context) error) {
	t.Helper()
	err := txlock.CheckGuarded(t.Context(), db)
	testdb.ErrorIf(t, err != nil, "%v", err)
	var selling sync.WaitGroup
	for worker := range 4 {
		selling.Go(func() {
			for i := worker; i < pieces; i += 4 {
				err := retry(func() error { return sell(t.Context()) })
				testdb.ErrorIf(t, err != nil, "%v", err)
			}
		})
	}
	selling.Wait()
	var left int
	check(t, db.QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = ?", product).Scan(&left))
	testdb.ErrorIf(t, left != 0, "%d pieces are left, want none", left)
}

// retry runs a transaction again that the server has rolled back.
func retry(transaction func() error) (err error) {
	for range 10 {
		if err = transaction(); !txlock.Retryable(err) {
			return err
		}
	}
	return err
}

// openTraced opens a guarded pool whose statements are traced.
func openTraced(dsn string) (*sql.DB, error) {
	return otelsql.Open(locksqlc.DriverName, dsn)
}

// registerTraced registers a driver that traces, for libraries that open by name.
func registerTraced() (driverName string, err error) {
	return otelsql.Register(locksqlc.DriverName)
}

// sell sells one piece in a transaction of Run.
func sell(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, Stock.Keys(id), func(tx *sql.Tx) error {
		var n int64
		if err := tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = ?", id).Scan(&n); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE stock SET n = ? WHERE id = ?", n-1, id)
		return err
	})
}

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

// sellBySQLX sells one piece. A *sqlx.Tx is a txlock.Tx.
func sellBySQLX(ctx context.Context, db *sqlx.DB, id int64) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	locks, err := txlock.Join(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := locks.Lock(ctx, Stock.Key(id)); err != nil {
		return err
	}
	var n int64
	if err := tx.GetContext(ctx, &n, "SELECT n FROM stock WHERE id = ?", id); err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, "UPDATE stock SET n = :n WHERE id = :id", map[string]any{"n": n - 1, "id": id}); err != nil {
		return err
	}
	return tx.Commit()
}

func openSQLX(ctx context.Context, dsn string) (*sqlx.DB, error) {
	return sqlx.ConnectContext(ctx, locksqlc.DriverName, dsn)
}

// sellByBun sells one piece. A bun.Tx has the *sql.Tx in it.
func sellByBun(ctx context.Context, db *bun.DB, id int64) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		locks, err := locksqlc.Join(ctx, tx.Tx)
		if err != nil {
			return err
		}
		if _, err := locks.Lock(ctx, Stock.Key(id)); err != nil {
			return err
		}
		var n int64
		if err := tx.NewSelect().Table("stock").Column("n").Where("id = ?", id).Scan(ctx, &n); err != nil {
			return err
		}
		_, err = tx.NewUpdate().Table("stock").Set("n = ?", n-1).Where("id = ?", id).Exec(ctx)
		return err
	})
}

func openBun(dsn string) (*bun.DB, error) {
	db, err := locksqlc.Open(dsn)
	if err != nil {
		return nil, err
	}
	return bun.NewDB(db, mysqldialect.New()), nil
}

// sellByXORM sells one piece.
func sellByXORM(ctx context.Context, engine *xorm.Engine, id int64) error {
	session := engine.NewSession().Context(ctx)
	defer func() { _ = session.Close() }() // rolls back, unless it is committed
	if err := session.Begin(); err != nil {
		return err
	}
	locks, err := lockxorm.Join(ctx, session)
	if err != nil {
		return err
	}
	if _, err := locks.Lock(ctx, Stock.Key(id)); err != nil {
		return err
	}
	var n int64
	if _, err := session.Table("stock").Where("id = ?", id).Cols("n").Get(&n); err != nil {
		return err
	}
	if _, err := session.Table("stock").Where("id = ?", id).Update(map[string]any{"n": n - 1}); err != nil {
		return err
	}
	return session.Commit()
}

func openXORM(dsn string) (*xorm.Engine, error) {
	return xorm.NewEngine(locksqlc.DriverName, dsn)
}

// sellByEnt sells one piece. A program makes its generated client of the driver:
//
//	client := ent.NewClient(ent.Driver(lockent.Driver(tx)))
func sellByEnt(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, Stock.Keys(id), func(tx *sql.Tx) error {
		drv := lockent.Driver(tx)
		var rows entsql.Rows
		if err := drv.Query(ctx, "SELECT n FROM stock WHERE id = ?", []any{id}, &rows); err != nil {
			return err
		}
		n, err := entsql.ScanInt64(rows)
		if err = errors.Join(err, rows.Close()); err != nil {
			return err
		}
		return drv.Exec(ctx, "UPDATE stock SET n = ? WHERE id = ?", []any{n - 1, id}, nil)
	})
}

// TestSales sells all pieces of a product by each library on each server, in a database of the test.
func TestSales(t *testing.T) {
	t.Parallel()
	if _, err := openGuarded("nrmysql", "no slash"); err == nil {
		t.Error("a wrong data source name has opened a pool")
	}
	type sale = func(ctx context.Context) error
	by := func(db *sql.DB, err error) func(t *testing.T, id int64) (*sql.DB, sale) {
		return func(t *testing.T, id int64) (*sql.DB, sale) {
			check(t, err)
			return db, func(ctx context.Context) error { return sell(ctx, db, id) }
		}
	}
	for name, open := range map[string]func(t *testing.T, dsn string, id int64) (*sql.DB, sale){
		"otelsql": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) { return by(openTraced(dsn))(t, id) },
		"otelsql by name": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) {
			return by(sql.Open(testdb.Got(registerTraced())(t), dsn))(t, id)
		},
		"newrelic": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) {
			return by(openGuarded("nrmysql", dsn))(t, id)
		},
		"sqlx": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) {
			db := testdb.Got(openSQLX(t.Context(), dsn))(t)
			return db.DB, func(ctx context.Context) error { return sellBySQLX(ctx, db, id) }
		},
		"bun": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) {
			db := testdb.Got(openBun(dsn))(t)
			return db.DB, func(ctx context.Context) error { return sellByBun(ctx, db, id) }
		},
		"xorm": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) {
			db := testdb.Got(openXORM(dsn))(t)
			return db.DB().DB, func(ctx context.Context) error { return sellByXORM(ctx, db, id) }
		},
		"ent": func(t *testing.T, dsn string, id int64) (*sql.DB, sale) {
			drv := testdb.Got(entsql.Open(locksqlc.DriverName, dsn))(t)
			testdb.Equal(t, "what ent takes it for", drv.Dialect(), "mysql")
			return drv.DB(), func(ctx context.Context) error { return sellByEnt(ctx, drv.DB(), id) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
				shop := testdb.Open(t, engine)
				shop.Exec(t, "CREATE TABLE IF NOT EXISTS stock (id BIGINT PRIMARY KEY AUTO_INCREMENT, n BIGINT NOT NULL)")
				row := testdb.Got(shop.Admin().ExecContext(t.Context(), "INSERT INTO stock (n) VALUES (?)", pieces))(t)
				product := testdb.Got(row.LastInsertId())(t)
				db, sale := open(t, shop.AdminDSN(), product)
				defer func() { check(t, db.Close()) }()
				sells(t, db, product, sale)
			})
		})
	}
}

package recipes_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/XSAM/otelsql"

	"github.com/dca00107/lockstep/locksqlc"
)

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

func TestOtelSQL(t *testing.T) {
	onShops(t, func(t *testing.T, dsn string, product int64) {
		opened, err := openTraced(dsn)
		check(t, err)
		name, err := registerTraced()
		check(t, err)
		named, err := sql.Open(name, dsn)
		check(t, err)
		for _, db := range []*sql.DB{opened, named} {
			defer func() { check(t, db.Close()) }()
			_, err := db.ExecContext(t.Context(), "UPDATE stock SET n = ? WHERE id = ?", pieces, product)
			check(t, err)
			sells(t, db, product, func(ctx context.Context) error { return sell(ctx, db, product) })
		}
	})
}

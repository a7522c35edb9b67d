package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	entsql "entgo.io/ent/dialect/sql"

	lockent "github.com/dca00107/lockstep/contrib/ent"
	"github.com/dca00107/lockstep/locksqlc"
)

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

func TestEnt(t *testing.T) {
	onShops(t, func(t *testing.T, dsn string, product int64) {
		drv, err := entsql.Open(locksqlc.DriverName, dsn)
		check(t, err)
		defer func() { check(t, drv.Close()) }()
		if drv.Dialect() != "mysql" {
			t.Errorf("ent takes it for %s", drv.Dialect())
		}
		sells(t, drv.DB(), product, func(ctx context.Context) error { return sellByEnt(ctx, drv.DB(), product) })
	})
}

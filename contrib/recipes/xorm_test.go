package recipes_test

import (
	"context"
	"testing"

	"xorm.io/xorm"

	lockxorm "github.com/dca00107/lockstep/contrib/xorm"
	"github.com/dca00107/lockstep/locksqlc"
)

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

func TestXORM(t *testing.T) {
	onShops(t, func(t *testing.T, dsn string, product int64) {
		engine, err := openXORM(dsn)
		check(t, err)
		defer func() { check(t, engine.Close()) }()
		sells(t, engine.DB().DB, product, func(ctx context.Context) error { return sellByXORM(ctx, engine, product) })
	})
}

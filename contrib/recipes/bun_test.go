package recipes_test

import (
	"context"
	"testing"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"

	"github.com/dca00107/lockstep/locksqlc"
)

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

func TestBun(t *testing.T) {
	onShops(t, func(t *testing.T, dsn string, product int64) {
		db, err := openBun(dsn)
		check(t, err)
		defer func() { check(t, db.Close()) }()
		sells(t, db.DB, product, func(ctx context.Context) error { return sellByBun(ctx, db, product) })
	})
}

// Package helper has what other packages call with their transactions and pools.
package helper

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// Orders are the keys.
var Orders = txlock.NewFamily[int64]("order")

// LockOrder locks in the transaction of its caller.
func LockOrder(ctx context.Context, tx *sql.Tx, id int64) error { return lockOrder(ctx, tx, id) }

func lockOrder(ctx context.Context, tx *sql.Tx, id int64) error {
	locks, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	_, err = locks.Lock(ctx, Orders.Key(id))
	return err
}

// LockGorm does so with GORM.
func LockGorm(tx *gorm.DB, id int64) error {
	_, err := lockgorm.Lock(tx, Orders.Key(id))
	return err
}

// Count queries the pool.
func Count(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders").Scan(&n)
	return n, err
}

// Name does not.
func Name(db *sql.DB) string {
	if db == nil {
		return "none"
	}
	return "some"
}

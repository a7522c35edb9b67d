// Package lockfirst has queries before locks.
package lockfirst

import (
	"context"
	"database/sql"

	"example.com/shop/helper"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

type order struct{ ID, Account int64 }

const count = "/* one */ SELECT n FROM orders WHERE id = ?"

func late(ctx context.Context, tx *sql.Tx, id int64) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM orders WHERE id = ?", id).Scan(&n); err != nil { // want `a query before the lock of tx`
		return err
	}
	locks, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	_, err = locks.Lock(ctx, helper.Orders.Key(id))
	return err
}

func lateHelper(ctx context.Context, tx *sql.Tx, queries *shopdb.Queries, id int64) error {
	q := queries.WithTx(tx)
	if _, err := q.Tally(ctx); err != nil { // want `a query before the lock of tx`
		return err
	}
	return helper.LockOrder(ctx, tx, id)
}

func lateGorm(db *gorm.DB, id int64) error {
	return db.Transaction(func(tx *gorm.DB) error {
		var o order
		if err := tx.First(&o, id).Error; err != nil { // want `a query before the lock of tx`
			return err
		}
		_, err := lockgorm.Lock(tx, helper.Orders.Key(id))
		return err
	})
}

func lateShared(db *gorm.DB, id int64) error {
	return db.Transaction(func(tx *gorm.DB) error {
		var o order
		if err := tx.First(&o, id).Error; err != nil { // want `a query before the lock of tx`
			return err
		}
		locks, err := lockgorm.Join(tx)
		if err != nil {
			return err
		}
		_, err = locks.RLock(tx.Statement.Context, helper.Orders.Key(id))
		return err
	})
}

// The query tells the key.
func dependent(db *gorm.DB, id int64) error {
	return db.Transaction(func(tx *gorm.DB) error {
		var o order
		if err := tx.First(&o, id).Error; err != nil {
			return err
		}
		_, err := lockgorm.Lock(tx, helper.Orders.Key(o.Account))
		return err
	})
}

func pointed(tx *gorm.DB, o *order) error {
	if err := tx.First(o, 1).Error; err != nil {
		return err
	}
	return helper.LockGorm(tx, o.Account)
}

// The query tells whether a lock is needed.
func conditional(ctx context.Context, tx *sql.Tx, id int64) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM orders WHERE id = ?", id).Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	return helper.LockOrder(ctx, tx, id)
}

// The query locks, or stands under a lock.
func locked(ctx context.Context, tx *sql.Tx, id, other int64) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT n FROM orders WHERE id = ? FOR UPDATE", id).Scan(&n); err != nil {
		return err
	}
	if err := helper.LockOrder(ctx, tx, id); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT n FROM orders WHERE id = ?", id).Scan(&n); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

func lockedGorm(tx *gorm.DB, id int64) error {
	var o order
	if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).First(&o, id).Error; err != nil {
		return err
	}
	return helper.LockGorm(tx, id)
}

// The transaction has locked keys before.
func lockedByRun(ctx context.Context, db *sql.DB, id, other int64) error {
	return locksqlc.Run(ctx, db, helper.Orders.Keys(id), func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
			return err
		}
		return helper.LockOrder(ctx, tx, other)
	})
}

func lockedByGorm(db *gorm.DB, id, other int64) error {
	return lockgorm.Transaction(db, helper.Orders.Keys(id), func(tx *gorm.DB) error {
		if err := tx.First(&order{}, id).Error; err != nil {
			return err
		}
		return helper.LockGorm(tx, other)
	})
}

func lockedByName(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, helper.Orders.Keys(id), more)
}

func more(tx *sql.Tx) error {
	ctx, other := context.Background(), int64(1)
	if err := tx.QueryRowContext(ctx, count, 1).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

func handed(ctx context.Context, tx *sql.Tx, other int64) error {
	if err := tx.QueryRowContext(ctx, count, 1).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

func hand(ctx context.Context, tx *sql.Tx, id int64) error { return handed(ctx, tx, id+1) }

func lockedByCaller(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, helper.Orders.Keys(id), func(tx *sql.Tx) error { return hand(ctx, tx, id) })
}

func lockedByWrapper(ctx context.Context, s *helper.Store, id, other int64) error {
	return s.Locked(ctx, id, func(ctx context.Context, tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
			return err
		}
		return helper.LockOrder(ctx, tx, other)
	})
}

func lockedInWrapper(db *gorm.DB, id, other int64) error {
	return begin(db, id, func(tx *gorm.DB) error {
		if err := tx.First(&order{}, id).Error; err != nil {
			return err
		}
		return helper.LockGorm(tx, other)
	})
}

func begin(db *gorm.DB, id int64, fn func(tx *gorm.DB) error) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if err := helper.LockGorm(tx, id); err != nil {
			return err
		}
		return fn(tx)
	})
}

// Without a key they haven't.
func unlocked(ctx context.Context, db *sql.DB, orm *gorm.DB, id int64) error {
	err := locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil { // want `a query before the lock of tx`
			return err
		}
		return helper.LockOrder(ctx, tx, id)
	})
	if err != nil {
		return err
	}
	return lockgorm.Transaction(orm, nil, func(tx *gorm.DB) error {
		if err := tx.First(&order{}, id).Error; err != nil { // want `a query before the lock of tx`
			return err
		}
		return helper.LockGorm(tx, id)
	})
}

// Two transactions.
func two(ctx context.Context, read, tx *sql.Tx, id int64) error {
	var n int
	if err := read.QueryRowContext(ctx, "SELECT n FROM orders WHERE id = ?", id).Scan(&n); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, id)
}

// The caller locks, and the function makes sure of it.
func asserted(ctx context.Context, tx *sql.Tx, id, other int64) error {
	if err := txlock.AssertLocked(ctx, tx, helper.Orders.Key(id)); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

func assertedShared(ctx context.Context, tx *sql.Tx, id, other int64) error {
	if err := txlock.AssertRLocked(ctx, tx, helper.Orders.Key(id)); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

func assertedGorm(tx *gorm.DB, id, other int64) error {
	if err := lockgorm.AssertLocked(tx, helper.Orders.Key(id)); err != nil {
		return err
	}
	if err := tx.First(&order{}, id).Error; err != nil {
		return err
	}
	return helper.LockGorm(tx, other)
}

func held(ctx context.Context, tx *sql.Tx, id, other int64) error {
	locks, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	if _, ok := locks.Held(helper.Orders.Key(id)); !ok {
		return txlock.ErrNotHeld
	}
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

// To make sure of it behind the query is too late.
func assertedLate(ctx context.Context, tx *sql.Tx, id, other int64) error {
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil { // want `a query before the lock of tx`
		return err
	}
	if err := txlock.AssertLocked(ctx, tx, helper.Orders.Key(id)); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

// The lock stands above the block.
func lockedOutside(ctx context.Context, tx *sql.Tx, ids []int64) error {
	if err := helper.LockOrder(ctx, tx, 1); err != nil {
		return err
	}
	for _, id := range ids {
		if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
			return err
		}
		if err := helper.LockOrder(ctx, tx, id); err != nil {
			return err
		}
	}
	return nil
}

// The caller locks by itself.
func lockedInRun(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		if err := helper.LockOrder(ctx, tx, id); err != nil {
			return err
		}
		return inner(ctx, tx, id+1)
	})
}

func inner(ctx context.Context, tx *sql.Tx, other int64) error {
	if err := tx.QueryRowContext(ctx, count, 1).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

func lockedInGorm(db *gorm.DB, id int64) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if _, err := lockgorm.Lock(tx, helper.Orders.Key(id)); err != nil {
			return err
		}
		return innerGorm(tx, id+1)
	})
}

func innerGorm(tx *gorm.DB, other int64) error {
	if err := tx.First(&order{}, 1).Error; err != nil {
		return err
	}
	return helper.LockGorm(tx, other)
}

// A lock behind the call is none.
func lockedBehind(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		if err := innerLate(ctx, tx, id+1); err != nil {
			return err
		}
		return helper.LockOrder(ctx, tx, id)
	})
}

func innerLate(ctx context.Context, tx *sql.Tx, other int64) error {
	if err := tx.QueryRowContext(ctx, count, 1).Err(); err != nil { // want `a query before the lock of tx`
		return err
	}
	return helper.LockOrder(ctx, tx, other)
}

// At READ COMMITTED each query has its own snapshot.
func begunRelaxed(ctx context.Context, db *sql.DB, id int64) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, id)
}

func begunRepeatable(ctx context.Context, db *sql.DB, id int64) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: false})
	if err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil { // want `a query before the lock of tx`
		return err
	}
	return helper.LockOrder(ctx, tx, id)
}

func begunSomehow(ctx context.Context, db *sql.DB, options *sql.TxOptions, id int64) error {
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
		return err
	}
	return helper.LockOrder(ctx, tx, id)
}

func runRelaxed(ctx context.Context, db *sql.DB, id int64) error {
	return locksqlc.Run(ctx, db, nil, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
			return err
		}
		return helper.LockOrder(ctx, tx, id)
	}, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

func wrapRelaxed(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	return locksqlc.Run(ctx, db, nil, fn, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

func wrappedRelaxed(ctx context.Context, db *sql.DB, id int64) error {
	return wrapRelaxed(ctx, db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, count, id).Err(); err != nil {
			return err
		}
		return helper.LockOrder(ctx, tx, id)
	})
}

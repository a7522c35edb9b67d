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

// Store has a pool, and what queries it.
type Store struct {
	db  *sql.DB
	orm *gorm.DB
}

// Audits is a pool of the package.
var Audits *sql.DB

// DB is the pool of a store.
func (s *Store) DB() *sql.DB { return s.db }

// Count queries the pool of the store.
func (s *Store) Count(ctx context.Context) (int, error) { return Count(ctx, s.db) }

// CountIn queries in a transaction, and the pool where there is none.
func (s *Store) CountIn(ctx context.Context, tx *sql.Tx) (n int, err error) {
	if tx == nil {
		return s.Count(ctx)
	}
	err = tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders").Scan(&n)
	return n, err
}

// Tally counts in a transaction.
func Tally(ctx context.Context, tx *sql.Tx) error { return tally(ctx, tx) }

func tally(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE tallies SET n = n + 1")
	return err
}

// TallyGorm does so with GORM.
func TallyGorm(tx *gorm.DB) error { return tx.Exec("UPDATE tallies SET n = n + 1").Error }

// Commit ends a transaction.
func Commit(tx *sql.Tx) error { return tx.Commit() }

// Locked runs a function in a transaction with locks.
func (s *Store) Locked(ctx context.Context, id int64, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return locksqlc.Run(ctx, s.db, Orders.Keys(id), func(tx *sql.Tx) error { return fn(ctx, tx) })
}

// Audit queries the pool of the package.
func Audit(ctx context.Context) error {
	_, err := Audits.ExecContext(ctx, "INSERT INTO audit VALUES (1)")
	return err
}

// Twice calls a function.
func Twice(fn func() error) error {
	if err := fn(); err != nil {
		return err
	}
	return fn()
}

// Later keeps a function.
func Later(fn func() error) { later = append(later, fn) }

var later []func() error

// HelperModel is a model of another package.
type HelperModel struct {
	ID int64 `lockstep:"helper"`
	N  int64
}

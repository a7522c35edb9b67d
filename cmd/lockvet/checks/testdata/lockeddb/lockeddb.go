// Package lockeddb is as sqlc and lockgen generate one.
package lockeddb

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// Orders locks orders.
var Orders = txlock.NewFamily[int64]("order")

// Queries is sqlc's.
type Queries struct{ db interface{} }

// New is sqlc's.
func New(db interface{}) *Queries { return &Queries{db} }

// WithTx is sqlc's.
func (q *Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{tx} }

// PayOrder is a query.
func (q *Queries) PayOrder(context.Context, int64) error { return nil }

// Locked is lockgen's.
type Locked struct {
	queries *Queries
	locks   *txlock.Scope
}

// WithLocks is lockgen's.
func (q *Queries) WithLocks(ctx context.Context, tx *sql.Tx) (*Locked, error) {
	locks, err := locksqlc.Join(ctx, tx)
	return &Locked{q.WithTx(tx), locks}, err
}

// Run is lockgen's.
func (q *Queries) Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(q *Locked) error) error {
	return locksqlc.Run(ctx, db, keys, func(tx *sql.Tx) error {
		locked, err := q.WithLocks(ctx, tx)
		if err != nil {
			return err
		}
		return fn(locked)
	})
}

// Run is that of lockgen -front.
func Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(q *Locked) error) error {
	return New(db).Run(ctx, db, keys, fn)
}

// Locks is lockgen's.
func (l *Locked) Locks() *txlock.Scope { return l.locks }

// PayOrder is a query with its locks.
func (l *Locked) PayOrder(ctx context.Context, id int64) error {
	if _, err := l.locks.LockAll(ctx, Orders.Key(id)); err != nil {
		return err
	}
	return l.queries.PayOrder(ctx, id)
}

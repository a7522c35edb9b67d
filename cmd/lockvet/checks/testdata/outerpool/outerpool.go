// Package outerpool has transactions beside which something is sent.
package outerpool

import (
	"context"
	"database/sql"
	"sync"

	"example.com/shop/helper"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

type service struct {
	db, audit *sql.DB
	queries   *shopdb.Queries
	orm       *gorm.DB
}

const pay = "UPDATE orders SET paid = 1 WHERE id = ?"

func (s *service) wrong(ctx context.Context, id int64) error {
	return locksqlc.Run(ctx, s.db, helper.Orders.Keys(id), func(tx *sql.Tx) error {
		if _, err := s.db.ExecContext(ctx, pay, id); err != nil { // want `s.db is the pool, not the transaction of locksqlc.Run`
			return err
		}
		if _, err := helper.Count(ctx, s.db); err != nil { // want `s.db is the pool`
			return err
		}
		if _, err := txlock.ReadVersion(ctx, s.db, helper.Orders.Key(id)); err != nil { // want `s.db is the pool`
			return err
		}
		other, err := s.db.BeginTx(ctx, nil) // want `s.db is the pool`
		if err != nil {
			return err
		}
		defer func() { _ = other.Rollback() }()
		if _, err := shopdb.New(s.db).Tally(ctx); err != nil { // want `s.db is the pool`
			return err
		}
		_, err = s.queries.Tally(ctx) // want `s.queries queries the pool, not the transaction of locksqlc.Run`
		return err
	})
}

// A fix would give the transaction to several goroutines at once.
func (s *service) beside(ctx context.Context, id int64) error {
	return locksqlc.Run(ctx, s.db, helper.Orders.Keys(id), func(tx *sql.Tx) error {
		var group sync.WaitGroup
		group.Go(func() {
			func() { _, _ = s.db.ExecContext(ctx, pay, id) }() // want `s.db is the pool.*; no fix: another goroutine may run this, and must not share the transaction`
		})
		go func() {
			_, _ = s.queries.Tally(ctx) // want `s.queries queries the pool.*; no fix`
		}()
		go s.db.ExecContext(ctx, pay, id) // want `s.db is the pool.*; no fix`
		defer func() {
			_, _ = s.db.ExecContext(ctx, pay, id) // want `s.db is the pool.*; no fix: in the transaction, an error would roll this back`
		}()
		group.Wait()
		return nil
	})
}

func (s *service) once(ctx context.Context, key txlock.Key) (int, error) {
	n, _, err := locksqlc.OnceValue(ctx, s.db, key, func(*sql.Tx) (int, error) {
		return helper.Count(ctx, s.db) // want `s.db is the pool, not the transaction of locksqlc.OnceValue`
	})
	return n, err
}

func (s *service) right(ctx context.Context, id int64) error {
	var after []func()
	err := locksqlc.Run(ctx, s.db, helper.Orders.Keys(id), func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, pay, id); err != nil {
			return err
		}
		if _, err := s.audit.ExecContext(ctx, "INSERT INTO audit VALUES (?)", id); err != nil { // another pool
			return err
		}
		after = append(after, func() { _, _ = s.db.ExecContext(ctx, pay, id) }) // later
		_ = helper.Name(s.db)
		queries := s.queries.WithTx(tx)
		_, err := queries.Tally(ctx)
		return err
	})
	for _, f := range after {
		f()
	}
	return err
}

// Work under Do is no transaction, and may use the pool.
func (s *service) do(ctx context.Context, key txlock.Key) error {
	return locksqlc.Do(ctx, s.db, key, func(ctx context.Context) error {
		_, err := s.queries.Tally(ctx)
		return err
	})
}

// queries has what lockgen writes beside the code of sqlc.
type queries struct{ db *sql.DB }

func (q *queries) WithTx(*sql.Tx) *queries { return q }

func (q *queries) WithLocks(context.Context, *sql.Tx) (*queries, error) { return q, nil }

func (q *queries) Run(ctx context.Context, fn func(q *queries) error) error {
	return locksqlc.Run(ctx, q.db, nil, func(tx *sql.Tx) error {
		locked, err := q.WithLocks(ctx, tx)
		if err != nil {
			return err
		}
		return fn(locked)
	})
}

type order struct {
	ID   int64
	Paid bool
}

func gormWrong(ctx context.Context, db *gorm.DB, id int64) error {
	err := lockgorm.Transaction(db.WithContext(ctx), helper.Orders.Keys(id), func(tx *gorm.DB) error {
		return db.Model(&order{ID: id}).Update("paid", true).Error // want `db is the pool, not the transaction of lockgorm.Transaction`
	})
	if err != nil {
		return err
	}
	return db.Transaction(func(tx *gorm.DB) error {
		if err := helper.LockGorm(tx, id); err != nil {
			return err
		}
		func() { db.Save(&order{ID: id}) }() // want `db is the pool, not the transaction of Transaction`
		return nil
	})
}

func gormRight(db *gorm.DB, id int64) error {
	err := db.Transaction(func(tx *gorm.DB) error { // locks nothing
		return db.First(&order{}, id).Error
	})
	if err != nil {
		return err
	}
	return lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
		err := lockgorm.Transaction(tx, helper.Orders.Keys(id), func(*gorm.DB) error {
			return tx.First(&order{}, id).Error // one transaction, a savepoint within
		})
		_ = db.Name()
		return err
	})
}

func shadowed(ctx context.Context, db *sql.DB, key txlock.Key) error {
	return locksqlc.Run(ctx, db, []txlock.Key{key}, func(db *sql.Tx) error {
		_, err := db.ExecContext(ctx, pay, 1)
		return err
	})
}

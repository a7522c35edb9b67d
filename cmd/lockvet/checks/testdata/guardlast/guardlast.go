// Package guardlast has guards at their place and elsewhere.
package guardlast

import (
	"context"
	"database/sql"

	"example.com/shop/helper"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/lease"
)

func wrong(ctx context.Context, tx *sql.Tx, l *lease.Lease) error {
	if err := l.Guard(ctx, tx); err != nil { // want `Guard is not the last statement of tx`
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE jobs SET n = 1"); err != nil {
		return err
	}
	return tx.Commit()
}

func wrongSqlc(ctx context.Context, tx *sql.Tx, q *shopdb.Queries, l *lease.Lease) error {
	if err := l.Guard(ctx, tx); err != nil { // want `Guard is not the last statement of tx`
		return err
	}
	_, err := q.WithTx(tx).Tally(ctx)
	return err
}

func wrongGorm(db *gorm.DB, l *lease.Lease) error {
	return db.Transaction(func(tx *gorm.DB) error {
		of, err := lockgorm.SQLTx(tx)
		if err != nil {
			return err
		}
		if err := l.Guard(context.Background(), of); err != nil { // want `Guard is not the last statement of tx`
			return err
		}
		return tx.Exec("UPDATE jobs SET n = 1").Error
	})
}

func wrongTerm(ctx context.Context, tx *sql.Tx, term *elect.Term) error {
	if err := term.Guard(ctx, tx); err != nil { // want `Guard is not the last statement of tx`
		return err
	}
	_, err := tx.ExecContext(ctx, "UPDATE jobs SET n = 1")
	return err
}

func wrongHelper(ctx context.Context, tx *sql.Tx, l *lease.Lease) error {
	if err := l.Guard(ctx, tx); err != nil { // want `Guard is not the last statement of tx`
		return err
	}
	if err := helper.Tally(ctx, tx); err != nil {
		return err
	}
	return helper.Commit(tx)
}

func wrongHelperGorm(db *gorm.DB, l *lease.Lease) error {
	return db.Transaction(func(tx *gorm.DB) error {
		of, err := lockgorm.SQLTx(tx)
		if err != nil {
			return err
		}
		if err := l.Guard(context.Background(), of); err != nil { // want `Guard is not the last statement of tx`
			return err
		}
		return helper.TallyGorm(tx)
	})
}

func rightHelper(ctx context.Context, tx, next *sql.Tx, l *lease.Lease) error {
	if err := helper.Tally(ctx, tx); err != nil {
		return err
	}
	if err := l.Guard(ctx, tx); err != nil {
		return err
	}
	if err := txlock.AssertLocked(ctx, tx, helper.Orders.Key(1)); err != nil {
		return err
	}
	if err := helper.Commit(tx); err != nil {
		return err
	}
	return helper.Tally(ctx, next)
}

func rightGorm(ctx context.Context, tx *gorm.DB, l *lease.Lease) error {
	of, err := lockgorm.SQLTx(tx)
	if err != nil {
		return err
	}
	if err := l.Guard(ctx, of); err != nil {
		return err
	}
	return lockgorm.AssertLocked(tx, helper.Orders.Key(1))
}

func right(ctx context.Context, tx, next *sql.Tx, l, second *lease.Lease) error {
	if _, err := tx.ExecContext(ctx, "UPDATE jobs SET n = 1"); err != nil {
		return err
	}
	if err := l.Guard(ctx, tx); err != nil {
		return err
	}
	if err := second.Guard(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	_, err := next.ExecContext(ctx, "UPDATE jobs SET n = 1")
	return err
}

func again(ctx context.Context, db *sql.DB, tx *sql.Tx, l *lease.Lease) error {
	if err := l.Guard(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE jobs SET n = 1")
	return err
}

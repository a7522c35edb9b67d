package main

import (
	"context"
	"database/sql"
	"errors"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"

	"github.com/dca00107/lockstep/examples/quickstart/shopdb"
)

// noLock buys in plain transactions.
type noLock struct{ pool *sql.DB }

func openNoLock(dsn string, buyers int) (counter, error) {
	pool, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	keepOpen(pool, buyers)
	return noLock{pool}, nil
}

// buy sells one item twice whenever two buyers meet. READ COMMITTED doesn't help;
// it is asked for since a newer MariaDB, with innodb_snapshot_isolation, answers
// some of the overwrites at REPEATABLE READ with an error.
func (c noLock) buy(ctx context.Context, product, buyer int64) (err error) {
	tx, err := c.pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := purchase(ctx, tx, product, buyer); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (c noLock) close() error { return c.pool.Close() }

// purchase is the business of a transaction, in code that sqlc has generated from
// queries.sql. It knows nothing of locks: whether it is right depends on who
// calls it.
func purchase(ctx context.Context, tx *sql.Tx, product, buyer int64) error {
	queries := shopdb.New(tx)
	stock, err := queries.Stock(ctx, product)
	if err != nil {
		return err
	}
	if stock <= 0 {
		return errSoldOut
	}
	if err := queries.AddOrder(ctx, shopdb.AddOrderParams{ProductID: product, BuyerID: buyer}); err != nil {
		return err
	}
	return queries.SetStock(ctx, shopdb.SetStockParams{ID: product, Stock: stock - 1})
}

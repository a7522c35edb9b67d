package main

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/locksqlc"
)

// withSQLC buys by locksqlc.Run.
type withSQLC struct{ pool *sql.DB }

func openSQLC(dsn string, buyers int) (counter, error) {
	pool, err := locksqlc.Open(dsn) // instead of sql.Open
	if err != nil {
		return nil, err
	}
	keepOpen(pool, buyers)
	return withSQLC{pool}, nil
}

// buy is the same purchase as without a lock. Run begins the transaction, locks the
// product, and commits; it takes care of rollback and of deadlocks, too.
func (c withSQLC) buy(ctx context.Context, product, buyer int64) error {
	return locksqlc.Run(ctx, c.pool, products.Keys(product), func(tx *sql.Tx) error {
		return purchase(ctx, tx, product, buyer)
	})
}

func (c withSQLC) close() error { return c.pool.Close() }

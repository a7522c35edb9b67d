package main

import (
	"context"
	"time"

	"example.com/shop/shopdb"
)

// Recount corrects the stock if nobody is selling the product: else it returns ErrBusy.
func (s *Shop) Recount(ctx context.Context, product, stock int64) error {
	return s.queries.Run(ctx, s.db, nil, func(q *shopdb.Locked) error {
		if _, err := q.Locks().TryLock(ctx, shopdb.Products.Key(product)); err != nil {
			return err
		}
		return q.PutStock(ctx, shopdb.PutStockParams{ID: product, Stock: stock})
	})
}

// OrderWithin places an order, but waits no longer for its locks: else it returns ErrWaitTimeout.
func (s *Shop) OrderWithin(ctx context.Context, patience time.Duration, products ...int64) error {
	return s.queries.Run(ctx, s.db, nil, func(q *shopdb.Locked) error {
		locks := q.Locks().WaitAtMost(patience)
		if _, err := locks.LockAll(ctx, shopdb.Products.Keys(products...)...); err != nil {
			return err
		}
		return sell(ctx, q, products)
	})
}

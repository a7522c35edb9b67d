package main

import (
	"context"
	"time"

	"example.com/shop/shopdb"
)

// Recount corrects the stock, or returns ErrBusy while another transaction sells the product.
func (s *Shop) Recount(ctx context.Context, product, stock int64) error {
	return s.queries.Run(ctx, s.db, nil, func(q *shopdb.Locked) error {
		if _, err := q.Locks().TryLock(ctx, shopdb.Products.Key(product)); err != nil {
			return err
		}
		return q.PutStock(ctx, shopdb.PutStockParams{ID: product, Stock: stock})
	})
}

// OrderWithin is Order with a limit on the wait, after which it returns ErrWaitTimeout.
func (s *Shop) OrderWithin(ctx context.Context, patience time.Duration, products ...int64) error {
	return s.queries.Run(ctx, s.db, nil, func(q *shopdb.Locked) error {
		locks := q.Locks().WaitAtMost(patience)
		if _, err := locks.LockAll(ctx, shopdb.Products.Keys(products...)...); err != nil {
			return err
		}
		return sell(ctx, q, products)
	})
}

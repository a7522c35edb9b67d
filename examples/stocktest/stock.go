// Package stocktest is a piece of a shop and its tests, twice: on a locktest.Kit over sqlmock,
// which needs no server, and on servers.
package stocktest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/examples/stocktest/stockdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Products are the keys of products.
var Products = txlock.NewFamily[int64]("product")

// ErrSoldOut is returned where there is less than is wanted.
var ErrSoldOut = errors.New("sold out")

// take takes a quantity of a product from the stock. It locks the product before it
// reads.
func take(ctx context.Context, locks *txlock.Scope, stock *stockdb.Queries, product, quantity int64) error {
	if _, err := locks.Lock(ctx, Products.Key(product)); err != nil {
		return err
	}
	left, err := stock.Quantity(ctx, product)
	if err != nil {
		return fmt.Errorf("read product %d: %w", product, err)
	}
	if left < quantity {
		return fmt.Errorf("product %d: %w", product, ErrSoldOut)
	}
	return stock.SetQuantity(ctx, stockdb.SetQuantityParams{ID: product, Quantity: left - quantity})
}

// Shop sells what is in a database.
type Shop struct{ db *sql.DB }

// Sell sells a quantity of a product.
func (s *Shop) Sell(ctx context.Context, product, quantity int64) error {
	return locksqlc.Run(ctx, s.db, nil, func(tx *sql.Tx) error {
		locks, err := locksqlc.Join(ctx, tx)
		if err != nil {
			return err
		}
		return take(ctx, locks, stockdb.New(tx), product, quantity)
	})
}

// Return puts back what a customer has sent back. Nobody waits for it: where somebody
// else has changed the stock meanwhile, it is run again.
func (s *Shop) Return(ctx context.Context, product, quantity int64) error {
	return locksqlc.Optimistic(ctx, s.db, Products.Key(product), func(tx *sql.Tx) error {
		stock := stockdb.New(tx)
		left, err := stock.Quantity(ctx, product)
		if err != nil {
			return fmt.Errorf("read product %d: %w", product, err)
		}
		return stock.SetQuantity(ctx, stockdb.SetQuantityParams{ID: product, Quantity: left + quantity})
	})
}

// Correct sets the quantity of a product after a count.
func (s *Shop) Correct(ctx context.Context, product, quantity int64) error {
	return locksqlc.Run(ctx, s.db, Products.Keys(product), func(tx *sql.Tx) error {
		return correct(ctx, tx, product, quantity)
	})
}

// correct is called by who has locked the product.
func correct(ctx context.Context, tx *sql.Tx, product, quantity int64) error {
	if err := txlock.AssertLocked(ctx, tx, Products.Key(product)); err != nil {
		return err
	}
	return stockdb.New(tx).SetQuantity(ctx, stockdb.SetQuantityParams{ID: product, Quantity: quantity})
}

// restocking is the lease of who orders.
var restocking = txlock.Named("restocking")

// Restock orders products, one after the other, in one process of the cluster at a time. The
// supplier refuses an order with a lower token than he has seen.
func Restock(ctx context.Context, leases *lease.Manager, products []int64, order func(ctx context.Context, product int64, token uint64) error) error {
	return leases.Do(ctx, restocking, func(ctx context.Context, l *lease.Lease) error {
		for _, product := range products {
			if err := l.Err(); err != nil {
				return err
			}
			if err := order(ctx, product, l.Token()); err != nil {
				return fmt.Errorf("order product %d: %w", product, err)
			}
		}
		return nil
	})
}

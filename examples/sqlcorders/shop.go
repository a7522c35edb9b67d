package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"example.com/shop/shopdb"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
)

// ErrSoldOut is returned for an order of a product that is not in stock.
var ErrSoldOut = errors.New("sold out")

// Shop sells products.
type Shop struct {
	db      *sql.DB
	queries *shopdb.Queries
}

//go:embed schema.sql
var tables string

// Open opens the shop and creates missing tables: its own and lockstep's.
func Open(ctx context.Context, dsn string) (*Shop, error) {
	db, err := locksqlc.Open(dsn) // instead of sql.Open
	if err != nil {
		return nil, err
	}
	for statement := range strings.SplitSeq(strings.TrimSpace(tables), ";") {
		if statement == "" {
			continue
		}
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	if err := schema.Install(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Shop{db, shopdb.New(db)}, nil
}

// Order sells one item of each product, or nothing.
func (s *Shop) Order(ctx context.Context, products ...int64) error {
	return s.queries.Run(ctx, s.db, shopdb.Products.Keys(products...), func(q *shopdb.Locked) error {
		return sell(ctx, q, products)
	})
}

// sell reads, decides and writes in the caller's transaction.
func sell(ctx context.Context, q shopdb.Querier, products []int64) error {
	for _, product := range products {
		stock, err := q.Stock(ctx, product)
		if err != nil {
			return fmt.Errorf("product %d: %w", product, err)
		}
		if stock == 0 {
			return fmt.Errorf("product %d: %w", product, ErrSoldOut)
		}
		if err := q.PutStock(ctx, shopdb.PutStockParams{ID: product, Stock: stock - 1}); err != nil {
			return err
		}
		if err := q.AddOrder(ctx, product); err != nil {
			return err
		}
	}
	return nil
}

// SetStock sets the stock of a product. Run gets no key here: the query acquires its lock.
func (s *Shop) SetStock(ctx context.Context, product, stock int64) error {
	return s.queries.Run(ctx, s.db, nil, func(q *shopdb.Locked) error {
		return q.PutStock(ctx, shopdb.PutStockParams{ID: product, Stock: stock})
	})
}

// Stock returns the stock of a product. The value is only displayed, so it needs no lock.
func (s *Shop) Stock(ctx context.Context, product int64) (int64, error) {
	return s.queries.Stock(ctx, product)
}

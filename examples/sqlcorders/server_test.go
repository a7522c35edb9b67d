package main

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"example.com/shop/shopdb"
)

// Without the lock two items are sold, and only one is subtracted.
func TestWithoutTheLock(t *testing.T) {
	shop, product := newShop(t, 10)
	var reads, buyers sync.WaitGroup
	reads.Add(2)
	for range 2 {
		tx, err := shop.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		must(t, err)
		buyers.Go(func() {
			err := sell(t.Context(), together{shopdb.New(tx), &reads}, []int64{product})
			if err := errors.Join(err, tx.Commit()); err != nil {
				t.Error(err)
			}
		})
	}
	buyers.Wait()
	shop.expect(t, product, 2, 9) // 8 would be right
}

// together reads, and waits until all have read.
type together struct {
	shopdb.Querier
	reads *sync.WaitGroup
}

func (q together) Stock(ctx context.Context, product int64) (int64, error) {
	defer q.reads.Wait()
	defer q.reads.Done()
	return q.Querier.Stock(ctx, product)
}

// With the lock, 30 buyers compete for 20 items of two products, in both orders.
func TestWithTheLock(t *testing.T) {
	shop, first := newShop(t, 20)
	second := first + 1
	must(t, shop.SetStock(t.Context(), second, 20))
	var buyers sync.WaitGroup
	for i := range 30 {
		buyers.Go(func() {
			products := []int64{first, second}
			if i%2 == 0 {
				products = []int64{second, first}
			}
			if err := shop.Order(t.Context(), products...); err != nil && !errors.Is(err, ErrSoldOut) {
				t.Error(err)
			}
		})
	}
	buyers.Wait()
	shop.expect(t, first, 20, 0)
	shop.expect(t, second, 20, 0)
}

// newShop returns a shop on the server, and a product with a stock.
func newShop(t *testing.T, stock int64) (*Shop, int64) {
	dsn := os.Getenv("SHOP_DSN")
	if dsn == "" {
		t.Skip("SHOP_DSN is not set")
	}
	shop, err := Open(t.Context(), dsn)
	must(t, err)
	t.Cleanup(func() { must(t, shop.db.Close()) })
	product := 1 + rand.Int64N(1<<60) // used by no other test
	must(t, shop.SetStock(t.Context(), product, stock))
	return shop, product
}

func (s *Shop) expect(t *testing.T, product, wantOrders, wantStock int64) {
	orders, err := s.queries.CountOrders(t.Context(), product)
	must(t, err)
	stock, err := s.queries.Stock(t.Context(), product)
	must(t, err)
	if orders != wantOrders || stock != wantStock {
		t.Errorf("%d orders and %d in stock, want %d and %d", orders, stock, wantOrders, wantStock)
	}
}

func must(t *testing.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

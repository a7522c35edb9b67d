package main

import (
	"errors"
	"sync"
	"testing"
	"time"

	"example.com/shop/shopdb"

	"github.com/dca00107/lockstep/txlock"
)

func TestPatience(t *testing.T) {
	shop, product := newShop(t, 20)
	key := shopdb.Products.Key(product)
	other := shop.begin(t)
	_, err := other.Locks().Lock(t.Context(), key)
	must(t, err)

	if err := shop.Recount(t.Context(), product, 5); !errors.Is(err, txlock.ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	err = shop.OrderWithin(t.Context(), 100*time.Millisecond, product)
	if !errors.Is(err, txlock.ErrWaitTimeout) {
		t.Errorf("%v, want ErrWaitTimeout", err)
	}
}

// Two transactions that lock one key after the other, in different orders, deadlock. The
// server rolls one of them back.
func TestDeadlock(t *testing.T) {
	shop, first := newShop(t, 20)
	second := first + 1
	must(t, shop.SetStock(t.Context(), second, 20))
	a, b := shop.begin(t), shop.begin(t)
	_, err := a.Stock(t.Context(), first)
	must(t, err)
	_, err = b.Stock(t.Context(), second)
	must(t, err)

	var errA, errB error
	var both sync.WaitGroup
	both.Go(func() { _, errA = a.Stock(t.Context(), second) })
	both.Go(func() { _, errB = b.Stock(t.Context(), first) })
	both.Wait()
	if (errA == nil) == (errB == nil) || !txlock.Retryable(errors.Join(errA, errB)) {
		t.Errorf("%v and %v, want one error that is Retryable", errA, errB)
	}
}

// begin begins a transaction, and rolls it back at the end of the test.
func (s *Shop) begin(t *testing.T) *shopdb.Locked {
	tx, err := s.db.BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	q, err := s.queries.WithLocks(t.Context(), tx)
	must(t, err)
	return q
}

package stocktest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/examples/stocktest/stockdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// shelf is a Stock in memory. Nothing but the locks keeps two from selling the same.
type shelf struct {
	mu       sync.Mutex // for the map, not for what is decided by it
	quantity map[int64]int64
}

func (s *shelf) Quantity(_ context.Context, id int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quantity[id], nil
}

func (s *shelf) SetQuantity(_ context.Context, arg stockdb.SetQuantityParams) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quantity[arg.ID] = arg.Quantity
	return nil
}

// On the stand-in a test says what happens, not what is sent.
func TestTakeInMemory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	stock := &shelf{quantity: map[int64]int64{7: 20}}

	memory := locktest.NewMemory() // in place of the server
	var wg sync.WaitGroup
	for range 30 { // buyers of 20 pieces
		wg.Go(func() {
			locks := memory.Begin() // in place of locksqlc.Join
			err := Take(ctx, locks, stock, 7, 1)
			if err := errors.Join(unlessSoldOut(err), locks.Commit()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left := stock.quantity[7]; left != 0 {
		t.Errorf("%d are left", left)
	}
}

func unlessSoldOut(err error) error {
	if errors.Is(err, ErrSoldOut) {
		return nil
	}
	return err
}

// What a server says now and then, the stand-in says on demand.
func TestTakeOfAStaleSnapshot(t *testing.T) {
	t.Parallel()
	stock := &shelf{quantity: map[int64]int64{7: 20}}
	locks := locktest.NewMemory().Begin()
	locks.FailNext(txlock.ErrStaleSnapshot)
	wants(t, Take(t.Context(), locks, stock, 7, 1), txlock.ErrStaleSnapshot)
	if left := stock.quantity[7]; left != 20 {
		t.Errorf("%d are left", left)
	}
}

// In the bubble of synctest the time of the leases passes at once.
func TestRestockInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		memory := locktest.NewMemory()
		leases, err := lease.NewManager(memory.DB()) // as in the program
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { must(t, errors.Join(leases.Close(context.Background()), memory.DB().Close())) })

		ordered := 0
		err = Restock(ctx, leases, []int64{7, 8}, func(context.Context, int64, uint64) error {
			ordered++
			memory.Disconnect() // the lease is renewed no more
			time.Sleep(time.Minute)
			return nil
		})
		if !errors.Is(err, txlock.ErrLost) || ordered != 1 {
			t.Errorf("%d orders, and %v", ordered, err)
		}
	})
}

package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestLoadOfWaiters proves that of 200 goroutines of four managers that wait for one lease
// one asks the server, fairly, or one of each manager, by Poll.
func TestLoadOfWaiters(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []lease.ManagerOption
		most    int // calls in a minute
	}{{"fair", []lease.ManagerOption{lease.Fair()}, 3600}, {"poll", nil, 4 * 300}} {
		t.Run(c.name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, db *memory) {
				held := acquire(t, db.manager(), job)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l := crowd{db: db}
				var wires []*wire
				for range 4 {
					m, wire := db.process(c.options...)
					wires = append(wires, wire)
					for range 50 {
						l.join(ctx, "", 0, func(ctx context.Context) (*lease.Lease, error) { return m.Acquire(ctx, job) })
					}
				}
				time.Sleep(10 * time.Second) // the pauses have grown
				calls := func() (n int) {
					for _, w := range wires {
						n += w.total()
					}
					return n
				}
				before := calls()
				time.Sleep(time.Minute)
				n := calls() - before
				if n > c.most || n < 60 {
					t.Errorf("%d calls in a minute", n)
				}
				cancel()
				synctest.Wait()
				l.all.Wait()
				release(t, held)
			})
		})
	}
}

// TestMixedKeysAreRenewedTogether proves that readers and permits of a thousand keys
// starve no renewal, neither their own nor that of an exclusive lease with a shorter time
// to live; and that a round of all takes few statements.
func TestMixedKeysAreRenewedTogether(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const leases, ttl, every, soonest = 1200, 30 * time.Second, 2 * time.Second, 8 * time.Second
		m, wire := db.process(lease.TTL(ttl), lease.RenewEvery(every))
		var held []*lease.Lease
		for n := range leases {
			key := txlock.Named(fmt.Sprint(n))
			if n%2 == 0 {
				held = append(held, share(t, m, key))
			} else {
				held = append(held, permit(t, semaphore(t, m, key, 1)))
			}
		}
		urgent := acquire(t, m, job, lease.TTL(soonest))
		before := wire.total()
		for range 30 {
			time.Sleep(time.Second)
			if left := leastLeft(held); left < ttl-every-time.Second {
				t.Fatalf("%v are left of one", left)
			}
			if left := urgent.Remaining(); left < soonest/2 {
				t.Fatalf("%v are left of the urgent one", left)
			}
		}
		if n := wire.total() - before; n > 15*(2*4+2) { // a round takes a batch for 900, or less
			t.Errorf("%d calls in 15 rounds", n)
		}
	})
}

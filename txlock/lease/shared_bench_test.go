package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// holders is how many goroutines want the lease in these measurements, over so many
// managers.
const holders, sharers = 32, 4

// perSecond returns how often holders take and release a lease, each holding it for a
// time.
func perSecond(tb testing.TB, db *testdb.DB, managers []*lease.Manager, shared bool, hold, lasting time.Duration) float64 {
	tb.Helper()
	key := named()
	release(tb, share(tb, managers[0], key))
	ctx, cancel := context.WithTimeout(tb.Context(), lasting)
	defer cancel()
	var grants atomic.Int64
	var work sync.WaitGroup
	start := time.Now()
	for i := range holders {
		do := managers[i%len(managers)].Do
		if shared {
			do = managers[i%len(managers)].DoShared
		}
		work.Go(func() {
			for ctx.Err() == nil {
				err := do(ctx, key, func(context.Context, *lease.Lease) error {
					if hold > 0 {
						time.Sleep(hold)
					}
					grants.Add(1)
					return nil
				})
				// The server may see the deadline a moment before the context does.
				if err != nil && ctx.Err() == nil && !errors.Is(err, txlock.ErrWaitTimeout) {
					tb.Errorf("do: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
	took := time.Since(start)
	waitUntil(tb, "no reader is left", func() bool { _, readers := heldRows(tb, db, key); return readers == 0 })
	return float64(grants.Load()) / took.Seconds()
}

// TestReadersReadTogether proves that 32 readers of one key hold it all at once, over few
// managers and over one for each: nobody ends before all of them have begun. By how much
// more they get done than writers is measured by BenchmarkSharedLease.
func TestReadersReadTogether(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, n := range []int{sharers, holders} {
			key := named()
			var reading atomic.Int64
			all := make(chan struct{})
			var work sync.WaitGroup
			for range n {
				m := newManager(t, newPool(t, db, true))
				for range holders / n {
					work.Go(func() {
						err := m.DoShared(t.Context(), key, func(ctx context.Context, _ *lease.Lease) error {
							if reading.Add(1) == holders {
								close(all)
							}
							select {
							case <-all:
								return nil
							case <-ctx.Done():
							case <-time.After(time.Minute):
							}
							return fmt.Errorf("%d of %d read at once", reading.Load(), holders)
						})
						if err != nil {
							t.Errorf("%d managers: DoShared: %v", n, err)
						}
					})
				}
			}
			work.Wait()
		}
	})
}

// BenchmarkSharedLease measures readers that hold a lease for 2 ms, and for no time,
// against holders of an exclusive one.
func BenchmarkSharedLease(b *testing.B) {
	for _, engine := range testdb.Engines() {
		for _, hold := range []time.Duration{2 * time.Millisecond, 0} {
			b.Run(string(engine)+"/hold="+hold.String(), func(b *testing.B) {
				db := testdb.Open(b, engine)
				var managers []*lease.Manager
				for range sharers {
					managers = append(managers, newManager(b, newPool(b, db, true)))
				}
				var shared, exclusive float64
				for b.Loop() {
					exclusive += perSecond(b, db, managers, false, hold, time.Second)
					shared += perSecond(b, db, managers, true, hold, time.Second)
				}
				b.ReportMetric(shared/float64(b.N), "readers/s")
				b.ReportMetric(exclusive/float64(b.N), "writers/s")
				b.ReportMetric(shared/exclusive, "ratio")
			})
		}
	}
}

// BenchmarkSemaphore measures a permit of many, taken and released by one goroutine.
func BenchmarkSemaphore(b *testing.B) {
	for _, engine := range testdb.Engines() {
		b.Run(string(engine), func(b *testing.B) {
			db := testdb.Open(b, engine)
			s := semaphore(b, newManager(b, newPool(b, db, true)), txlock.Named(b.Name()), 8)
			release(b, permit(b, s))
			for b.Loop() {
				release(b, permit(b, s))
			}
		})
	}
}

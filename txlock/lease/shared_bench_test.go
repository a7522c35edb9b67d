package lease_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock/lease"
)

// holders is how many goroutines want the lease in these measurements, over so many
// managers.
const holders, sharers = 32, 4

// TestReadersReadTogether proves that 32 readers of one key hold it all at once, over few
// managers and over one for each: nobody ends before all of them have begun.
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

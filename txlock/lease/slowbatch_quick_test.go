package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestSlowServerLosesNotAll proves that a server which renews too few leases in time for all
// of them to be kept loses some and not all.
func TestSlowServerLosesNotAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const ttl, leases, perRow = time.Second, 300, 2 * time.Millisecond
		m, wire := db.process(lease.TTL(ttl))
		var held []*lease.Lease
		for n := range leases {
			held = append(held, share(t, m, txlock.Named(fmt.Sprint(n))))
		}
		wire.fault("RenewMany", func(ctx context.Context, _ string, _ store.Row, call func() error) error {
			before, _ := db.Rows()
			err := call()
			after, _ := db.Rows()
			took := time.Duration(0)
			for at, row := range after {
				if row.Expires != before[at].Expires {
					took += perRow
				}
			}
			select {
			case <-time.After(took):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		time.Sleep(5 * ttl)
		kept := 0
		for _, l := range held {
			if l.Err() == nil {
				kept++
			}
		}
		if kept < leases/4 {
			t.Errorf("%d of %d are kept", kept, leases)
		}
	})
}

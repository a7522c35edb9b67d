package lockmock_test

import (
	"context"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestLeasesTogether makes AcquireAll on a mock, with every outcome, and releases what stays
// held.
func TestLeasesTogether(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx := m.Context()
		manager, leases := m.manager()
		keys := []txlock.Key{orders.Key(7), carts.Key("k"), orders.Key(5), orders.Key(7)}
		for range 2 { // prepared, and prepared already
			leases.ExpectAcquireAll(keys, lease.HoldAtLeast(time.Hour)).Busy(keys[0])
			_, err := manager.TryAcquireAll(ctx, keys, lease.HoldAtLeast(time.Hour))
			wants(m, "TryAcquireAll", err, txlock.ErrBusy)

			leases.ExpectAcquireAll(keys, lease.HoldAtLeast(time.Hour)).Granted(41, 42, 43, 41)
			all, err := manager.AcquireAll(ctx, keys, lease.HoldAtLeast(time.Hour))
			must(m, err)
			for i, token := range []uint64{41, 42, 43} {
				if got := all.Get(keys[i]).Token(); got != token {
					m.Errorf("token %d of %v", got, keys[i])
				}
			}
			tx := m.begin()
			for _, l := range all.All() {
				leases.ExpectGuard(l.Key(), txlock.NothingRead()).Succeeds()
			}
			must(m, all.Guard(ctx, tx, txlock.NothingRead()))
			m.end(tx)
			for _, l := range all.All() {
				leases.ExpectRelease(l.Key()).Succeeds()
			}
			must(m, all.Release(ctx))

			leases.ExpectAcquire(keys[0], lease.HoldAtLeast(time.Hour)).Granted(44)
			leases.ExpectRelease(keys[0]).Succeeds()
			must(m, manager.TryDo(ctx, keys[0], func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(time.Hour)))
		}
	})
}

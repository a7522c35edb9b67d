package locktest_test

import (
	"context"
	"database/sql"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// quorumOf returns a manager of leases over several databases, and closes all when the test ends.
func quorumOf(t *testing.T, pools []*sql.DB, options ...lease.ManagerOption) *quorum.Manager {
	t.Helper()
	var managers []*lease.Manager
	for _, pool := range pools {
		managers = append(managers, leasesOf(t, pool, options...))
	}
	q, err := quorum.New(managers, quorum.NodeTimeout(10*time.Second)) // a busy machine's nodes answer late
	must(t, err)
	t.Cleanup(func() { must(t, q.Close(context.Background())) })
	must(t, q.Install(t.Context()))
	return q
}

// kits are several, with their pools.
func kits(t *testing.T, n int) (all []*locktest.Kit, pools []*sql.DB) {
	t.Helper()
	for range n {
		k := locktest.Open(t, nil)
		all, pools = append(all, k), append(pools, k.DB())
	}
	return all, pools
}

// TestQuorumLoses lets databases fail and come back: a minority does no harm, and without a
// majority nothing is granted, renewed or released, and a lease is lost when its time is over.
func TestQuorumLoses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memories, pools := kits(t, 5)
		q, key := quorumOf(t, pools, lease.TTL(30*time.Second)), txlock.Named("job")
		l, err := q.Acquire(t.Context(), key)
		must(t, err)
		synctest.Wait() // all of them hold it
		for _, k := range memories[:3] {
			k.Disconnect()
		}
		wants(t, "Install", q.Install(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNoQuorum)
		must(t, l.Err()) // until its time is over
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		_, err = q.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire", err, txlock.ErrNoQuorum)
		for _, k := range memories[:3] {
			k.Reconnect()
		}

		memories[3].Disconnect()
		memories[4].Disconnect()
		l, err = q.Acquire(t.Context(), key)
		must(t, err)
		_, err = l.Node(3)
		wants(t, "Node of a database that fails", err, txlock.ErrNotHeld)
		time.Sleep(time.Hour)
		must(t, l.Err())
		node, err := l.Node(0)
		must(t, err)
		if node.Token() != l.Token() {
			t.Errorf("token %d of %d", node.Token(), l.Token())
		}
		memories[0].Disconnect()
		refused := make(chan error)
		go func() { _, err := q.Acquire(t.Context(), key); refused <- err }()
		wants(t, "a wait", <-refused, txlock.ErrNoQuorum)
		time.Sleep(30 * time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		memories[0].Reconnect()
		must(t, q.Do(t.Context(), key, func(context.Context, *quorum.Lease) error { return nil }))
	})
}

// TestQuorumOwners proves that the context of a lease over several databases is its owner's for that key
// alone, in that manager, while the lease is held.
func TestQuorumOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, pools := kits(t, 3)
		one, elsewhere := quorumOf(t, pools), quorumOf(t, pools)
		key, second := txlock.Named("job"), txlock.Named("another")
		refused := func(what string, m *quorum.Manager, ctx context.Context, key txlock.Key) {
			t.Helper()
			_, err := m.TryAcquire(ctx, key)
			wants(t, what, err, txlock.ErrBusy)
		}
		var over context.Context
		must(t, one.Do(t.Context(), key, func(ctx context.Context, outer *quorum.Lease) error {
			over = context.WithoutCancel(ctx)
			refused("another manager", elsewhere, ctx, key)
			return one.Do(ctx, second, func(inside context.Context, _ *quorum.Lease) error {
				refused("another goroutine under the outer lease", one, ctx, second)
				again, err := one.TryAcquire(inside, key)
				must(t, err)
				if again.Token() != outer.Token() {
					t.Errorf("token %d of the lease that is held with %d", again.Token(), outer.Token())
				}
				return again.Release(ctx)
			})
		}))
		l, err := one.Acquire(over, key)
		must(t, err)
		refused("under the context of a lease that is over", one, over, key)
		must(t, l.Release(t.Context()))
	})
}

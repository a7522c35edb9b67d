package quorum_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestCloseAwaitsTheNodes proves that Close returns when the nodes have answered what was
// asked of them before, and what they have granted is released: also one that answers
// late, to a call that is over, and one that is taken in again.
func TestCloseAwaitsTheNodes(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]struct {
		silent bool // until the call has returned: else it could be granted the lease
		call   func(t *testing.T, m *quorum.Manager, nodes []*testdb.DB, key txlock.Key)
	}{
		"a lease": {false, func(t *testing.T, m *quorum.Manager, _ []*testdb.DB, key txlock.Key) {
			acquire(t, m, key)
		}},
		"a lease that was released": {false, func(t *testing.T, m *quorum.Manager, _ []*testdb.DB, key txlock.Key) {
			release(t, acquire(t, m, key))
		}},
		"a call that was cancelled": {true, func(t *testing.T, m *quorum.Manager, nodes []*testdb.DB, key txlock.Key) {
			exec(t, nodes[0], "RENAME TABLE lockstep_leases TO gone")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := m.Acquire(ctx, key)
				done <- err
			}()
			await(t, "a node has granted it", func() bool { return held(t, nodes[1:2], key) == 1 })
			cancel()
			wants(t, "Acquire", <-done, context.Canceled)
			exec(t, nodes[0], "RENAME TABLE gone TO lockstep_leases")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, key := newNodes(t, 3), named()
			var slow atomic.Bool
			speaks := make(chan struct{})
			speak := sync.OnceFunc(func() { close(speaks) })
			defer speak()
			leases := newLeasesOver(t, nodes, map[int]filter{2: {receives: func() {
				if slow.Load() {
					<-speaks
					time.Sleep(100 * time.Millisecond)
				}
			}}})
			m := newManager(t, leases, quorum.NodeTimeout(15*time.Second))
			must(t, m.Install(t.Context()))
			for range 3 {
				release(t, acquire(t, m, key)) // all rows are there, and connections
			}
			await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
			slow.Store(true)
			if !setup.silent {
				speak()
			}
			setup.call(t, m, nodes, key)
			speak()
			must(t, m.Close(t.Context()))
			if n := held(t, nodes, key); n != 0 {
				t.Errorf("%d nodes are held after Close", n)
			}
		})
	}
}

// TestCloseKeepsItsBound proves that Close returns when its context ends, or has ended,
// whatever the nodes do, and that what is asked of the manager afterwards is refused.
func TestCloseKeepsItsBound(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"ends": 100 * time.Millisecond, "has ended": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stopped atomic.Bool
			goOn := make(chan struct{})
			defer close(goOn)
			stuck := filter{sends: func([]byte) error {
				if stopped.Load() {
					<-goOn
				}
				return nil
			}}
			leases := newLeasesOver(t, newNodes(t, 3), map[int]filter{0: stuck, 1: stuck, 2: stuck})
			m := newManager(t, leases, quorum.NodeTimeout(15*time.Second))
			must(t, m.Install(t.Context()))
			var held []*quorum.Lease
			for range 20 {
				held = append(held, acquire(t, m, named()))
			}
			stopped.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began, delays := time.Now(), testdb.Delays(t)
			err := m.Close(ctx)
			wants(t, "Close", err, context.DeadlineExceeded)
			if took := time.Since(began); took > 5*time.Second+delays() { // of 15 s for a node
				t.Errorf("Close took %v with a context of %v", took, limit)
			}
			refused(t, m, held)
		})
	}
}

// TestCloseAfterItsPools proves that Close doesn't try on where the pools of the nodes
// were closed before, and says at once what it could not release.
func TestCloseAfterItsPools(t *testing.T) {
	t.Parallel()
	leases := newLeases(t, newNodes(t, 3))
	m := newManager(t, leases, quorum.NodeTimeout(15*time.Second))
	must(t, m.Install(t.Context()))
	held := acquire(t, m, named())
	for _, node := range leases {
		must(t, poolOf(node).Close())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began, delays := time.Now(), testdb.Delays(t)
	err := m.Close(ctx)
	if took := time.Since(began); took > 10*time.Second+delays() {
		t.Errorf("Close took %v", took)
	}
	if err == nil || !strings.Contains(err.Error(), held.Key().String()) {
		t.Errorf("Close doesn't say that %v was not released: %v", held.Key(), err)
	}
	wants(t, "Close", err, poolOf(leases[0]).PingContext(ctx)) // that of database/sql, which has no name
	wants(t, "the lease afterwards", held.Err(), txlock.ErrNotHeld)
}

// refused tells what a manager does after Close, which waits for nothing.
func refused(t *testing.T, m *quorum.Manager, held []*quorum.Lease) {
	for _, l := range held {
		await(t, "its leases are released", func() bool { return l.Err() != nil })
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNotHeld)
	}
	key := held[0].Key()
	working, cancel := held[0].Context(t.Context())
	defer cancel()
	for name, ctx := range map[string]context.Context{"": t.Context(), " under a lease": context.WithoutCancel(working), " by a name": lease.WithOwner(t.Context(), "me")} {
		wants(t, "Acquire"+name, second(m.Acquire(ctx, key)), quorum.ErrClosed)
		wants(t, "TryAcquire"+name, second(m.TryAcquire(ctx, key)), quorum.ErrClosed)
		wants(t, "Do"+name, m.Do(ctx, key, func(context.Context, *quorum.Lease) error { return nil }), quorum.ErrClosed)
	}
	wants(t, "Install", m.Install(t.Context()), quorum.ErrClosed)
	must(t, m.Close(t.Context()))
}

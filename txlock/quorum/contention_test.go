package quorum_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestContention proves that clients of which each may get a minority resolve that by
// themselves, that no two hold the lease at once, and that tokens rise in the order of
// the grants.
func TestContention(t *testing.T) {
	t.Parallel()
	const clients, rounds = 5, 8
	nodes := newNodes(t, 5)
	key := named()
	var mu sync.Mutex
	var last uint64
	var inside, grants atomic.Int32
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	for range clients {
		m := newQuorum(t, nodes)
		all.Go(func() {
			for range rounds {
				l, err := m.Acquire(ctx, key)
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lease")
				}
				mu.Lock()
				if l.Token() <= last {
					t.Errorf("token %d after %d", l.Token(), last)
				}
				last = l.Token()
				mu.Unlock()
				inside.Add(-1)
				grants.Add(1)
				if err := l.Release(ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	if n := grants.Load(); n != clients*rounds {
		t.Errorf("%d grants, want %d", n, clients*rounds)
	}
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
}

// TestInProcess proves that many goroutines of one manager get the lease one after
// the other.
func TestInProcess(t *testing.T) {
	t.Parallel()
	m := newQuorum(t, newNodes(t, 3))
	key := named()
	var inside atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			err := m.Do(t.Context(), key, func(context.Context, *quorum.Lease) error {
				if inside.Add(1) != 1 {
					t.Error("two hold the lease")
				}
				inside.Add(-1)
				return nil
			})
			if err != nil {
				t.Errorf("Do: %v", err)
			}
		})
	}
	all.Wait()
}

// TestCancelled proves that an Acquire whose context ends leaves nothing behind,
// whenever that is.
func TestCancelled(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m := newQuorum(t, nodes, lease.TTL(time.Minute))
	release(t, acquire(t, m, named())) // connected
	key := named()
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*250*time.Microsecond)
		l, err := m.Acquire(ctx, key)
		if err == nil {
			release(t, l)
		} else {
			wants(t, "Acquire", err, context.DeadlineExceeded)
		}
		cancel()
	}
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
}

// TestClose proves that Close gives back what is held, ends who waits, and refuses
// what comes later.
func TestClose(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	m, other := newQuorum(t, nodes), newQuorum(t, nodes)
	key, theirs := named(), named()
	l, held1 := acquire(t, m, key), acquire(t, other, theirs)
	waits := make(chan error)
	go func() {
		_, err := m.Acquire(context.Background(), theirs)
		waits <- err
	}()
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	wants(t, "Acquire that waits", <-waits, quorum.ErrClosed)
	wants(t, "Err", l.Err(), txlock.ErrNotHeld)
	release(t, l)
	_, err := m.TryAcquire(t.Context(), key)
	wants(t, "TryAcquire", err, quorum.ErrClosed)
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("Close again: %v", err)
	}
	if n := held(t, nodes, key); n != 0 {
		t.Errorf("%d nodes are held after Close", n)
	}
	release(t, held1)
}

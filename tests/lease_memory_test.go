package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/txlock/lease"
)

// alone is a history of two managers on the store in memory, without a server to compare
// with. Time goes on as the history says: leases are renewed, and expire where a process is
// cut off from the server.
type alone struct {
	stores   [2]*memstore.Store
	managers [2]*lease.Manager
	handles  []*lease.Lease
	cut      bool // one of the stores was down: what was released then may still be there
}

// playAlone plays random histories in memory and calls check after each step.
func playAlone(t *testing.T, steps func(a *alone) map[string]func(*rapid.T), check func(a *alone, rt *rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func(*testing.T) {
			server, a := memstore.New(), new(alone)
			for i := range a.managers {
				a.stores[i] = server.Store()
				pool := a.stores[i].Pool()
				m, err := lease.NewManager(pool, lease.TTL(time.Second))
				if err != nil {
					rt.Fatal(err)
				}
				a.managers[i] = m
				defer func() {
					_ = m.Close(context.Background()) // what a store that was down has left is no error here
					_ = pool.Close()                  // it has nothing open
				}()
			}
			defer a.heal()
			all := steps(a)
			all["release"] = func(rt *rapid.T) {
				if len(a.handles) > 0 {
					_ = rapid.SampledFrom(a.handles).Draw(rt, "handle").Release(context.Background()) // it may have been lost
				}
			}
			all["time"] = func(rt *rapid.T) {
				time.Sleep(rapid.SampledFrom([]time.Duration{time.Microsecond, 50 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second}).Draw(rt, "d"))
			}
			all["cut"] = func(rt *rapid.T) {
				a.cut = true
				rapid.SampledFrom(a.stores[:]).Draw(rt, "store").Down(nil)
			}
			all["heal"] = func(*rapid.T) { a.heal() }
			all[""] = func(rt *rapid.T) { check(a, rt) }
			rt.Repeat(all)
		})
	})
}

// heal ends the faults.
func (a *alone) heal() {
	for _, s := range a.stores {
		s.Up()
	}
}

// ask draws who asks.
func (a *alone) ask(rt *rapid.T) (*lease.Manager, context.Context) {
	q := ask(rt, playKeys)
	return a.managers[q.manager], q.context()
}

// held are the handles that say they are held.
func (a *alone) held() (all []*lease.Lease) {
	for _, l := range a.handles {
		if l.Err() == nil {
			all = append(all, l)
		}
	}
	return all
}

// got keeps what was acquired.
func (a *alone) got(l *lease.Lease, err error) {
	if err == nil {
		a.handles = append(a.handles, l)
	}
}

// TestMemoryExcludes proves of random histories on the store in memory that no two owners
// believe that they hold a lease, whatever is cut off, and that tokens rise with each grant.
func TestMemoryExcludes(t *testing.T) {
	t.Parallel()
	var last uint64
	playAlone(t, func(a *alone) map[string]func(*rapid.T) {
		last = 0
		return map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				l, err := m.TryAcquire(ctx, playKey(0))
				a.got(l, err)
				if err == nil && l.Token() < last {
					rt.Fatalf("token %d after %d", l.Token(), last)
				}
				if err == nil {
					last = l.Token()
				}
			},
		}
	}, func(a *alone, rt *rapid.T) {
		holders := make(map[string]uint64)
		for _, h := range a.held() {
			holders[h.Owner()] = h.Token()
		}
		if len(holders) > 1 {
			rt.Fatalf("%v believe that they hold it", holders)
		}
	})
}

// TestMemoryShares proves the same of readers and permits: no writer holds a lease that
// somebody else reads under, a writer that waits for readers keeps new ones out, and no more
// permits are held than there are.
func TestMemoryShares(t *testing.T) {
	t.Parallel()
	const most = 2
	playAlone(t, func(a *alone) map[string]func(*rapid.T) {
		return map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				a.got(m.TryAcquire(ctx, playKey(0)))
			},
			"wait": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				a.got(m.Acquire(ctx, playKey(0)))
			},
			"share": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				a.got(m.TryAcquireShared(ctx, playKey(0)))
			},
			"share against a writer": func(rt *rapid.T) {
				m, _ := a.ask(rt)
				a.shareAgainstWriter(rt, m)
			},
			"permit": func(rt *rapid.T) {
				m, ctx := a.ask(rt)
				s, err := m.Semaphore(playKey(1), most)
				if err != nil {
					rt.Fatal(err)
				}
				a.got(s.TryAcquire(ctx))
			},
			"downgrade": func(rt *rapid.T) {
				if len(a.handles) > 0 {
					a.got(rapid.SampledFrom(a.handles).Draw(rt, "handle").Downgrade(context.Background()))
				}
			},
		}
	}, func(a *alone, rt *rapid.T) {
		permits := 0
		for _, h := range a.held() {
			if h.Key() == playKey(1) {
				permits++
				continue
			}
			for _, other := range a.held() {
				if other.Key() == h.Key() && !h.Shared() && h.Owner() != other.Owner() {
					rt.Fatalf("%s beside %s", describe(other), describe(h))
				}
			}
		}
		if permits > most {
			rt.Fatalf("%d permits of %d", permits, most)
		}
	})
}

// shareAgainstWriter asks for a reader's place while somebody else waits for readers to go.
func (a *alone) shareAgainstWriter(rt *rapid.T, m *lease.Manager) {
	time.Sleep(time.Second) // what a writer who gave up has left is released
	reading := slices.ContainsFunc(a.held(), func(l *lease.Lease) bool { return l.Shared() })
	if !reading || a.cut {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.got(a.managers[0].Acquire(ctx, playKey(0)))
	}()
	synctest.Wait()
	if l, err := m.TryAcquireShared(context.Background(), playKey(0)); err == nil {
		rt.Fatalf("%s beside a writer who waits", describe(l))
	}
	<-done
}

// inBubble calls in a bubble of testing/synctest what may end by a panic, as rapid ends a
// history.
func inBubble(t *testing.T, call func(t *testing.T)) {
	var ended any
	synctest.Test(t, func(t *testing.T) {
		defer func() { ended = recover() }()
		call(t)
	})
	// rapid tells failures apart by where they come from.
	if fmt.Sprintf("%T", ended) == "rapid.invalidData" {
		panic(ended)
	}
	if ended != nil {
		panic(ended)
	}
}

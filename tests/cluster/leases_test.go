//go:build cluster

package cluster

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestAsk asks through one node for a lease that is held through another, while a third
// waits for it: the holder is told by a renewal, gives it up, and the one who waits has it
// and is told of nothing.
func TestAsk(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		clients := clientsOf(t, db, nodes)
		key := txlock.Named(t.Name())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		held, err := clients[0].Leases.Acquire(ctx, key)
		check(t, err)
		const rounds = 8
		holder := 0
		var told, over, latest time.Duration
		for round := range rounds {
			asker, next := clients[(holder+1)%3], clients[(holder+2)%3]
			if round%2 == 1 {
				asker, next = next, asker
			}
			taken := make(chan *lease.Lease, 1)
			var waiting sync.WaitGroup
			waiting.Go(func() {
				defer close(taken)
				l, err := next.Leases.Acquire(ctx, key)
				if err != nil {
					t.Errorf("round %d: Acquire: %v", round, err)
					return
				}
				taken <- l
			})
			why, begun := fmt.Sprint("round ", round), time.Now()
			for err = txlock.ErrNotHeld; errors.Is(err, txlock.ErrNotHeld) && ctx.Err() == nil; { // a node that lags hasn't heard of the holder
				err = asker.Leases.RequestRelease(ctx, key, why)
			}
			if err != nil {
				t.Fatalf("round %d: Ask: %v", round, err)
			}
			select {
			case <-held.ReleaseRequested():
			case <-ctx.Done():
				t.Fatalf("round %d: the holder was not told", round)
			}
			took := time.Since(begun)
			told, latest = told+took, max(latest, took)
			if got, _ := held.ReleaseReason(); got != why {
				t.Errorf("round %d: asked because of %q, want %q", round, got, why)
			}
			begun = time.Now()
			if err := held.Release(ctx); err != nil {
				t.Fatalf("round %d: Release: %v", round, err)
			}
			waiting.Wait()
			l := <-taken
			if l == nil {
				return
			}
			over += time.Since(begun)
			if l.Token() <= held.Token() {
				t.Errorf("round %d: the token %d after %d", round, l.Token(), held.Token())
			}
			if err := l.Renew(ctx); err != nil {
				t.Fatalf("round %d: Renew: %v", round, err)
			}
			if why, asked := l.ReleaseReason(); asked {
				t.Errorf("round %d: the next holder is asked because of %q", round, why)
			}
			held, holder = l, next.Number
		}
		check(t, held.Release(ctx))
		for i, node := range nodes {
			caughtUp(t, db.At(t, node))
			wants(t, fmt.Sprintf("node %d: Ask for what is free", i), clients[i].Leases.RequestRelease(ctx, key, "nobody"), txlock.ErrNotHeld)
		}
		t.Logf("told after %v on average, %v at most; handed over within %v on average", told/rounds, latest, over/rounds)
	})
}

// kept is a grant of a lease that is held at least for keptFor.
type kept struct {
	client     int
	token      uint64
	asked, got time.Duration // before Acquire, and after it
	released   bool          // and this was acknowledged
}

const keptFor = 1500 * time.Millisecond

// TestLeasesTogether has clients of all nodes take several leases at once, in any order,
// and keep one held for longer than they work, while a node is killed and one hangs.
// Nobody has a lease beside another, no update of those who guard with all of them is lost,
// nobody is granted too soon what is kept, and all is to be had again in the end.
func TestLeasesTogether(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		in := load.Tables(t, db)
		var held []*load.History
		for _, kind := range []string{"all1", "all2", "all3"} {
			h := load.NewHistory(kind, 1)
			h.Ledger = load.AddLedger(t, db, kind, in)
			held = append(held, h)
		}
		keptKey, began := txlock.Named("kept"), time.Now()
		clients := clientsOf(t, db, nodes)

		ctx, stop := context.WithCancel(t.Context())
		var working sync.WaitGroup
		var ended atomic.Bool
		defer working.Wait()
		defer stop()
		var mu sync.Mutex
		var grants []kept
		for _, c := range clients {
			for _, work := range []func(ctx context.Context){
				func(ctx context.Context) { several(ctx, c, held) },
				func(ctx context.Context) { several(ctx, c, held) },
				func(ctx context.Context) {
					one := kept{client: c.Number, asked: time.Since(began)}
					l, err := c.Leases.TryAcquire(ctx, keptKey, lease.HoldAtLeast(keptFor))
					if err != nil {
						return
					}
					one.token, one.got = l.Token(), time.Since(began)
					one.released = l.Release(ctx) == nil
					mu.Lock()
					defer mu.Unlock()
					grants = append(grants, one)
				},
			} {
				working.Go(func() {
					for !ended.Load() && ctx.Err() == nil {
						limited, cancel := context.WithTimeout(ctx, callLimit)
						work(limited)
						cancel()
						time.Sleep(rand.N(20 * time.Millisecond))
					}
				})
			}
		}
		more := func(n int) {
			mu.Lock()
			n += len(grants)
			mu.Unlock()
			if !testdb.Await(2*time.Minute, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(grants) >= n && slices.ContainsFunc(grants, func(g kept) bool { return g.client != grants[0].client })
			}) {
				t.Errorf("kept: not %d grants to several clients in two minutes: %+v", n, grants)
			}
		}
		more(2)
		killed(t, nodes[rand.IntN(len(nodes))])
		hung(t, db.At(t, nodes[rand.IntN(len(nodes))]))
		more(2)
		ended.Store(true)
		working.Wait()

		for i, c := range clients {
			acquired, cancel := context.WithTimeout(ctx, time.Minute)
			all, err := c.Leases.AcquireAll(acquired, []txlock.Key{keptKey, txlock.Named("all1"), txlock.Named("all2"), txlock.Named("all3")})
			cancel()
			if err != nil {
				t.Fatalf("client %d: AcquireAll at the end: %v", i, err)
			}
			wants(t, fmt.Sprintf("client %d: Release at the end", i), all.Release(ctx), nil)
		}
		for i, node := range nodes {
			t.Logf("node %d:", i)
			here := caughtUp(t, db.At(t, node))
			for _, h := range held {
				h.Ledger.Check(t, here)
			}
		}
		for _, h := range held {
			h.Check(t)
		}
		checkKept(t, grants)
	})
}

// several acquires two of the leases or all, in any order, raises their numbers in a
// transaction that they guard, and releases them.
func several(ctx context.Context, c *load.Client, held []*load.History) {
	held = slices.Clone(held)
	rand.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	held = held[:2+rand.IntN(2)]
	var keys []txlock.Key
	for _, h := range held {
		keys = append(keys, txlock.Named(h.Kind))
	}
	all, err := c.Leases.AcquireAll(ctx, keys)
	if err != nil {
		held[0].Failed(err)
		return
	}
	holds, ours := make([]load.Hold, len(held)), make([]*load.Attempts, len(held))
	for i, h := range held {
		token := all.Get(keys[i]).Token()
		holds[i], ours[i] = load.Hold{Client: c.Number, Token: token, Begun: time.Since(h.Began)}, h.Begin()
		holds[i].End = holds[i].Begun
	}
	look := func() {
		for i, key := range keys {
			if asked := time.Since(held[i].Began); all.Get(key).Err() == nil {
				holds[i].End = asked
			}
		}
	}
	err = locksqlc.Run(ctx, c.DB, nil, func(tx *sql.Tx) error {
		look()
		for _, a := range ours {
			if err := a.Increment(ctx, tx); err != nil {
				return err
			}
		}
		err := all.Guard(ctx, tx)
		for _, a := range ours {
			a.Done = err == nil
		}
		return err
	})
	look()
	for i, a := range ours {
		a.Settle(err)
		held[i].Add(holds[i])
	}
	if err := all.Release(ctx); err != nil {
		held[0].Failed(err)
	}
}

// checkKept says that nobody was granted the lease too soon after one who has released it.
func checkKept(t *testing.T, grants []kept) {
	t.Helper()
	slices.SortFunc(grants, func(a, b kept) int { return cmp.Compare(a.token, b.token) })
	byClient := make(map[int]int)
	for i, next := range grants {
		byClient[next.client]++
		for _, before := range grants[:i] {
			// The clock is that of the nodes, which may be set by a little, or run at another rate.
			if passed := next.got - before.asked; before.released && passed < keptFor-keptFor/100 {
				t.Errorf("kept: %v after %+v it was granted again: %+v", passed, before, next)
			}
		}
	}
	t.Logf("kept: %d grants, by client %v", len(grants), byClient)
}

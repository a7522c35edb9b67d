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

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestAsk asks through one node for a lease that is held through another, while a third waits for it: the holder is told by a renewal, and
// the one who has it next is told of nothing.
func TestAsk(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		clients, key, ctx := clientsOf(t, db, nodes), txlock.Named(t.Name()), leasetest.Limited(t, 5*time.Minute)
		held, holder := testdb.Got(clients[0].Leases.Acquire(ctx, key))(t), 0
		for round := range 8 {
			asker, next := clients[(holder+1)%3], clients[(holder+2)%3]
			if round%2 == 1 {
				asker, next = next, asker
			}
			var l *lease.Lease
			var waiting sync.WaitGroup
			waiting.Go(func() {
				var err error
				l, err = next.Leases.Acquire(ctx, key)
				wants(t, "Acquire", err, nil)
			})
			why, err := fmt.Sprint("round ", round), txlock.ErrNotHeld
			for errors.Is(err, txlock.ErrNotHeld) && ctx.Err() == nil { // a node that lags hasn't heard of the holder
				err = asker.Leases.RequestRelease(ctx, key, why)
			}
			check(t, err)
			select {
			case <-held.ReleaseRequested():
			case <-ctx.Done():
				t.Fatalf("%s: the holder was not told", why)
			}
			got, _ := held.ReleaseReason()
			testdb.Equal(t, "why the holder is asked", got, why)
			check(t, held.Release(ctx))
			if waiting.Wait(); l == nil {
				return
			}
			leasetest.Higher(t, l, held)
			check(t, l.Renew(ctx))
			why, asked := l.ReleaseReason()
			testdb.ErrorIf(t, asked, "round %d: the next holder is asked because of %q", round, why)
			held, holder = l, next.Number
		}
		check(t, held.Release(ctx))
		for i, node := range nodes {
			caughtUp(t, db.At(t, node))
			wants(t, fmt.Sprintf("node %d: Ask for what is free", i), clients[i].Leases.RequestRelease(ctx, key, "nobody"), txlock.ErrNotHeld)
		}
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

// TestLeasesTogether has clients of all nodes take several leases at once, in any order, and keep one, while a node is killed and
// one hangs. No two hold a lease, no guarded update is lost, what is kept is granted no sooner, and all is free in the end.
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
		keptKey, began, clients := txlock.Named("kept"), time.Now(), clientsOf(t, db, nodes)
		var mu sync.Mutex
		var grants []kept
		keep := func(ctx context.Context, c *load.Client) {
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
		load.Beside(3*len(clients), func(i int) {
			ctx, cancel := context.WithTimeout(t.Context(), callLimit)
			defer cancel()
			if c := clients[i/3]; i%3 == 0 {
				keep(ctx, c)
			} else {
				several(ctx, c, held)
			}
			time.Sleep(rand.N(20 * time.Millisecond))
		}, func() {
			more(2)
			failsTwice(t, db, nodes)
			more(2)
		})

		for i, c := range clients {
			all, err := c.Leases.AcquireAll(leasetest.Limited(t, time.Minute), []txlock.Key{keptKey, txlock.Named("all1"), txlock.Named("all2"), txlock.Named("all3")})
			testdb.FatalIf(t, err != nil, "client %d: AcquireAll at the end: %v", i, err)
			wants(t, fmt.Sprintf("client %d: Release at the end", i), all.Release(t.Context()), nil)
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

// failsTwice kills a node and has one hang.
func failsTwice(t *testing.T, db *testdb.DB, nodes []*testdb.Server) {
	t.Helper()
	killed(t, nodes[rand.IntN(len(nodes))])
	hung(t, db.At(t, nodes[rand.IntN(len(nodes))]))
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
			passed := next.got - before.asked
			testdb.ErrorIf(t, before.released && passed < keptFor-keptFor/100, "kept: %v after %+v it was granted again: %+v", passed, before, next)
		}
	}
	t.Logf("kept: %d grants, by client %v", len(grants), byClient)
}

// caughtUpConfig is how a node is reached that has the tables.
func caughtUpConfig(t *testing.T, db *testdb.DB, node *testdb.Server) *mysql.Config {
	t.Helper()
	at := db.At(t, node)
	caughtUp(t, at)
	return at.Config()
}

// openGuarded opens a guarded pool.
func openGuarded(t *testing.T, cfg *mysql.Config, options ...txlock.PoolOption) *sql.DB {
	t.Helper()
	connector := testdb.Got(mysql.NewConnector(cfg))(t)
	pool := sql.OpenDB(locksqlc.Connector(connector, options...))
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// TestEffects asks for the same ticks and keys of Once through all nodes at once, while one is killed and one hangs. Each has one
// effect: TickTx in its transaction, Once, whose answer all get, and Tick under Once. No two work on a tick, none is left out.
func TestEffects(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "effects", "id INT AUTO_INCREMENT PRIMARY KEY, kind VARCHAR(10) NOT NULL, n INT NOT NULL, answer VARCHAR(100) NOT NULL")
		begun, worked := time.Now().Add(-24*time.Hour), load.NewHistory("Tick", 1)
		var works atomic.Uint64
		effect := func(ctx context.Context, tx *sql.Tx, kind string, n int, answer string) error {
			return testdb.Err(tx.ExecContext(ctx, "INSERT INTO "+table+" (kind, n, answer) VALUES (?, ?, ?)", kind, n, answer))
		}
		var answers sync.Map // by kind and number
		once := func(ctx context.Context, c *load.Client, kind string, n int) error {
			key := fmt.Sprint(kind, n)
			answer, _, err := locksqlc.OnceValue(ctx, c.DB, txlock.Named(table+key), func(tx *sql.Tx) (string, error) {
				answer := fmt.Sprint("of client ", c.Number)
				return answer, effect(ctx, tx, kind, n, answer)
			})
			if err != nil {
				return err
			}
			before, _ := answers.LoadOrStore(key, answer)
			testdb.ErrorIf(t, before != answer, "%s is answered %q and %q", key, before, answer)
			return nil
		}
		kinds := []string{"once", "ticktx", "tick"}
		asks := []func(ctx context.Context, c *load.Client, n int, at time.Time) error{
			func(ctx context.Context, c *load.Client, n int, _ time.Time) error { return once(ctx, c, "once", n) },
			func(ctx context.Context, c *load.Client, n int, at time.Time) error {
				return testdb.Err(c.Jobs.TickTx(ctx, txlock.Named(table+"ticktx"), at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
					return effect(ctx, tx, "ticktx", n, "")
				}))
			},
			func(ctx context.Context, c *load.Client, n int, at time.Time) error {
				return testdb.Err(c.Jobs.Tick(ctx, txlock.Named(table+"tick"), at, func(ctx context.Context, _ time.Time) error {
					one := load.Hold{Client: c.Number, Token: works.Add(1), Begun: time.Since(worked.Began)}
					one.End = one.Begun
					err := once(ctx, c, "tick", n)
					if asked := time.Since(worked.Began); ctx.Err() == nil {
						one.End = asked
					}
					worked.Add(one)
					return err
				}))
			},
		}

		clients, refused := clientsOf(t, db, nodes), load.NewLedger("effects", "")
		next := make([]int, len(clients)*len(kinds))
		answered := make([]int, len(next))
		load.Beside(len(next), func(i int) {
			n := next[i]
			ctx, cancel := context.WithTimeout(t.Context(), callLimit)
			err := asks[i%len(kinds)](ctx, clients[i/len(kinds)], n, begun.Add(time.Duration(n)*time.Second))
			cancel()
			switch {
			case err == nil:
				next[i], answered[i] = n+1, n+1
			case errors.Is(err, job.ErrPast): // who began the later one was told that this was done
				next[i]++
			default:
				refused.Failed(err)
				time.Sleep(rand.N(20 * time.Millisecond))
			}
		}, func() {
			time.Sleep(time.Second)
			failsTwice(t, db, nodes)
			time.Sleep(time.Second)
		})

		for i, node := range nodes {
			here := caughtUp(t, db.At(t, node))
			answers.Range(func(key, answer any) bool {
				var effect string
				check(t, here.QueryRow("SELECT answer FROM "+table+" WHERE CONCAT(kind, n) = ?", key).Scan(&effect))
				testdb.Equal(t, fmt.Sprintf("the effect of %s on node %d", key, i), effect, fmt.Sprint(answer))
				return true
			})
			for k, kind := range kinds {
				var rows, different, last int
				check(t, here.QueryRow("SELECT COUNT(*), COUNT(DISTINCT n), COALESCE(MAX(n), -1) FROM "+table+" WHERE kind = ?", kind).Scan(&rows, &different, &last))
				told := max(answered[k], answered[len(kinds)+k], answered[2*len(kinds)+k])
				testdb.ErrorIf(t, rows != different || different != last+1 || rows < told || told == 0,
					"%s on node %d: %d effects of %d numbers up to %d, and %d were answered, want one effect of each", kind, i, rows, different, last, told)
			}
		}
		t.Logf("errors %v", refused.Errors())
		worked.Check(t)
	})
}

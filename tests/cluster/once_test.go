//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// TestOnce asks for each of 50 keys through all nodes at once. Two transactions may be
// told that they are the first, and one of them commits: each effect is there once, and
// all who ask get its answer. Who gets an error asks again.
func TestOnce(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		const keys, asks = 50, 6
		table := db.CreateTable(t, "effects", "id INT AUTO_INCREMENT PRIMARY KEY, name INT NOT NULL, answer VARCHAR(100) NOT NULL")
		var pools []*sql.DB
		for _, node := range nodes {
			pools = append(pools, openGuarded(t, caughtUpConfig(t, db, node)))
		}
		ask := func(ctx context.Context, pool *sql.DB, i, caller int) (string, error) {
			answer, _, err := locksqlc.OnceValue(ctx, pool, txlock.Named(fmt.Sprint("once:", table, ":", i)), func(tx *sql.Tx) (string, error) {
				answer := fmt.Sprint("of caller ", caller)
				_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (name, answer) VALUES (?, ?)", i, answer)
				return answer, err
			})
			return answer, err
		}
		answers, failures := make([][asks]string, keys), make([]int, keys)
		for i := range keys {
			var wg sync.WaitGroup
			var mu sync.Mutex
			for caller := range asks {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					for {
						answer, err := ask(ctx, pools[caller%len(pools)], i, caller)
						if err == nil {
							answers[i][caller] = answer
							return
						}
						mu.Lock()
						failures[i]++
						mu.Unlock()
						if ctx.Err() != nil {
							t.Errorf("key %d: %v", i, err)
							return
						}
					}
				})
			}
			wg.Wait()
		}
		lost := 0
		for i := range keys {
			lost += failures[i]
			for n, node := range nodes {
				var rows int
				var answer string
				check(t, caughtUp(t, db.At(t, node)).QueryRow("SELECT COUNT(*), COALESCE(MAX(answer), '') FROM "+table+" WHERE name = ?", i).Scan(&rows, &answer))
				leasetest.Equal(t, fmt.Sprintf("key %d: effects on node %d", i, n), rows, 1)
				for caller, got := range answers[i] {
					leasetest.Equal(t, fmt.Sprintf("key %d: what caller %d was answered, by the effect on node %d", i, caller, n), got, answer)
				}
			}
		}
		t.Logf("%d calls were refused and made again", lost)
	})
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
	connector, err := mysql.NewConnector(cfg)
	check(t, err)
	pool := sql.OpenDB(locksqlc.Connector(connector, options...))
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// TestEffects asks for the same ticks and the same keys of Once through all nodes at once,
// while one of them is killed and one hangs. Each has one effect: what TickTx writes in its
// transaction, what Once does, and what Tick does under Once, which by itself is done at
// least once. Nobody works on a tick of Tick beside another, and no tick is left out.
func TestEffects(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "effects", "id INT AUTO_INCREMENT PRIMARY KEY, kind VARCHAR(10) NOT NULL, n INT NOT NULL")
		begun := time.Now().Add(-24 * time.Hour)
		worked := load.NewHistory("Tick", 1)
		var works atomic.Uint64
		effect := func(ctx context.Context, tx *sql.Tx, kind string, n int) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (kind, n) VALUES (?, ?)", kind, n)
			return err
		}
		once := func(ctx context.Context, c *load.Client, kind string, n int) error {
			_, err := locksqlc.Once(ctx, c.DB, txlock.Named(fmt.Sprint(table, kind, n)), func(tx *sql.Tx) error { return effect(ctx, tx, kind, n) })
			return err
		}
		type ask func(ctx context.Context, c *load.Client, n int, at time.Time) error
		kinds := map[string]ask{
			"once": func(ctx context.Context, c *load.Client, n int, _ time.Time) error {
				return once(ctx, c, "once", n)
			},
			"ticktx": func(ctx context.Context, c *load.Client, n int, at time.Time) error {
				_, err := c.Jobs.TickTx(ctx, txlock.Named(table+"ticktx"), at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
					return effect(ctx, tx, "ticktx", n)
				})
				return err
			},
			"tick": func(ctx context.Context, c *load.Client, n int, at time.Time) error {
				_, err := c.Jobs.Tick(ctx, txlock.Named(table+"tick"), at, func(ctx context.Context, _ time.Time) error {
					one := load.Hold{Client: c.Number, Token: works.Add(1), Begun: time.Since(worked.Began)}
					one.End = one.Begun
					err := once(ctx, c, "tick", n)
					if asked := time.Since(worked.Began); ctx.Err() == nil {
						one.End = asked
					}
					worked.Add(one)
					return err
				})
				return err
			},
		}

		ctx, stop := context.WithCancel(t.Context())
		var working sync.WaitGroup
		var ended atomic.Bool
		defer working.Wait()
		defer stop()
		var mu sync.Mutex
		answered, refused := make(map[string]int), make(map[string]*load.Ledger)
		for kind := range kinds {
			refused[kind] = load.NewLedger(kind, "")
		}
		for i, node := range nodes {
			at := db.At(t, node)
			caughtUp(t, at)
			c := load.NewClient(t, i, at.Config())
			for kind, ask := range kinds {
				working.Go(func() {
					for n := 0; !ended.Load() && ctx.Err() == nil; {
						limited, cancel := context.WithTimeout(ctx, callLimit)
						err := ask(limited, c, n, begun.Add(time.Duration(n)*time.Second))
						cancel()
						switch {
						case err == nil:
							n++
							mu.Lock()
							answered[kind] = max(answered[kind], n)
							mu.Unlock()
							continue
						case errors.Is(err, job.ErrPast): // who began the later one was told that this was done
							n++
							continue
						}
						refused[kind].Failed(err)
						time.Sleep(rand.N(20 * time.Millisecond))
					}
				})
			}
		}
		time.Sleep(time.Second)
		killed(t, nodes[rand.IntN(len(nodes))])
		hung(t, db.At(t, nodes[rand.IntN(len(nodes))]))
		time.Sleep(time.Second)
		ended.Store(true)
		working.Wait()

		for i, node := range nodes {
			here := caughtUp(t, db.At(t, node))
			for kind := range kinds {
				var rows, different, last int
				check(t, here.QueryRow("SELECT COUNT(*), COUNT(DISTINCT n), COALESCE(MAX(n), -1) FROM "+table+" WHERE kind = ?", kind).Scan(&rows, &different, &last))
				if rows != different || different != last+1 || rows < answered[kind] {
					t.Errorf("%s on node %d: %d effects of %d numbers up to %d, and %d were answered, want one effect of each", kind, i, rows, different, last, answered[kind])
				}
			}
		}
		for kind, n := range answered {
			t.Logf("%s: %d, errors %v", kind, n, refused[kind].Errors())
			if n == 0 {
				t.Errorf("%s: nothing was done", kind)
			}
		}
		worked.Check(t)
	})
}

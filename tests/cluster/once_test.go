//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
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
				if rows != 1 {
					t.Errorf("key %d: %d effects on node %d", i, rows, n)
				}
				for caller, got := range answers[i] {
					if got != answer {
						t.Errorf("key %d: caller %d was answered %q, the effect on node %d is %q", i, caller, got, n, answer)
					}
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

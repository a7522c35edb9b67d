//go:build cluster

package cluster

import (
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestSales has two nodes sell pieces of one row, each by a read that takes the lock with it and a
// write that commits: what was acknowledged is sold, and nothing else but what nobody knows.
func TestSales(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		db.Exec(t, "CREATE TABLE stock (id INT PRIMARY KEY, n BIGINT NOT NULL)")
		db.Grant(t, "stock")
		db.Exec(t, "INSERT INTO stock VALUES (1, 0)")
		const enough = 300
		var sold, unknown atomic.Int64
		var working sync.WaitGroup
		for _, node := range nodes[:2] {
			for _, interpolates := range []bool{false, true} {
				cfg := caughtUpConfig(t, db, node)
				cfg.InterpolateParams = interpolates
				pool := openGuarded(t, cfg)
				working.Go(func() {
					for begun := time.Now(); sold.Load() < enough && time.Since(begun) < 2*time.Minute; {
						err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
							locks, err := locksqlc.Join(t.Context(), tx)
							if err != nil {
								return err
							}
							var n int64
							if err := tx.QueryRowContext(locks.LockWith(t.Context(), txlock.Named("stock")), "SELECT n FROM stock WHERE id = ?", 1).Scan(&n); err != nil {
								return err
							}
							_, err = tx.ExecContext(locks.CommitWith(t.Context(), 1), "UPDATE stock SET n = ? WHERE id = ?", n+1, 1)
							return err
						})
						switch {
						case err == nil:
							sold.Add(1)
						case errors.Is(err, txlock.ErrUnknownOutcome):
							unknown.Add(1)
						case !txlock.Retryable(err): // else it was run often enough
							t.Errorf("a sale: %v", err)
							return
						}
					}
				})
			}
		}
		working.Wait()
		for _, node := range nodes {
			var n int64
			check(t, caughtUp(t, db.At(t, node)).QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = 1").Scan(&n))
			if n < sold.Load() || n > sold.Load()+unknown.Load() || n == 0 {
				t.Errorf("%d were sold, %d acknowledged, of %d nobody knows", n, sold.Load(), unknown.Load())
			}
		}
		t.Logf("%d sales, of %d nobody knows", sold.Load(), unknown.Load())
	})
}

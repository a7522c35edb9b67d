//go:build cluster

package cluster

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOpenings has two nodes begin transactions by the lock of one key, some of which the
// cluster aborts while the lock waits: each is answered, by what can be read. A node of a
// Galera cluster executes what it takes for a single statement once more, and then the
// reply has the beginnings of two.
func TestOpenings(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		key := txlock.Named(t.Name())
		var working sync.WaitGroup
		var locked, aborted atomic.Int64
		for _, node := range nodes[:2] {
			cfg := caughtUpConfig(t, db, node)
			cfg.ReadTimeout = time.Minute
			cfg.Logger = &mysql.NopLogger{}
			pool := openGuarded(t, cfg)
			for range 4 {
				working.Go(func() {
					for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && !t.Failed(); {
						tx, err := pool.BeginTx(t.Context(), nil)
						if err != nil {
							t.Error(err)
							return
						}
						scope, err := locksqlc.Join(t.Context(), tx)
						if err != nil {
							t.Error(err)
							return
						}
						if _, err = scope.Lock(t.Context(), key); err == nil {
							locked.Add(1)
							err = tx.Commit()
						} else if aborted.Add(1); !errors.Is(err, txlock.ErrDeadlock) {
							t.Errorf("Lock: %v, want ErrDeadlock", err)
						}
						if err != nil {
							_ = tx.Rollback()
						}
					}
				})
			}
		}
		working.Wait()
		t.Logf("%d locks, %d were refused", locked.Load(), aborted.Load())
	})
}

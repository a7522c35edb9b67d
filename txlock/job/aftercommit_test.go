package job

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestAfterCommitOfATick proves that TickTx calls functions when its transaction is committed,
// before it returns.
func TestAfterCommitOfATick(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, err := locksqlc.Open(db.DSN())
		must(t, err)
		t.Cleanup(func() { must(t, pool.Close()) })
		j, key, calls := open(t, pool), newKey(), 0
		ran, err := j.TickTx(t.Context(), key, serverNow(t, j), func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
			scope, err := txlock.Join(ctx, tx)
			if err != nil {
				return err
			}
			return scope.AfterCommit(func() { calls++ })
		})
		if !ran || err != nil || calls != 1 {
			t.Errorf("ran %t, %v, and %d functions were called", ran, err, calls)
		}
	})
}

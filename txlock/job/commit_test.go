package job

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestUnansweredCommit proves that TickTx finds out whether a COMMIT that was not answered
// was executed: fn is not called again then, and else it may be.
func TestUnansweredCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(20)")
		j := open(t, newPool(t, db, true))
		key, at := newKey(), serverNow(t, j)
		tick := func(j *Jobs) (bool, error) {
			return j.TickTx(t.Context(), key, at, func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (what) VALUES ('done')")
				return err
			})
		}
		losing := func(arrives bool) *Jobs {
			jobs, err := New(newPool(t, db, false, testdb.LosingCommits(arrives)), j.leases)
			must(t, err)
			return jobs
		}
		if ran, err := tick(losing(false)); !ran || !errors.Is(err, txlock.ErrUnknownOutcome) || !errors.Is(err, mysql.ErrInvalidConn) {
			t.Errorf("not executed: %v, %v", ran, err)
		}
		if ran, err := tick(losing(true)); !ran || err != nil {
			t.Errorf("executed: %v, %v", ran, err)
		}
		if ran, err := tick(j); ran || err != nil {
			t.Errorf("again: %v, %v", ran, err)
		}
		if n := count(t, db, "SELECT COUNT(*) FROM "+table); n != 1 {
			t.Errorf("%d rows", n)
		}
		s, err := j.Status(t.Context(), key)
		if err != nil || !s.Done.Equal(at) || s.Err != "" {
			t.Errorf("the table says %+v, %v", s, err)
		}
	})
}

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

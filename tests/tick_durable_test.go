package tests

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestTickToldIsDurable proves that a tick of which somebody was told that it was done is
// done after the server was killed: see TestOnceToldIsDurable. Without a seal something is lost
// at every tenth kill.
func TestTickToldIsDurable(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Dedicated(t, engine, testdb.Durable()).OpenLeases(t)
			for kill := range testdb.Long(1, 20) {
				told := tickUntilKilled(t, db, kill)
				recovered(t, db)
				jobs, end := newJobs(t, db)
				lost := 0
				for _, key := range told {
					ran, err := jobs.TickTx(t.Context(), key, time.Unix(1, 0), emptyTick)
					if err != nil {
						t.Fatal(err)
					}
					if ran {
						lost++
					}
				}
				end()
				t.Logf("%d callers were told that the tick was done; of %d that is lost", len(told), lost)
				if lost > 0 || len(told) == 0 {
					t.Errorf("%d of %d ticks are lost", lost, len(told))
				}
			}
		})
	}
}

func emptyTick(context.Context, *sql.Tx, time.Time) error { return nil }

// newJobs returns jobs on a pool of their own.
func newJobs(t *testing.T, db *testdb.DB) (jobs *job.Jobs, end func()) {
	t.Helper()
	pool := faultPool(t, db, network{}, guarded)
	pool.SetMaxIdleConns(45)
	leases := faultManager(t, pool, lease.PurgeEvery(0, time.Hour))
	jobs, err := job.New(pool, leases)
	if err != nil {
		t.Fatal(err)
	}
	return jobs, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := errors.Join(jobs.Close(ctx), leases.Close(ctx))
		if closed := pool.Close(); errors.Join(err, closed) != nil {
			t.Logf("close: %v", errors.Join(err, closed)) // of a server that was killed
		}
	}
}

// tickUntilKilled asks for the ticks of many jobs until the server is killed: see
// toldUntilKilled.
func tickUntilKilled(t *testing.T, db *testdb.DB, kill int) []txlock.Key {
	t.Helper()
	jobs, end := newJobs(t, db)
	defer end()
	return toldUntilKilled(t, db, kill, 150, func(ctx context.Context, key txlock.Key) (ran bool, err error) {
		return jobs.TickTx(ctx, key, time.Unix(1, 0), emptyTick)
	})
}

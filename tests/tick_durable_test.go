package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
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
			for kill := range testdb.Long(2, 20) {
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
	leases := faultManager(t, pool, lease.Janitor(0, time.Hour))
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

// tickUntilKilled asks for the ticks of many jobs, three times each at once, until the server
// is killed after a while. It returns those of which a caller was told that they were done.
func tickUntilKilled(t *testing.T, db *testdb.DB, kill int) (told []txlock.Key) {
	t.Helper()
	jobs, end := newJobs(t, db)
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var asking sync.WaitGroup
	for i := range 45 {
		asking.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := txlock.Named(fmt.Sprintf("told:%d:%d:%d", kill, i/3, n))
				if ran, err := jobs.TickTx(ctx, key, time.Unix(1, 0), emptyTick); err == nil && !ran {
					mu.Lock()
					told = append(told, key)
					mu.Unlock()
				}
			}
		})
	}
	for enough := false; !enough; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		enough = len(told) >= 150
		mu.Unlock()
	}
	err := db.Server().Kill()
	stop()
	asking.Wait()
	end()
	if err != nil {
		t.Logf("kill: %v", err)
	}
	return told
}

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
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestToldIsDurable proves that what a second caller was told, of a key of Once and of a tick
// that was done, is there after the server was killed. A MariaDB without a binary log shows a
// transaction to others before its COMMIT is written: without a seal, something that was told
// is lost at every third kill, and of ticks at every tenth.
func TestToldIsDurable(t *testing.T) {
	onServers(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Durable()).OpenLeases(t)
		for kill := range testdb.Long(1, 20) {
			asks, end := tellers(t, db)
			told := toldUntilKilled(t, db, kill, asks)
			end()
			recovered(t, db)
			asks, end = tellers(t, db)
			for i, keys := range told {
				lost := 0
				for _, key := range keys {
					first, err := asks[i](t.Context(), key)
					fatal(t, err)
					if first {
						lost++
					}
				}
				t.Logf("%d callers were told that another one was the first; of %d that is lost", len(keys), lost)
				if lost > 0 || len(keys) == 0 {
					t.Errorf("%d of %d answers are lost", lost, len(keys))
				}
			}
			end()
		}
	})
}

// teller tells who asks whether it is the first that does what a key stands for.
type teller func(ctx context.Context, key txlock.Key) (first bool, err error)

// tellers tell of keys of Once and of ticks, by a pool of their own.
func tellers(t *testing.T, db *testdb.DB) (asks [2]teller, end func()) {
	t.Helper()
	pool := faultPool(t, db, network{}, guarded)
	pool.SetMaxIdleConns(90)
	leases := faultManager(t, pool, lease.PurgeEvery(0, time.Hour))
	jobs, err := job.New(pool, leases)
	fatal(t, err)
	once := func(ctx context.Context, key txlock.Key) (bool, error) {
		return locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })
	}
	tick := func(ctx context.Context, key txlock.Key) (bool, error) {
		return jobs.TickTx(ctx, key, time.Unix(1, 0), func(context.Context, *sql.Tx, time.Time) error { return nil })
	}
	return [2]teller{once, tick}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := errors.Join(jobs.Close(ctx), leases.Close(ctx))
		if closed := pool.Close(); errors.Join(err, closed) != nil {
			t.Logf("close: %v", errors.Join(err, closed)) // of a server that was killed
		}
	}
}

// toldUntilKilled asks for many keys, three times each at once, until 150 callers of each kind
// were told that another one was the first. Then it kills the server, and returns the keys of
// all who were told so.
func toldUntilKilled(t *testing.T, db *testdb.DB, kill int, asks [2]teller) (told [2][]txlock.Key) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var asking sync.WaitGroup
	for i := range 90 {
		asking.Go(func() {
			for n, kind := 0, i%len(asks); ctx.Err() == nil; n++ {
				key := txlock.Named(fmt.Sprintf("told:%d:%d:%d", kill, i/6, n))
				if first, err := asks[kind](ctx, key); err == nil && !first {
					mu.Lock()
					told[kind] = append(told[kind], key)
					mu.Unlock()
				}
			}
		})
	}
	for enough := false; !enough; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		enough = len(told[0]) >= 150 && len(told[1]) >= 150
		mu.Unlock()
	}
	err := db.Server().Kill()
	stop()
	asking.Wait()
	if err != nil {
		t.Logf("kill: %v", err)
	}
	return told
}

// recovered kills the server, and starts it again on the same data. MariaDB 10.11 aborts
// at times while it recovers, in its purge: then it is started once more.
func recovered(t *testing.T, db *testdb.DB) {
	t.Helper()
	err := db.Server().Restart(context.Background())
	for range 2 {
		if err != nil {
			t.Log(err)
			err = db.Server().Restart(context.Background())
		}
	}
	if err != nil {
		t.Error(err)
	}
}

package tests

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOnceToldIsDurable proves that what a second caller was told is there after the server
// was killed. A MariaDB without a binary log shows a transaction to others before its COMMIT
// is written: without a seal, something that was told is lost at every third kill.
func TestOnceToldIsDurable(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Dedicated(t, engine, testdb.Durable()).OpenLeases(t)
			for kill := range testdb.Long(1, 20) {
				told := tellUntilKilled(t, db, kill)
				recovered(t, db)
				pool, lost := faultPool(t, db, network{}, guarded), 0
				for _, key := range told {
					first, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return nil })
					if err != nil {
						t.Fatal(err)
					}
					if first {
						lost++
					}
				}
				t.Logf("%d callers were told that another one was the first; of %d that is lost", len(told), lost)
				if lost > 0 || len(told) == 0 {
					t.Errorf("%d of %d answers are lost", lost, len(told))
				}
			}
		})
	}
}

// tellUntilKilled asks for many keys until the server is killed: see toldUntilKilled.
func tellUntilKilled(t *testing.T, db *testdb.DB, kill int) []txlock.Key {
	t.Helper()
	pool := faultPool(t, db, network{}, guarded)
	pool.SetMaxIdleConns(45)
	told := toldUntilKilled(t, db, kill, 300, func(ctx context.Context, key txlock.Key) (first bool, err error) {
		return locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })
	})
	if err := pool.Close(); err != nil {
		t.Logf("close: %v", err)
	}
	return told
}

// toldUntilKilled asks for many keys, three times each at once, until so many callers were
// told that another one was the first. Then it kills the server, and returns the keys of all
// who were told so.
func toldUntilKilled(t *testing.T, db *testdb.DB, kill, many int, ask func(ctx context.Context, key txlock.Key) (first bool, err error)) (told []txlock.Key) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var asking sync.WaitGroup
	for i := range 45 {
		asking.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := txlock.Named(fmt.Sprintf("told:%d:%d:%d", kill, i/3, n))
				if first, err := ask(ctx, key); err == nil && !first {
					mu.Lock()
					told = append(told, key)
					mu.Unlock()
				}
			}
		})
	}
	for enough := false; !enough; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		enough = len(told) >= many
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

package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestGapOfARollback rolls back the first lock of a key while another waits for it. Where
// that lock began its transaction, the row was made before, and stays: what is new beside it
// is free. Otherwise who is granted the key then has the gap around it as well, until its end:
// a try of a new key beside it is refused, and one that was made beforehand is free.
func TestGapOfARollback(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for _, begins := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/begins=%t", engine, begins), func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenNamed(t)
				pool, family := guarded(t, db), txlock.NewFamily[int]("rolled")
				check(t, txlock.Ensure(t.Context(), db.Admin(), family.Key(1), family.Key(9)))
				waiter := rolledBack(t, db, pool, family.Key(5), begins)
				taken := txlock.ErrBusy
				if begins && (engine == testdb.MariaDB || !testdb.WithoutProcedures()) {
					taken = nil
				}
				for id, want := range map[int]error{1: nil, 4: taken, 6: taken, 9: nil} {
					_, stranger := begin(t, pool, sql.LevelRepeatableRead)
					if _, err := stranger.TryLock(t.Context(), family.Key(id)); !errors.Is(err, want) {
						t.Errorf("a try of key %d beside one that was rolled back: %v, want %v", id, err, want)
					}
				}
				check(t, waiter.Rollback())
				_, stranger := begin(t, pool, sql.LevelRepeatableRead)
				if _, err := stranger.TryLock(t.Context(), family.Key(3)); err != nil {
					t.Errorf("a try when the gap is free: %v", err)
				}
			})
		}
	}
}

// rolledBack locks a key, rolls back while another waits for it, and returns the transaction
// that has the key then.
func rolledBack(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key, begins bool) *sql.Tx {
	t.Helper()
	holder, first := begin(t, pool, sql.LevelRepeatableRead)
	if !begins {
		testdb.ConnID(t, holder)
	}
	lock(t, first, key)
	conn, id := connection(t, pool)
	waiter, after := begin(t, conn, sql.LevelDefault)
	granted := make(chan error, 1)
	go func() { granted <- second(after.Lock(t.Context(), key)) }()
	db.WaitForLockWait(t, id)
	check(t, errors.Join(holder.Rollback(), <-granted))
	return waiter
}

// TestManyFirstLocks has 30 transactions lock a new key at once and roll back in turn. Each
// is granted it.
func TestManyFirstLocks(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for name, lock := range map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
			"Lock":  func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.Lock(ctx, key)) },
			"RLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.RLock(ctx, key)) },
			"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
				return s.CompareAndBump(ctx, key, 0)
			},
		} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				if engine == testdb.MySQL && testdb.WithoutProcedures() {
					return // there the row is made in the transaction
				}
				pool, key := guarded(t, testdb.Shared(t, engine).OpenNamed(t)), txlock.Named("first/"+name)
				tx, scope := begin(t, pool, sql.LevelRepeatableRead) // the first RLock of a process asks something in its transaction
				check(t, errors.Join(lock(t.Context(), scope, txlock.Named("another")), tx.Rollback()))
				var all sync.WaitGroup
				for range 30 {
					tx, scope := begin(t, pool, sql.LevelRepeatableRead)
					all.Go(func() {
						if err := errors.Join(lock(t.Context(), scope, key), tx.Rollback()); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
			})
		}
	}
}

// TestOncesOfNeighbours rolls back, at the same time, the first transactions of two new keys of
// Once that are neighbours. Those that wait behind them inherit the gaps, so the server may end
// one of them as a deadlock. The other one is the first, and so is the retry.
func TestOncesOfNeighbours(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenNamed(t)
		pool, family, deadlocks := guarded(t, db), txlock.NewFamily[int]("neighbour"), 0
		for round := range 20 {
			var holders []*sql.Tx
			answers := make(chan error, 2)
			for i := range 2 {
				key := family.Key(2*round + i + 1)
				holder, first := begin(t, pool, sql.LevelRepeatableRead)
				if is, err := first.Once(t.Context(), key); err != nil || !is {
					t.Fatalf("the first: %t, %v", is, err)
				}
				holders = append(holders, holder)
				waiter, second := begin(t, pool, sql.LevelRepeatableRead)
				id := testdb.ConnID(t, waiter)
				go func() {
					is, err := second.Once(t.Context(), key)
					if err == nil && !is {
						err = errors.New("a first that was rolled back counts")
					}
					answers <- errors.Join(err, waiter.Rollback())
				}()
				db.WaitForLockWait(t, id)
			}
			var rollBacks sync.WaitGroup
			for _, holder := range holders {
				rollBacks.Go(func() {
					if err := holder.Rollback(); err != nil {
						t.Error(err)
					}
				})
			}
			rollBacks.Wait()
			for range holders {
				if err := <-answers; errors.Is(err, txlock.ErrDeadlock) && txlock.Retryable(err) {
					deadlocks++
				} else if err != nil {
					t.Error(err)
				}
			}
			if first, err := locksqlc.Once(t.Context(), pool, family.Key(2*round+1), func(*sql.Tx) error { return nil }); err != nil || !first {
				t.Errorf("the retry: %t, %v", first, err)
			}
		}
		t.Logf("%d deadlocks of %d", deadlocks, 40)
		if deadlocks > 20 {
			t.Errorf("%d of 40 were ended: both of a pair", deadlocks)
		}
	})
}

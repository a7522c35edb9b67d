package locksuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestFirstComeFirstServed has 30 waiters granted in the order they came.
func TestFirstComeFirstServed(t *testing.T) {
	family := txlock.NewFamily[int64]("queue")
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		key := family.Key(1)
		check(t, txlock.Ensure(t.Context(), db.Admin(), key))
		pool := guarded(t, db)
		holder, scope := begin(t, pool, sql.LevelRepeatableRead)
		lock(t, scope, key)
		const waiters = 30
		var mu sync.Mutex
		var order []int
		var tokens []uint64
		var wg sync.WaitGroup
		for i := range waiters {
			conn, id := connection(t, pool)
			tx, err := conn.BeginTx(t.Context(), nil)
			check(t, err)
			wg.Go(func() {
				defer conn.Close()
				scope, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					t.Error(err)
					return
				}
				grant, err := scope.Lock(t.Context(), key)
				mu.Lock() // under the lock of the database: nobody else is granted meanwhile
				order, tokens = append(order, i), append(tokens, grant.Token())
				mu.Unlock()
				if err := errors.Join(err, tx.Commit()); err != nil {
					t.Error(err)
				}
			})
			db.WaitForLockWait(t, id)
		}
		check(t, holder.Commit())
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != waiters {
			t.Errorf("granted in the order %v", order)
		}
		if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != waiters {
			t.Errorf("tokens %v", tokens)
		}
	})
}

// TestLockAllInAnyOrder runs LockAll over the same keys in random orders: no
// deadlock in 320 rounds, 1,000 with LOCKSTEP_LONG=1, named and hashed, exclusive and
// shared keys mixed.
func TestLockAllInAnyOrder(t *testing.T) {
	named := txlock.NewFamily[int64]("all")
	hashed := txlock.NewFamily[int64]("allhashed", txlock.Hashed())
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		var all []txlock.Key
		for id := int64(1); id <= 10; id++ {
			all = append(all, named.Key(id), hashed.Key(id))
		}
		check(t, txlock.Ensure(t.Context(), db.Admin(), all...))
		pool := guarded(t, db)
		const workers = 8
		each(t, workers, func(ctx context.Context, w int) error {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for range testdb.Long(40, 125) {
				keys := slices.Clone(all)
				random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				for i := range keys[:random.IntN(7)] {
					keys[i] = txlock.Shared(keys[i])
				}
				err := inTx(ctx, pool, func(scope *txlock.Scope) error { return second(scope.LockAll(ctx, keys[:6]...)) })
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// TestFreshKeysHardlyCollide has 16 workers lock 60 fresh keys each, 20 in a
// transaction, under REPEATABLE READ, by every verb: nobody waits for a neighbour but
// where the index splits beside a locked row, which closes the gap there. A try is refused
// then, and two workers who wait for each other so are a deadlock, of some thousands of
// transactions one. It is 2,000 keys with LOCKSTEP_LONG=1.
func TestFreshKeysHardlyCollide(t *testing.T) {
	const workers = 16
	each20 := int64(testdb.Long(3, 100))
	for _, engine := range testdb.Engines() {
		// Of its own: what other tests roll back closes gaps, see TestGapOfARollback.
		db := testdb.Shared(t, engine).OpenLeases(t)
		for _, verb := range []struct {
			name string
			lock func(ctx context.Context, s *txlock.Scope, keys []txlock.Key) error
		}{
			{"Lock", single((*txlock.Scope).Lock)},
			{"TryLock", single((*txlock.Scope).TryLock)},
			{"RLock", single((*txlock.Scope).RLock)},
			{"TryRLock", single((*txlock.Scope).TryRLock)},
			{"LockAny", single(func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
				return s.LockAny(ctx, key)
			})},
			{"LockAll", func(ctx context.Context, s *txlock.Scope, keys []txlock.Key) error {
				return second(s.LockAll(ctx, keys...))
			}},
		} {
			t.Run(fmt.Sprintf("%s/%s", engine, verb.name), func(t *testing.T) {
				t.Parallel()
				family := txlock.NewFamily[string]("fresh-"+verb.name, txlock.Exact())
				pool := guarded(t, db)
				// A refused transaction is rolled back, which closes gaps for others, the more
				// the busier the machine is: then it is tried again. Keys that do collide do so
				// each time.
				for round := uint64(1); ; round++ {
					var refused, deadlocks atomic.Int64
					each(t, workers, func(ctx context.Context, w int) error {
						random := rand.New(rand.NewPCG(round, uint64(w)))
						for range each20 {
							keys := make([]txlock.Key, 20)
							for i := range keys {
								keys[i] = family.Key(fmt.Sprintf("%016x-%d", random.Uint64(), w))
							}
							err := inTx(ctx, pool, func(s *txlock.Scope) error { return verb.lock(ctx, s, keys) })
							switch {
							case errors.Is(err, txlock.ErrDeadlock):
								deadlocks.Add(1)
							case errors.Is(err, txlock.ErrBusy):
								refused.Add(1)
							case err != nil:
								return err
							}
						}
						return nil
					})
					t.Logf("of %d transactions %d were refused, %d were deadlocks", workers*each20, refused.Load(), deadlocks.Load())
					if t.Failed() || refused.Load() <= workers*each20/2 && deadlocks.Load() <= workers*each20/20 {
						return
					}
					if round == 5 {
						t.Fatal("fresh keys collide")
					}
				}
			})
		}
	}
}

// single locks key by key.
func single(verb func(*txlock.Scope, context.Context, txlock.Key) (txlock.Grant, error)) func(context.Context, *txlock.Scope, []txlock.Key) error {
	return func(ctx context.Context, s *txlock.Scope, keys []txlock.Key) error {
		for _, key := range keys {
			if _, err := verb(s, ctx, key); err != nil {
				return err
			}
		}
		return nil
	}
}

var errRollback = errors.New("roll back")

// inTx runs fn with the locks of a transaction, and commits where it succeeds.
func inTx(ctx context.Context, pool *sql.DB, fn func(*txlock.Scope) error) error {
	tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	scope, err := locksqlc.Join(ctx, tx)
	if err == nil {
		err = fn(scope)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// each runs fn in n goroutines and fails the test for each error.
func each(t *testing.T, n int, fn func(ctx context.Context, worker int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			if err := fn(t.Context(), w); err != nil {
				t.Errorf("worker %d: %v", w, err)
			}
		})
	}
	wg.Wait()
}

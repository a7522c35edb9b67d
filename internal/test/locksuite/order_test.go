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
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestFirstComeFirstServed has 30 waiters granted in the order they came.
func TestFirstComeFirstServed(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db, key := testdb.Open(t, engine), txlock.NewFamily[int64]("queue").Key(1)
		check(t, txlock.Ensure(t.Context(), db.Admin(), key))
		pool := guarded(t, db)
		holder, scope := begin(t, pool, sql.LevelRepeatableRead)
		lock(t, scope, key)
		var mu sync.Mutex
		var order []int
		var tokens []uint64
		var waiting []<-chan error
		for i := range 30 {
			conn, id := connection(t, pool)
			tx, scope := begin(t, conn, sql.LevelDefault)
			waiting = append(waiting, db.Waiting(t, id, func() error {
				grant, err := scope.Lock(t.Context(), key)
				mu.Lock() // under the lock of the database: nobody else is granted meanwhile
				order, tokens = append(order, i), append(tokens, grant.Token())
				mu.Unlock()
				return errors.Join(err, tx.Commit())
			}))
		}
		check(t, holder.Commit())
		for _, granted := range waiting {
			wants(t, "a waiter", <-granted, nil)
		}
		testdb.ErrorIf(t, !slices.IsSorted(order) || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != len(waiting),
			"granted in the order %v, with the tokens %v", order, tokens)
	})
}

// TestLockAllInAnyOrder runs LockAll over the same keys in random orders: no deadlock in 320 rounds, 1,000 with
// LOCKSTEP_LONG=1, named and hashed, exclusive and shared keys mixed.
func TestLockAllInAnyOrder(t *testing.T) {
	named, hashed := txlock.NewFamily[int64]("all"), txlock.NewFamily[int64]("allhashed", txlock.Hashed())
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		var all []txlock.Key
		for id := int64(1); id <= 10; id++ {
			all = append(all, named.Key(id), hashed.Key(id))
		}
		check(t, txlock.Ensure(t.Context(), db.Admin(), all...))
		pool := guarded(t, db)
		each(t, 8, func(ctx context.Context, w int) (err error) {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for round := 0; round < testdb.Long(40, 125) && err == nil; round++ {
				keys := slices.Clone(all)
				random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				for i := range keys[:random.IntN(7)] {
					keys[i] = txlock.Shared(keys[i])
				}
				err = inTx(ctx, pool, (*sql.Tx).Commit, func(scope *txlock.Scope) error { return testdb.Err(scope.LockAll(ctx, keys[:6]...)) })
			}
			return err
		})
	})
}

// TestFreshKeysHardlyCollide has 16 workers lock 60 fresh keys each, 20 in a transaction, under REPEATABLE READ, by
// every verb: nobody waits for a neighbour but where the index splits beside a locked row, which closes the gap
// there. A try is refused then, and two workers who wait for each other so are a deadlock, of some thousands of
// transactions one. It is 2,000 keys with LOCKSTEP_LONG=1.
func TestFreshKeysHardlyCollide(t *testing.T) {
	const workers = 16
	each20 := int64(testdb.Long(3, 100))
	for _, engine := range testdb.Engines() {
		// Of its own: what other tests roll back closes gaps, see TestGapOfARollback.
		db := testdb.Shared(t, engine).OpenLeases(t)
		for verb, lock := range map[string]func(ctx context.Context, s *txlock.Scope, keys []txlock.Key) error{
			"Lock":     single((*txlock.Scope).Lock),
			"TryLock":  single((*txlock.Scope).TryLock),
			"RLock":    single((*txlock.Scope).RLock),
			"TryRLock": single((*txlock.Scope).TryRLock),
			"LockAny": single(func(s *txlock.Scope, ctx context.Context, key txlock.Key) (txlock.Grant, error) {
				return s.LockAny(ctx, key)
			}),
			"LockAll": func(ctx context.Context, s *txlock.Scope, keys []txlock.Key) error {
				return testdb.Err(s.LockAll(ctx, keys...))
			},
		} {
			t.Run(fmt.Sprintf("%s/%s", engine, verb), func(t *testing.T) {
				t.Parallel()
				family, pool := txlock.NewFamily[string]("fresh-"+verb, txlock.Exact()), guarded(t, db)
				// A refused transaction is rolled back, which closes gaps for others, the more the busier the machine
				// is: then it is tried again. Keys that do collide do so each time.
				for round := uint64(1); ; round++ {
					var refused, deadlocks atomic.Int64
					each(t, workers, func(ctx context.Context, w int) error {
						random := rand.New(rand.NewPCG(round, uint64(w)))
						for range each20 {
							keys := make([]txlock.Key, 20)
							for i := range keys {
								keys[i] = family.Key(fmt.Sprintf("%016x-%d", random.Uint64(), w))
							}
							err := inTx(ctx, pool, (*sql.Tx).Commit, func(s *txlock.Scope) error { return lock(ctx, s, keys) })
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
					if t.Failed() || refused.Load() <= workers*each20/2 && deadlocks.Load() <= workers*each20/20 {
						return
					}
					if t.Logf("of %d transactions %d were refused, %d were deadlocks", workers*each20, refused.Load(), deadlocks.Load()); round == 5 {
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

// inTx runs fn with the locks of a transaction, and ends that where it succeeds.
func inTx(ctx context.Context, pool *sql.DB, end func(*sql.Tx) error, fn func(*txlock.Scope) error) error {
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
	return end(tx)
}

// each runs fn in n goroutines and fails the test for each error.
func each(t *testing.T, n int, fn func(ctx context.Context, worker int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range n {
		wg.Go(func() {
			err := fn(t.Context(), w)
			testdb.ErrorIf(t, err != nil, "worker %d: %v", w, err)
		})
	}
	wg.Wait()
}

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
				holder, first := begin(t, pool, sql.LevelRepeatableRead)
				if !begins {
					testdb.ConnID(t, holder)
				}
				lock(t, first, family.Key(5))
				conn, id := connection(t, pool)
				waiter, after := begin(t, conn, sql.LevelDefault)
				granted := db.Waiting(t, id, func() error { return testdb.Err(after.Lock(t.Context(), family.Key(5))) })
				check(t, errors.Join(holder.Rollback(), <-granted))
				taken := txlock.ErrBusy
				if begins && (engine == testdb.MariaDB || !testdb.WithoutProcedures()) {
					taken = nil
				}
				tries := func(id int, want error) {
					t.Helper()
					_, stranger := begin(t, pool, sql.LevelRepeatableRead)
					wants(t, fmt.Sprint("a try of key ", id), testdb.Err(stranger.TryLock(t.Context(), family.Key(id))), want)
				}
				for id, want := range map[int]error{1: nil, 4: taken, 6: taken, 9: nil} {
					tries(id, want)
				}
				check(t, waiter.Rollback())
				tries(3, nil) // the gap is free
			})
		}
	}
}

// TestManyFirstLocks has 30 transactions lock a new key at once and roll back in turn. Each is granted it.
func TestManyFirstLocks(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for name, lock := range map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
			"Lock":           func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return testdb.Err(s.Lock(ctx, key)) },
			"RLock":          func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return testdb.Err(s.RLock(ctx, key)) },
			"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return s.CompareAndBump(ctx, key, 0) },
		} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				if engine == testdb.MySQL && testdb.WithoutProcedures() {
					return // there the row is made in the transaction
				}
				pool := guarded(t, testdb.Shared(t, engine).OpenNamed(t))
				undone := func(ctx context.Context, key txlock.Key) error {
					return inTx(ctx, pool, (*sql.Tx).Rollback, func(s *txlock.Scope) error { return lock(ctx, s, key) })
				}
				check(t, undone(t.Context(), txlock.Named("another"))) // the first RLock of a process asks something in its transaction
				each(t, 30, func(ctx context.Context, _ int) error { return undone(ctx, txlock.Named("first/"+name)) })
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
			var answers []<-chan error
			for i := range 2 {
				once := func(s *txlock.Scope) error {
					first, err := s.Once(t.Context(), family.Key(2*round+i+1))
					if err == nil && !first {
						err = errors.New("a first that was rolled back counts")
					}
					return err
				}
				holder, first := begin(t, pool, sql.LevelRepeatableRead)
				check(t, once(first))
				holders = append(holders, holder)
				waiter, second := begin(t, pool, sql.LevelRepeatableRead)
				answers = append(answers, db.Waiting(t, testdb.ConnID(t, waiter), func() error { return errors.Join(once(second), waiter.Rollback()) }))
			}
			each(t, len(holders), func(_ context.Context, i int) error { return holders[i].Rollback() })
			for _, answer := range answers {
				if err := <-answer; errors.Is(err, txlock.ErrDeadlock) && txlock.Retryable(err) {
					deadlocks++
				} else if err != nil {
					t.Error(err)
				}
			}
			first, err := locksqlc.Once(t.Context(), pool, family.Key(2*round+1), nothing)
			testdb.ErrorIf(t, err != nil || !first, "the retry: %t, %v", first, err)
		}
		testdb.ErrorIf(t, deadlocks > 20, "%d of 40 were ended: both of a pair", deadlocks)
	})
}

// tokenVerbs are all ways to the token of a key, which the second key only stands beside.
var tokenVerbs = map[string]func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (txlock.Grant, error){
	"Lock": func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (txlock.Grant, error) {
		return s.Lock(ctx, key)
	},
	"TryLock": func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (txlock.Grant, error) {
		return s.TryLock(ctx, key)
	},
	"WaitAtMost": func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (txlock.Grant, error) {
		return s.WaitAtMost(time.Minute).Lock(ctx, key)
	},
	"LockAll": func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (txlock.Grant, error) {
		return first(s.LockAll(ctx, key, beside))
	},
	"WaitAtMost.LockAll": func(ctx context.Context, s *txlock.Scope, key, beside txlock.Key) (txlock.Grant, error) {
		return first(s.WaitAtMost(time.Minute).LockAll(ctx, key, beside))
	},
	"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key, _ txlock.Key) (txlock.Grant, error) {
		version, err := s.Version(ctx, key)
		if err == nil {
			err = s.CompareAndBump(ctx, key, version)
		}
		grant, _ := s.Held(key)
		return grant, err
	},
}

func first(grants []txlock.Grant, err error) (txlock.Grant, error) {
	if err != nil {
		return txlock.Grant{}, err
	}
	return grants[0], nil
}

// TestTokensOfFreshKeysRise locks keys that are never committed by many at once, and rolls back: a row that is made
// again each time doesn't take the token back, although the statement that makes it began before others were granted
// the key. Keys that have rows do the same.
func TestTokensOfFreshKeysRise(t *testing.T) {
	for _, engine := range testdb.Engines() {
		for name, c := range map[string]struct {
			guarded, made bool
			set           func(*mysql.Config)
			options       []txlock.FamilyOption
		}{
			"guarded":           {true, false, interpolating, nil},
			"guarded, prepared": {true, false, func(*mysql.Config) {}, nil},
			"plain":             {false, false, interpolating, nil},
			"made before":       {true, true, interpolating, nil},
			"hashed":            {true, true, interpolating, []txlock.FamilyOption{txlock.Hashed()}},
		} {
			for verb, lock := range tokenVerbs {
				t.Run(fmt.Sprintf("%s/%s/%s", engine, name, verb), func(t *testing.T) {
					t.Parallel()
					db := testdb.Open(t, engine)
					family := txlock.NewFamily[string](fmt.Sprintf("fresh-tokens/%s/%s", verb, name), append(c.options, txlock.Exact())...)
					// Between two rows, so that the gap which a rollback closes is this test's alone.
					check(t, txlock.Ensure(t.Context(), db.Admin(), family.Key("a"), family.Key("z")))
					key, beside := family.Key("key"), family.Key("key beside")
					if c.made {
						check(t, txlock.Ensure(t.Context(), db.Admin(), key, beside))
					}
					tokens := risingTokens{}
					tokens.rollAllBack(t, poolOf(t, db, c.guarded, c.set), func(s *txlock.Scope) (txlock.Grant, error) { return lock(t.Context(), s, key, beside) })
					tokens.check(t, map[bool]int{true: 1, false: 10}[verb == "TryLock"])
				})
			}
		}
	}
}

// TestTokensRiseBesideClean does the same while Clean removes the row, which one commits
// before each round, as soon as it may.
func TestTokensRiseBesideClean(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).OpenLeases(t)
		key, tokens, pool := txlock.Named("cleaned"), risingTokens{}, guarded(t, db)
		lock := func(s *txlock.Scope) (txlock.Grant, error) { return s.Lock(t.Context(), key) }
		for range 5 {
			check(t, inTx(t.Context(), pool, (*sql.Tx).Commit, func(s *txlock.Scope) error { return tokens.note(lock(s)) }))
			db.Exec(t, "UPDATE lockstep_locks SET locked_us = 0")
			removed := make(chan error, 1)
			go func() {
				n, err := 0, error(nil)
				for n == 0 && err == nil {
					n, err = txlock.Purge(t.Context(), db.Admin(), time.Hour)
				}
				removed <- err
			}()
			tokens.rollAllBack(t, pool, lock)
			check(t, <-removed)
		}
		tokens.check(t, 100)
	})
}

// risingTokens are the tokens of one key in the order of its grants.
type risingTokens struct {
	mu     sync.Mutex
	last   uint64
	grants int
	fell   []string
}

// note is called under the lock, and returns the error.
func (r *risingTokens) note(grant txlock.Grant, err error) error {
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if token := grant.Token(); token <= r.last {
		r.fell = append(r.fell, fmt.Sprintf("%d after %d", token, r.last))
	}
	r.last = grant.Token()
	r.grants++
	return nil
}

// rollAllBack takes the lock ten times in each of eight goroutines, and rolls back. Who makes a
// row is waited for by the others, and its rollback is a deadlock among these.
func (r *risingTokens) rollAllBack(t *testing.T, pool *sql.DB, lock func(s *txlock.Scope) (txlock.Grant, error)) {
	t.Helper()
	each(t, 8, func(ctx context.Context, _ int) error {
		for range 10 {
			err := inTx(ctx, pool, (*sql.Tx).Rollback, func(s *txlock.Scope) error { return r.note(lock(s)) })
			expected := []error{txlock.ErrDeadlock, txlock.ErrBusy, txlock.ErrStaleSnapshot, txlock.ErrConflict}
			if err != nil && !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
				return err
			}
		}
		return nil
	})
}

func (r *risingTokens) check(t *testing.T, least int) {
	t.Helper()
	testdb.ErrorIf(t, len(r.fell) > 0, "%d of %d tokens are not higher than the one before: %v", len(r.fell), r.grants, r.fell[:min(3, len(r.fell))])
	testdb.ErrorIf(t, r.grants < least, "only %d grants", r.grants)
}

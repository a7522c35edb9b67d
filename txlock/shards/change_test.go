package shards_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/shards"
)

// TestChange changes the set while processes with the old set and with the new one lock the
// same keys: no key is held twice.
func TestChange(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd := on.process(t, "a", "b", "c"), on.process(t, "a", "b", "c", "d")
		must(t, abc.Install(t.Context()))
		keys := orders.Keys(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
		var held, grants [16]atomic.Int64 // by key
		var refused atomic.Int64
		ctx, stop := context.WithCancel(within(t))
		var workers sync.WaitGroup
		work := func(s *shards.Shards) {
			for ctx.Err() == nil {
				i := rand.IntN(len(keys))
				db, err := s.For(ctx, keys[i])
				if errors.Is(err, shards.ErrMoving) || errors.Is(err, shards.ErrSet) {
					refused.Add(1)
					continue
				}
				if err == nil {
					err = locksqlc.Run(ctx, db, []txlock.Key{keys[i]}, func(*sql.Tx) error {
						if held[i].Add(1) > 1 {
							t.Errorf("%s is held twice", keys[i])
						}
						time.Sleep(time.Millisecond)
						held[i].Add(-1)
						grants[i].Add(1)
						return nil
					})
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", keys[i], err)
				}
			}
		}
		for range 2 {
			workers.Go(func() { work(abc) })
			workers.Go(func() { work(abcd) })
		}
		must(t, shards.Begin(ctx, on.process(t, "a", "b", "c").LookAgain(look), on.process(t, "a", "b", "c", "d")))
		moved, stayed := some(t, abc, abcd, "a", "d"), some(t, abc, abcd, "b", "b")
		for _, s := range []*shards.Shards{abc, abcd} {
			wants(t, "For a key that moves", second(s.For(ctx, moved)), shards.ErrMoving)
			on.granted(t, s, stayed)
		}
		must(t, shards.Finish(ctx, abc, abcd))
		on.granted(t, abcd, keys...)
		for _, key := range keys {
			if abc.Name(key) == abcd.Name(key) {
				continue
			}
			wants(t, "Confirm with the old set", abc.Confirm(ctx, key), shards.ErrSet)
		}
		stop()
		workers.Wait()
		if refused.Load() == 0 {
			t.Error("nothing was refused during the change")
		}
		for i := range grants {
			if grants[i].Load() == 0 {
				t.Errorf("nobody was granted %s", keys[i])
			}
		}
		wants(t, "Install of the old set", abc.Install(t.Context()), shards.ErrSet)
		must(t, abcd.Install(t.Context()))
	})
}

// TestBeginWaits makes sure that Begin doesn't return before who holds a key that moves.
func TestBeginWaits(t *testing.T) {
	hashed := txlock.NewFamily[int]("hashed", txlock.Hashed())
	onServers(t, func(t *testing.T, on site) {
		abc, abcd, key, pool := on.moving(t)
		on["a"].Exec(t, "INSERT INTO lockstep_centers VALUES (7, 0, '-', 0, 0)")
		operator := on.operator(t)
		slot := 1
		for ; hashed.Key(slot).Slot() != 7 || abc.Name(hashed.Key(slot)) != "a"; slot++ {
		}
		begin := func(use func(tx *sql.Tx) error) func() {
			tx, err := pool.BeginTx(t.Context(), nil)
			must(t, err)
			must(t, use(tx))
			return func() { must(t, tx.Commit()) }
		}
		inTx := func(use func(scope *txlock.Scope) error) func() {
			return begin(func(tx *sql.Tx) error {
				scope, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					return err
				}
				return use(scope)
			})
		}
		for what, hold := range map[string]func() func(){
			"a lock":        func() func() { return inTx(func(s *txlock.Scope) error { return second(s.Lock(t.Context(), key)) }) },
			"a shared lock": func() func() { return inTx(func(s *txlock.Scope) error { return second(s.RLock(t.Context(), key)) }) },
			"a hashed lock": func() func() {
				return inTx(func(s *txlock.Scope) error { return second(s.Lock(t.Context(), hashed.Key(slot))) })
			},
			"once":    func() func() { return inTx(func(s *txlock.Scope) error { return second(s.Once(t.Context(), key)) }) },
			"a guard": func() func() { return inTx(func(s *txlock.Scope) error { return abc.Guard(t.Context(), s, key) }) },
			"a lease": func() func() {
				m, err := lease.NewManager(pool)
				must(t, err)
				l, err := m.Acquire(t.Context(), key)
				must(t, err)
				must(t, abc.Confirm(t.Context(), key))
				return func() { must(t, errors.Join(l.Release(t.Context()), m.Close(t.Context()))) }
			},
			"a lease of a transaction": func() func() {
				m, err := lease.NewManager(pool)
				must(t, err)
				commit := begin(func(tx *sql.Tx) error { return second(m.AcquireTx(t.Context(), tx, key)) })
				return func() {
					commit()
					must(t, m.Close(t.Context()))
				}
			},
			"a guard of a lease that is over": func() func() {
				m, err := lease.NewManager(pool, lease.TTL(time.Second))
				must(t, err)
				l, err := m.Acquire(t.Context(), key)
				must(t, err)
				commit := begin(func(tx *sql.Tx) error { return l.Guard(t.Context(), tx) })
				<-l.Done()
				return func() {
					commit()
					must(t, m.Close(t.Context()))
				}
			},
			"a tick": func() func() {
				begun, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				go func() {
					done <- second(job.TickTx(t.Context(), pool, key, time.Now(), func(context.Context, *sql.Tx, time.Time) error {
						close(begun)
						<-end
						return nil
					}))
				}()
				<-begun
				return func() {
					close(end)
					must(t, <-done)
				}
			},
		} {
			end := hold()
			limited, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			wants(t, "Begin while there is "+what, shards.Begin(limited, operator, abcd), context.DeadlineExceeded)
			cancel()
			wants(t, "Finish while there is "+what, shards.Finish(t.Context(), abc, abcd), shards.ErrSet)
			end()
			must(t, shards.Begin(within(t), operator, abcd))
			must(t, shards.Finish(t.Context(), abcd, abc)) // back
		}
		on.granted(t, abc, key)
	})
}

// TestBeginSeesLeasesOfTransactions commits a lease while Begin waits for its transaction.
func TestBeginSeesLeasesOfTransactions(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		_, abcd, key, pool := on.moving(t)
		m, err := lease.NewManager(pool)
		must(t, err)
		tx, err := pool.BeginTx(t.Context(), nil)
		must(t, err)
		must(t, second(m.AcquireTx(t.Context(), tx, key)))
		operator, began := on.operator(t), make(chan error, 1)
		go func() { began <- shards.Begin(within(t), operator, abcd) }()
		on["a"].WaitForStatement(t, "LOCK TABLES lockstep_leases")
		must(t, tx.Commit())
		select {
		case err := <-began:
			t.Errorf("Begin, while a lease is held that was acquired in a transaction: %v", err)
		case <-time.After(2 * time.Second):
		}
		must(t, m.Close(t.Context()))
		must(t, <-began)
	})
}

// TestBegunAnew takes a change back and begins it anew while Begin waits.
func TestBegunAnew(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd, key, pool := on.moving(t)
		tx, err := pool.BeginTx(t.Context(), nil)
		must(t, err)
		scope, err := locksqlc.Join(t.Context(), tx)
		must(t, err)
		must(t, second(scope.Lock(t.Context(), key)))
		operator, began := on.operator(t), make(chan error, 1)
		go func() { began <- shards.Begin(within(t), operator, abcd) }()
		on["a"].WaitForStatement(t, "LOCK TABLES")
		must(t, shards.Finish(t.Context(), abcd, abc))
		limited, cancel := context.WithTimeout(t.Context(), time.Second)
		wants(t, "the second Begin", shards.Begin(limited, operator, abcd), context.DeadlineExceeded)
		cancel()
		must(t, tx.Commit())
		wants(t, "the first Begin", <-began, shards.ErrSet)
		wants(t, "Finish after it", shards.Finish(t.Context(), abc, abcd), shards.ErrSet)
		must(t, shards.Begin(within(t), operator, abcd))
		must(t, shards.Finish(t.Context(), abc, abcd))
		on.granted(t, abcd, key)
	})
}

// TestRowsMove moves what a database knows of a key with it.
func TestRowsMove(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd, key, _ := on.moving(t)
		at := time.Now().Truncate(time.Second)
		use := func(s *shards.Shards) (once, tick bool, save error) {
			db, err := s.For(t.Context(), key)
			must(t, err)
			tick, err = job.TickTx(t.Context(), db, key, at, func(context.Context, *sql.Tx, time.Time) error { return nil })
			must(t, err)
			once, err = locksqlc.Once(t.Context(), db, key, func(*sql.Tx) error { return nil })
			must(t, err)
			return once, tick, locksqlc.Run(t.Context(), db, nil, func(tx *sql.Tx) error {
				scope, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					return err
				}
				return scope.CompareAndBump(t.Context(), key, 0)
			})
		}
		once, tick, save := use(abc)
		if !once || !tick || save != nil {
			t.Errorf("at first: once %t, tick %t, save %v", once, tick, save)
		}
		must(t, shards.Begin(within(t), on.operator(t), abcd))
		for _, table := range []string{"lockstep_once", "lockstep_jobs", "lockstep_locks"} {
			move := fmt.Sprintf("INSERT INTO `%s`.%s SELECT * FROM `%s`.%[2]s WHERE name = ?", on["d"].Name(), table, on["a"].Name())
			moved, err := on["d"].Admin().ExecContext(t.Context(), move, key.String())
			must(t, err)
			if n, err := moved.RowsAffected(); n != 1 || err != nil {
				t.Errorf("%d rows of %s were moved, %v", n, table, err)
			}
		}
		must(t, shards.Finish(t.Context(), abc, abcd))
		once, tick, save = use(abcd)
		if once || tick || !errors.Is(save, txlock.ErrConflict) {
			t.Errorf("after the move: once %t, tick %t, save %v", once, tick, save)
		}
	})
}

// TestLateLock has a process that stands still between For and its lock, or in Acquire.
func TestLateLock(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd := on.process(t, "a", "b", "c"), on.process(t, "a", "b", "c", "d")
		must(t, abc.Install(t.Context()))
		moved, stayed := some(t, abc, abcd, "a", "d"), some(t, abc, abcd, "a", "a")
		old, err := abc.For(t.Context(), moved)
		must(t, err)
		must(t, shards.Begin(within(t), abc, abcd))
		guarded := func(key txlock.Key) error {
			return locksqlc.Run(t.Context(), old, []txlock.Key{key}, func(tx *sql.Tx) error {
				scope, err := locksqlc.Join(t.Context(), tx)
				if err != nil {
					return err
				}
				return abc.Guard(t.Context(), scope, key)
			})
		}
		wants(t, "Guard of a key that moves", guarded(moved), shards.ErrMoving)
		wants(t, "Guard of another key", guarded(stayed), nil)
		wants(t, "Confirm of a key that moves", abc.Confirm(t.Context(), moved), shards.ErrMoving)
		wants(t, "Confirm of another key", abc.Confirm(t.Context(), stayed), nil)
		must(t, shards.Finish(t.Context(), abc, abcd))
		wants(t, "Guard with the old set", guarded(stayed), shards.ErrSet)
		on.granted(t, abcd, moved, stayed)
	})
}

// TestConfirmReads proves that Confirm doesn't rely on what For has read before.
func TestConfirmReads(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd := on.process(t, "a", "b", "c").LookAgain(time.Hour), on.process(t, "a", "b", "c", "d")
		must(t, abc.Install(t.Context()))
		moved, stayed := some(t, abc, abcd, "a", "d"), some(t, abc, abcd, "a", "a")
		must(t, second(abc.For(t.Context(), moved)))
		on["a"].Exec(t, "UPDATE lockstep_once SET result = 'a,b,c -> a,b,c,d' WHERE name = 'lockstep:shard:a'")
		wants(t, "For within its time", second(abc.For(t.Context(), moved)), nil)
		wants(t, "Confirm of a key that moves", abc.Confirm(t.Context(), moved), shards.ErrMoving)
		wants(t, "Confirm of another key", abc.Confirm(t.Context(), stayed), nil)
		wants(t, "For after Confirm", second(abc.For(t.Context(), moved)), shards.ErrMoving)
	})
}

// TestRecordOfSomebodyElse proves that a record isn't written where somebody else has written
// another one since it was read, and that who wants the same comes to it, too.
func TestRecordOfSomebodyElse(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc := on.process(t, "a", "b", "c", "d")
		const installing, old, more, less = "- -> a,b,c", "a,b,c", "a,b,c -> a,b,c,d", "a,b,c -> a,b"
		read := func() func(text string) error {
			replace, err := abc.Read(t.Context(), "a")
			must(t, err)
			return replace
		}
		for _, next := range []string{installing, old, more} {
			replace := read()
			must(t, replace(next))
			wants(t, "another record before "+next, replace(less), shards.ErrSet)
			wants(t, "the same record before "+next, replace(next), nil)
		}
		early := read()
		must(t, read()(old))
		must(t, read()(more))
		wants(t, "a record that was changed back", early("a,b,c => a,b,c,d"), shards.ErrSet)
		if got := on.records(t); got != "a: "+more+"; b: ; c: ; d: " {
			t.Errorf("the records are %s", got)
		}
	})
}

// TestInterrupted ends Begin and Finish in the middle, and does them again, or takes them back.
func TestInterrupted(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd := on.process(t, "a", "b", "c"), on.process(t, "a", "b", "c", "d")
		bcd := on.process(t, "b", "c", "d")
		record := func(names, text string) {
			for _, name := range names {
				on[string(name)].Exec(t, "REPLACE INTO lockstep_once VALUES ('lockstep:shard:"+string(name)+"', '-', '"+text+"', 1, 4611686018427387904)")
			}
		}
		const old, moving, drained, next = "a,b,c", "a,b,c -> a,b,c,d", "a,b,c => a,b,c,d", "a,b,c,d"
		const isOld, isNext = "a: a,b,c; b: a,b,c; c: a,b,c; d: a,b,c", "a: a,b,c,d; b: a,b,c,d; c: a,b,c,d; d: a,b,c,d"
		is := func(what, want string) {
			t.Helper()
			if got := on.records(t); got != want {
				t.Errorf("%s: the records are %s", what, got)
			}
		}
		for _, part := range []string{"a", "ab", "abcd"} { // names in the order of writing
			record("abcd", old)
			record(part, moving)
			wants(t, "Finish before the end of Begin", shards.Finish(t.Context(), abc, abcd), shards.ErrSet)
			wants(t, "Begin of another change", shards.Begin(within(t), abc, bcd), shards.ErrSet)
			must(t, shards.Finish(t.Context(), abcd, abc))
			is("taken back", isOld)

			record(part, moving)
			must(t, shards.Begin(within(t), abc, abcd))
			must(t, shards.Finish(t.Context(), abc, abcd))
			is("done", isNext)

			record("abcd", moving)
			record(part, drained)
			if part != "abcd" {
				wants(t, "Finish before the end of Begin", shards.Finish(t.Context(), abc, abcd), shards.ErrSet)
			}
			must(t, shards.Begin(within(t), abc, abcd))
			is("begun", "a: "+drained+"; b: "+drained+"; c: "+drained+"; d: "+drained)

			record(part, next)
			if part != "abcd" {
				wants(t, "Begin after Finish has begun", shards.Begin(within(t), abc, abcd), shards.ErrSet)
				wants(t, "back after Finish has begun", shards.Finish(t.Context(), abcd, abc), shards.ErrSet)
			}
			must(t, shards.Finish(t.Context(), abc, abcd))
			is("finished", isNext)
		}
		wants(t, "Begin with a set that isn't recorded", shards.Begin(within(t), abc, abcd), shards.ErrSet)
	})
}

// TestRemove takes shards out of the set: one that goes on to work, and one that is lost.
func TestRemove(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abcd, abc := on.process(t, "a", "b", "c", "d"), on.process(t, "a", "b", "c")
		must(t, abcd.Install(t.Context()))
		must(t, shards.Begin(within(t), abcd, abc))
		must(t, shards.Finish(t.Context(), abcd, abc))
		key := some(t, abcd, abc, "d", "a")
		wants(t, "For in the shard that was removed", second(abcd.For(t.Context(), key)), shards.ErrSet)
		on.granted(t, abc, key)

		on["c"].Exec(t, "DROP TABLE lockstep_once")
		ab := on.process(t, "a", "b")
		wants(t, "Begin without a database", shards.Begin(within(t), abc, ab), txlock.ErrSchema)
		must(t, shards.Begin(within(t), abc, ab, "c"))
		must(t, shards.Finish(t.Context(), abc, ab, "c"))
		on.granted(t, ab, orders.Keys(1, 2, 3, 4, 5, 6)...)
	})
}

// TestBeginPrivilege has a user who may not lock tables.
func TestBeginPrivilege(t *testing.T) {
	onServers(t, func(t *testing.T, on site) {
		abc, abcd := on.process(t, "a", "b", "c"), on.process(t, "a", "b", "c", "d")
		must(t, abc.Install(t.Context()))
		for _, host := range []string{"%", "localhost"} {
			on["b"].Exec(t, "REVOKE LOCK TABLES ON `"+on["b"].Name()+"`.* FROM '"+on["b"].Config().User+"'@'"+host+"'")
		}
		wants(t, "Begin", shards.Begin(within(t), abc, abcd), txlock.ErrPrivilege)
		must(t, shards.Finish(t.Context(), abcd, abc))
	})
}

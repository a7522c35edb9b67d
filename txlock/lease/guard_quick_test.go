package lease_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestGuardRenewsFirst proves that Guard extends a lease of which less than two thirds are
// left, since nothing can while the transaction is open, and says nothing of what becomes
// of that.
func TestGuardRenewsFirst(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		wire.fault("RenewMany", fails)
		l := acquire(t, m, job)
		guard := func() {
			tx := wire.guarding(t, l)
			must(t, tx.Commit())
		}
		// Never in the moment of a renewal that fails, each second from 10 s and from 22.5 s.
		const first, second = 12500 * time.Millisecond, 25200 * time.Millisecond
		for _, in := range []time.Duration{5 * time.Second, first, 20 * time.Second, second} {
			db.after(in)
			if in == second {
				wire.fault("Renew", hangs) // for half of what is left at most
			}
			guard()
		}
		sent := wire.times("Renew")
		testdb.ErrorIf(t, !slices.Equal(sent, []time.Duration{first, second}), "Renew was sent at %v, want %v and %v", sent, first, second)
		took := time.Since(db.begun) - second
		testdb.ErrorIf(t, took < 5*time.Second || took > 15*time.Second, "Guard took %v", took)
		release(t, l)
	})
}

// TestGuardOfALostLease proves that nothing is committed under a lease that is lost, known
// or not.
func TestGuardOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		operator := db.manager()
		l := acquire(t, m, job)
		must(t, operator.ForceRelease(t.Context(), job))
		must(t, l.Err()) // nobody has told it
		tx := wire.Begin()
		wants(t, "Guard", l.Guard(t.Context(), tx), txlock.ErrLost)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		must(t, tx.Rollback())

		l = acquire(t, m, job)
		release(t, l)
		tx = wire.Begin()
		wants(t, "Guard after Release", l.Guard(t.Context(), tx), txlock.ErrNotHeld)
		must(t, tx.Rollback())

		tx = wire.Begin()
		tx.Read()
		l = acquire(t, m, job)
		wants(t, "Guard with an old snapshot", l.Guard(t.Context(), tx), txlock.ErrStaleSnapshot)
		must(t, tx.Rollback())
		must(t, l.Err())
		release(t, l)
	})
}

// TestGuardedLeaseIsRenewed proves that a lease is renewed which transactions guard one
// after the other, and lost where one of them is open for too long.
func TestGuardedLeaseIsRenewed(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.TTL(3 * time.Second))
		l := acquire(t, m, job)
		for range 10 {
			tx := wire.guarding(t, l)
			next := wire.Begin()
			guarded := later(func() error { return l.Guard(t.Context(), next) }) // without a gap
			time.Sleep(1700 * time.Millisecond)
			must(t, tx.Commit())
			must(t, <-guarded)
			must(t, next.Commit())
		}
		must(t, l.Err())
		tx := wire.guarding(t, l)
		<-l.Done()
		wants(t, "Err", l.Err(), txlock.ErrLost)
		must(t, tx.Commit()) // nobody else has wanted it
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestBlockerIsEnded proves that a transaction which guards a lease that is over is rolled
// back when the grace is over too, where somebody wants it in any way, and not before.
func TestBlockerIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		take    func(wire *wire) verb
		options []lease.AcquireOption
		grace   time.Duration
	}{
		"Acquire":        {func(*wire) verb { return exclusive }, nil, 5 * time.Second},
		"Acquire fairly": {func(*wire) verb { return fairly }, nil, 5 * time.Second},
		"a longer grace": {func(*wire) verb { return exclusive }, []lease.AcquireOption{lease.GuardGrace(time.Minute)}, time.Minute},
		"TryAcquire":     {func(*wire) verb { return tryExclusive.untilFree }, nil, 5 * time.Second},
		"AcquireTx":      {func(w *wire) verb { return w.commits().untilFree }, nil, 5 * time.Second},
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			a, wire := db.process(lease.TTL(3 * time.Second))
			l := acquire(t, a, job)
			tx := wire.guarding(t, l)
			wire.Down(nil)
			b, other := db.process()
			db.after(3*time.Second + time.Millisecond)
			_, err := b.TryAcquire(t.Context(), job)
			if wants(t, "TryAcquire", err, txlock.ErrBusy); heldBy(err) == nil || heldBy(err).Session == 0 {
				t.Errorf("%v names no session", err)
			}
			next, err := c.take(other)(limited(t, 5*time.Minute), b, job, c.options...)
			must(t, err)
			db.within("granted", 3*time.Second+c.grace, 4*time.Second+c.grace)
			wire.Up()
			wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
			wants(t, "Err", l.Err(), txlock.ErrLost)
			release(t, next)
		})
	}
}

// TestForceReleaseEnds proves that ForceRelease waits for 5 seconds for a transaction that
// guards the lease, before it is rolled back, and no longer than it needs to.
func TestForceReleaseEnds(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process(lease.TTL(time.Hour))
		operator := db.manager()
		wants(t, "nobody holds it", operator.ForceRelease(t.Context(), job), txlock.ErrNotHeld)
		l := acquire(t, m, job)
		tx := wire.guarding(t, l)
		time.AfterFunc(2*time.Second, func() { must(t, tx.Commit()) })
		must(t, operator.ForceRelease(t.Context(), job))
		db.at("after the commit", 2*time.Second)
		_ = l.Release(t.Context()) // ErrNotHeld

		l = acquire(t, m, job)
		tx = wire.guarding(t, l)
		must(t, operator.ForceRelease(t.Context(), job))
		db.within("after the grace", 7*time.Second, 7*time.Second+100*time.Millisecond)
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
		wants(t, "Renew", l.Renew(t.Context()), lease.ErrReplaced)

		l = acquire(t, m, job) // guarded for less than the grace by each, and for more by all of them
		var guards sync.WaitGroup
		commits := func(tx *memstore.Tx) {
			time.Sleep(2 * time.Second)
			wantsNone(t, "Commit", tx.Commit())
		}
		tx = wire.guarding(t, l)
		guards.Go(func() { commits(tx) })
		for range 3 {
			next := wire.Begin()
			guards.Go(func() {
				wantsNone(t, "Guard", l.Guard(t.Context(), next, txlock.NothingRead()))
				commits(next)
			})
			synctest.Wait()
		}
		must(t, operator.ForceRelease(t.Context(), job))
		guards.Wait()
		wants(t, "a slot below 0", operator.ForceRelease(t.Context(), job, -1), txlock.ErrInvalidOption)
	})
}

// TestForceReleaseWakes proves that waiters are told of a ForceRelease in their manager,
// that the next token is higher, and that readers are released with the writers.
func TestForceReleaseWakes(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		held := acquire(t, a, job)
		waiter := fairAcquire(t, b, job)
		synctest.Wait()
		must(t, b.ForceRelease(t.Context(), job))
		next := waiter.lease(t)
		higher(t, next, held)
		db.at("granted", 0)
		release(t, next)

		for range 3 {
			share(t, a, job)
		}
		must(t, b.ForceRelease(t.Context(), job))
		nothingHeld(t, a)
	})
}

// TestAcquireTxCommits proves that a lease that is acquired in a transaction is there with
// its commit, is renewed afterwards, and is nobody else's meanwhile; that its owner has one hold however
// often it acquires it; and that one whose snapshot is from before a reader can't have it.
func TestAcquireTxCommits(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		release(t, acquire(t, other, job))
		tx, me := wire.Begin(), lease.WithOwner(t.Context(), "me")
		l := mustLease(t)(m.AcquireTx(me, tx, job))
		again := mustLease(t)(m.AcquireTx(me, tx, job))
		entered(t, again, l)
		wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		nothingHeld(t, other)
		late := mustLease(t)(m.AcquireTx(lease.WithOwner(t.Context(), "other"), wire.Begin(), txlock.Named("other")))
		db.after(15 * time.Second) // a renewal finds it locked
		must(t, tx.Commit())
		time.Sleep(time.Minute)
		release(t, again)
		must(t, l.Err())
		equal(t, "holders", inspect(t, m, job).Holders, 1)
		wants(t, "one that is not committed in time", late.Err(), txlock.ErrLost)
		wants(t, "AcquireTx of what is held", second(m.AcquireTx(t.Context(), wire.Begin(), job)), txlock.ErrBusy)
		release(t, l)

		read, old := txlock.Named("read"), wire.Begin()
		release(t, share(t, other, read))
		old.Read()
		release(t, share(t, other, read))
		wants(t, "AcquireTx by an old snapshot", second(m.AcquireTx(t.Context(), old, read)), txlock.ErrStaleSnapshot)
	})
}

// TestAcquireTxRollsBack proves that a lease whose transaction was rolled back is found
// lost by its first renewal, and is not re-entered before.
func TestAcquireTxRollsBack(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		ctx := lease.WithOwner(t.Context(), "me")
		tx := wire.Begin()
		l := mustLease(t)(m.AcquireTx(ctx, tx, job))
		must(t, tx.Rollback())
		must(t, l.Err())
		<-l.Done()
		db.within("found", 10*time.Second, 10*time.Second+100*time.Millisecond)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)

		tx = wire.Begin()
		l = mustLease(t)(m.AcquireTx(ctx, tx, job))
		must(t, tx.Rollback())
		time.Sleep(time.Millisecond)       // a token is the time of its grant
		again := acquireIn(ctx, t, m, job) // the same owner
		higher(t, again, l)
		wants(t, "the handle of before", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		must(t, again.Renew(ctx))
		release(t, again)
	})
}

// TestOneCleanup proves that idle rows are removed once per interval among all managers,
// and those that are used are not.
func TestOneCleanup(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		every := lease.PurgeEvery(time.Minute, time.Hour)
		var wires []*wire
		var held []*lease.Lease
		for n := range 3 {
			m, wire := db.process(every)
			wires = append(wires, wire)
			release(t, acquire(t, m, txlock.Named("idle "+string(rune('a'+n)))))
			held = append(held, acquire(t, m, txlock.Named("used "+string(rune('a'+n))))) // its manager cleans up from now on
			time.Sleep(time.Second)
		}
		db.after(61 * time.Minute)
		cleaned := 0
		for _, wire := range wires {
			cleaned += len(wire.calls("Clean"))
		}
		testdb.ErrorIf(t, cleaned < 59 || cleaned > 61, "cleaned %d times in an hour", cleaned)
		synctest.Wait()
		for key, exists := range map[string]bool{"idle a": false, "used a": true} {
			seen, err := wires[0].Look(t.Context(), store.Row{Key: key})
			must(t, err)
			testdb.ErrorIf(t, seen.Exists != exists, "%s: %+v", key, seen)
		}
		runtime.KeepAlive(held)
	})
}

// TestCleanupEndsBeforeItsLease proves that a cleanup which is too slow for its lease ends with it,
// so that the next is not beside it, which the observer is told.
func TestCleanupEndsBeforeItsLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(answers)
		m, wire := db.process(lease.PurgeEvery(time.Minute, time.Hour), lease.Observe(told.observe))
		release(t, acquire(t, m, job))
		wire.fault("Clean", hangs)
		db.after(time.Minute + 54*time.Second)
		synctest.Wait()
		if told.refused.Key.String() != "lockstep:cleanup" || !errors.Is(told.refused.Err, context.DeadlineExceeded) {
			t.Errorf("told of %+v", told.refused)
		}
		db.after(3 * time.Minute)
		wire.seconds(t, "Clean", 60, 174)
	})
}

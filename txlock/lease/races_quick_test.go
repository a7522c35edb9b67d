package lease_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// jittered lets calls and their answers arrive after random times.
func jittered(most time.Duration) func(context.Context, string, store.Row, func() error) error {
	return func(_ context.Context, _ string, _ store.Row, call func() error) error {
		time.Sleep(rand.N(most))
		err := call()
		time.Sleep(rand.N(most))
		return err
	}
}

// TestNothingRenewedAfterRelease proves that no renewal is alive after Release, however
// often leases are renewed and however slow that is: in 1,000 rounds no expiry moves
// afterwards.
func TestNothingRenewedAfterRelease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const rounds = 1000
		m, wire := db.process(lease.RenewEvery(time.Millisecond))
		for _, op := range []string{"RenewMany", "Renew", "Queued"} {
			wire.fault(op, jittered(5*time.Millisecond))
		}
		expiry := func() time.Duration {
			seen, err := wire.Look(t.Context(), store.Row{Key: job.String()})
			must(t, err)
			return seen.Left
		}
		for n := range rounds {
			l := acquire(t, m, job)
			var all sync.WaitGroup
			if n%3 == 0 {
				all.Go(func() { _ = l.Renew(t.Context()) }) // released meanwhile
			}
			time.Sleep(rand.N(10 * time.Millisecond))
			release(t, l)
			if n%2 == 0 {
				time.Sleep(20 * time.Millisecond)
			}
			if left := expiry(); left != 0 {
				t.Fatalf("round %d: %v are left after Release", n, left)
			}
			all.Wait()
			if left := expiry(); left != 0 {
				t.Fatalf("round %d: %v are left after Renew", n, left)
			}
		}
		if n := len(wire.calls("RenewMany")); n < rounds/2 {
			t.Errorf("%d renewals are too few to prove anything", n)
		}
	})
}

// TestRetryAfterUnknownOutcome proves that what releases the grant of an attempt without
// an answer doesn't release that of the next attempt.
func TestRetryAfterUnknownOutcome(t *testing.T) {
	for name, take := range map[string]func(*lease.Manager, context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
		"exclusive": (*lease.Manager).Acquire, "shared": (*lease.Manager).AcquireShared,
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, db *memory) {
				m, wire := db.process()
				other := db.manager()
				release(t, share(t, m, job))
				held := acquire(t, other, job)
				time.AfterFunc(time.Second, func() {
					wire.fault("Take", times(2, loses))
					wire.fault("Release", slow(100*time.Millisecond)) // what releases it is under way
					release(t, held)
				})
				l, err := take(m, t.Context(), job, lease.TTL(3*time.Second))
				must(t, err)
				db.within("granted", time.Second, 3*time.Second)
				if n := len(wire.calls("Release")); n < 2 {
					t.Errorf("%d releases are too few to prove anything", n)
				}
				for range 1000 {
					time.Sleep(10 * time.Millisecond)
					if _, err := other.TryAcquire(t.Context(), job); err == nil {
						t.Fatal("two holders at once")
					}
				}
				must(t, l.Err())
				release(t, l)
				nothingHeld(t, other)
			})
		})
	}
}

// TestDrainDoesNotSpin proves that a writer that waits for a reader's guarded transaction
// sends no more than its looks.
func TestDrainDoesNotSpin(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		reading, guards := db.process()
		m, wire := db.process()
		r := share(t, reading, job, lease.TTL(3*time.Second))
		tx := guards.Begin()
		must(t, r.Guard(t.Context(), tx))
		<-r.Done()
		before := wire.total()
		wants(t, "Acquire", second(m.Acquire(t.Context(), job, lease.WaitAtMost(time.Second))), txlock.ErrWaitTimeout)
		if n := wire.total() - before; n < 50 || n > 250 {
			t.Errorf("%d statements in a second", n)
		}
		must(t, tx.Rollback())
		wants(t, "Release", r.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestWriterAmongReaders proves that a writer gets its turn among readers that come and
// go, as soon as those that were there before it have gone.
func TestWriterAmongReaders(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const reads = 100 * time.Millisecond
		ctx, stop := context.WithCancel(t.Context())
		var churn sync.WaitGroup
		var granted atomic.Int64
		for range 4 {
			m := db.manager()
			for range 8 {
				churn.Go(func() {
					for ctx.Err() == nil {
						err := m.DoShared(ctx, job, func(context.Context, *lease.Lease) error {
							granted.Add(1)
							time.Sleep(rand.N(reads))
							return nil
						})
						if err != nil && ctx.Err() == nil {
							t.Errorf("DoShared: %v", err)
						}
					}
				})
			}
		}
		m := db.manager()
		for range 8 {
			before := granted.Load()
			time.Sleep(time.Second)
			if n := granted.Load() - before; n < 32 {
				t.Errorf("%d readers in a second", n)
			}
			asked := time.Now()
			l := acquire(t, m, job)
			if waited := time.Since(asked); waited > reads+30*time.Millisecond {
				t.Errorf("a writer has waited for %v", waited)
			}
			release(t, l)
		}
		stop()
		churn.Wait()
	})
}

// TestWaitAfterClockSetBack proves that waiters get a dead holder's lease within one time
// to live of a clock that was set back by an hour, also while they wait, and that a living
// holder keeps its lease.
func TestWaitAfterClockSetBack(t *testing.T) {
	const ttl = 3 * time.Second
	for name, when := range map[string]time.Duration{"before the wait": 0, "while it waits": ttl / 2} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, db *memory) {
				m, wire := db.process(lease.TTL(ttl))
				living, other := db.manager(lease.TTL(ttl)), db.manager()
				alive := acquire(t, living, txlock.Named("alive"))
				dead := acquire(t, m, job)
				wire.Down(nil)
				defer wire.Up()
				time.AfterFunc(when, func() { db.SetClock(-time.Hour) })
				if when == 0 {
					time.Sleep(time.Millisecond)
				}
				l := acquire(t, other, job)
				db.within("granted", ttl, when+ttl+500*time.Millisecond)
				higher(t, l, dead)
				_, err := other.Acquire(t.Context(), alive.Key(), lease.WaitAtMost(2*ttl))
				wants(t, "Acquire of a living holder's lease", err, txlock.ErrWaitTimeout)
				must(t, alive.Err())
				if info, err := other.Inspect(t.Context(), alive.Key()); err != nil || info.Remaining > ttl {
					t.Errorf("the living holder's lease: %+v, %v", info, err)
				}
				release(t, l)
				release(t, alive)
			})
		})
	}
}

// TestStoppedProcessRenewsTheOthers proves that a process which was stopped for longer than
// one of its leases lives loses that one, and renews the others.
func TestStoppedProcessRenewsTheOthers(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		short := acquire(t, m, txlock.Named("short"), lease.TTL(3*time.Second))
		long := acquire(t, m, txlock.Named("long"), lease.TTL(time.Minute))
		db.Skip(20 * time.Second) // the timers don't know
		time.Sleep(time.Minute)
		wants(t, "the short one", short.Err(), txlock.ErrLost)
		must(t, long.Err())
		release(t, long)
	})
}

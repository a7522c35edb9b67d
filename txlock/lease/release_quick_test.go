package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReleaseWithoutAnswer proves that Release is sent where the context has ended before; that it
// asks again where it had no answer, and that nobody minds that the first was executed; and that it
// gives up after 5 seconds, or with its context, after which it goes on in the background.
func TestReleaseWithoutAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		must(t, acquire(t, m, job).Release(ended(t)))
		nothingHeld(t, m)

		l := acquire(t, m, job)
		wire.fault("Release", hangs)
		wants(t, "Release", l.Release(limited(t, time.Second)), context.DeadlineExceeded)
		db.at("the end of the call", time.Second)
		wire.Up()
		time.Sleep(ttl + time.Second)
		nothingHeld(t, m)

		l, wire.all = acquire(t, m, job), nil
		wire.fault("Release", times(1, loses))
		release(t, l)
		wire.sends(t, "Release", 2)
		nothingHeld(t, m)

		l = acquire(t, m, job)
		wire.fault("Release", fails)
		begun := time.Since(db.begun)
		if err := l.Release(t.Context()); err == nil || errors.Is(err, txlock.ErrNotHeld) ||
			!strings.HasSuffix(err.Error(), ": the server has not answered for 5s, and the release continues in the background") {
			t.Errorf("Release of who is cut off: %v", err)
		}
		db.at("the end of the call", begun+5*time.Second)
		wire.Up()
		time.Sleep(2 * time.Second)
		nothingHeld(t, m)
	})
}

// TestReleaseDuringRenewal proves that a release waits for the renewal that is under way,
// so that this doesn't come after it.
func TestReleaseDuringRenewal(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("RenewMany", slow(2*time.Second))
		db.after(11 * time.Second)
		release(t, l)
		db.at("released", 12*time.Second)
		wire.seconds(t, "RenewMany", 10)
		wire.seconds(t, "Release", 12)
		nothingHeld(t, m)

		l = acquire(t, m, job)
		wire.fault("Renew", hangs) // the program's own is interrupted
		renewed := later(func() error { return l.Renew(t.Context()) })
		synctest.Wait()
		release(t, l)
		db.at("released", 12*time.Second)
		wants(t, "Renew", <-renewed, txlock.ErrNotHeld)
		time.Sleep(time.Hour)
		wire.seconds(t, "RenewMany", 10)
	})
}

// TestCloseEndsAll proves that Close tells those who wait, whatever for.
func TestCloseEndsAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		var all sync.WaitGroup
		for name, wait := range waitsWithoutLimit {
			key, hold := txlock.Named(name), exclusive
			if strings.HasSuffix(name, "a permit") {
				hold = permitOf
			}
			must(t, second(hold(t.Context(), other, key)))
			all.Go(func() { wants(t, name, wait(t.Context(), m, key), lease.ErrClosed) })
		}
		time.Sleep(time.Second)
		must(t, m.Close(t.Context()))
		all.Wait()
		db.at("all", time.Second)
	})
}

// count is how often an observer was told of a kind.
func (r *recorder) count(what string) (n int) {
	for _, e := range r.all() {
		if e.what == what {
			n++
		}
	}
	return n
}

// collect lets garbage be collected and renewals pass, until an observer was told so often
// of dropped handles. The cleanups run beside the bubble, in real time.
func (r *recorder) collect(t *testing.T, want int) {
	t.Helper()
	for deadline := 10_000; r.count("dropped") < want; deadline-- {
		testdb.FatalIf(t, deadline == 0, "%d handles are dropped, want %d", r.count("dropped"), want)
		runtime.GC()
		time.Sleep(ttl / 3)
	}
}

// passes lets garbage be collected and renewals pass: what would be dropped would be
// noticed. Another handle is dropped meanwhile, so that the cleanups have run.
func (r *recorder) passes(t *testing.T, m *lease.Manager) {
	t.Helper()
	for range 3 {
		drop(t, m, named())
		r.collect(t, r.count("dropped")+1)
	}
}

// drop acquires a lease and drops the handle.
//
//go:noinline
func drop(t *testing.T, m *lease.Manager, key txlock.Key) { acquire(t, m, key) }

// TestDroppedAmongOthers proves that a handle that is garbage is noticed; that a lease goes on while it has
// another handle, that one whose handles were dropped can be entered again, is not renewed, and is others' after
// its TTL, and that Close releases one.
func TestDroppedAmongOthers(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(recorder)
		m := db.manager(lease.Observe(told.observe))
		ctx := lease.WithOwner(t.Context(), "owner")
		first := acquireIn(ctx, t, m, job)
		token := first.Token()
		acquireIn(ctx, t, m, job)
		told.collect(t, 1)
		time.Sleep(2 * ttl)
		must(t, first.Err())
		told.collect(t, 2) // nobody uses the first any more, either
		again := acquireIn(ctx, t, m, job)
		time.Sleep(2 * ttl)
		must(t, again.Err())
		equal(t, "token", again.Token(), token)
		release(t, again)
		next := acquire(t, db.manager(), job, lease.WaitAtMost(time.Second))
		release(t, next)

		drop(t, m, job)
		told.collect(t, 3)
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(ttl+time.Second)))
		time.Sleep(ttl)
		equal(t, "told that it is lost", told.count("lost"), 1)
		share(t, m, job)
		told.collect(t, 4)
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(2*ttl)))

		drop(t, m, job)
		told.collect(t, 5)
		must(t, m.Close(t.Context()))
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(time.Second)))
	})
}

// TestNotDropped proves what counts as used: a handle inside of Do, one whose context is
// open, one whose channel is waited for; and that one which was released or lost is not
// reported.
func TestNotDropped(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told, strangers := new(recorder), new(recorder)
		m, other := db.manager(lease.Observe(told.observe)), db.manager(lease.Observe(strangers.observe))
		must(t, m.Do(t.Context(), job, func(ctx context.Context, _ *lease.Lease) error {
			strangers.passes(t, other)
			return ctx.Err()
		}))
		release(t, acquire(t, m, job))
		lost := acquire(t, m, job)
		must(t, other.ForceRelease(t.Context(), job))
		<-lost.Done()
		working, stop := acquire(t, m, job).Context(t.Context())
		done := acquire(t, m, txlock.Named("done")).Done()
		asked := acquire(t, m, txlock.Named("asked")).ReleaseRequested()
		strangers.passes(t, other)
		must(t, working.Err())
		must(t, m.RequestRelease(t.Context(), txlock.Named("asked"), ""))
		<-asked
		must(t, other.ForceRelease(t.Context(), txlock.Named("done")))
		<-done
		n := told.count("dropped")
		testdb.ErrorIf(t, n > 0, "%d handles are dropped: %v", n, told.all())
		stop()
		told.collect(t, 1) // whose context is over now
	})
}

// TestHoldAtLeast proves that a lease which is released early stays held until its time is
// over, shorter or longer than its TTL, for everybody, and is not renewed; that who waits
// gets it then and not earlier; and that one which is released late is free at once.
func TestHoldAtLeast(t *testing.T) {
	for _, atLeast := range []time.Duration{5 * time.Second, 10 * time.Minute} {
		for name, others := range map[string]bool{"in the same process": false, "in another one": true} {
			runInMemory(t, fmt.Sprintf("%v/%s", atLeast, name), func(t *testing.T, db *memory) {
				m, wire := db.process()
				waits := m
				if others {
					waits = db.manager()
				}
				ctx := lease.WithOwner(t.Context(), "ann")
				must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error {
					time.Sleep(time.Second)
					return nil
				}, lease.HoldAtLeast(atLeast)))
				db.at("done", time.Second)
				for _, by := range []*lease.Manager{m, waits} {
					for _, ctx := range []context.Context{ctx, t.Context()} { // the same owner, too
						wants(t, "TryAcquire", second(by.TryAcquire(ctx, job)), txlock.ErrBusy)
					}
				}
				all := list(t, m)
				if len(all) != 1 || !all[0].Held || all[0].Remaining != atLeast-time.Second || all[0].Owner != store.Released+"ann" {
					t.Errorf("List: %+v", all)
				}
				tries := len(wire.calls("Take"))
				next := acquire(t, waits, job, lease.HoldAtLeast(atLeast))
				db.within("free", atLeast, atLeast+500*time.Millisecond)
				n := len(wire.calls("Take"))
				testdb.ErrorIf(t, !others && n > tries+2, "who waits has tried %d times", n-tries)
				time.Sleep(atLeast)
				release(t, next)
				nothingHeld(t, m)
				n = len(wire.calls("RenewMany"))
				testdb.ErrorIf(t, atLeast < 10*time.Second && n > 0, "renewed %d times", n)
			})
		}
	}
}

// TestTermsCountFromTheGrant proves that HoldAtLeast and MaxLifetime of a writer that has waited for a reader
// count from when it has the lease.
func TestTermsCountFromTheGrant(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const waits, term = 20 * time.Second, 30 * time.Second
		a, b := db.manager(), db.manager(lease.TTL(term))
		write := func(option lease.AcquireOption) *lease.Lease {
			reader := share(t, a, job)
			time.AfterFunc(waits, func() { _ = reader.Release(context.Background()) })
			return acquire(t, b, job, option)
		}
		l := write(lease.MaxLifetime(term))
		time.Sleep(term - time.Second)
		wantsNone(t, "within its lifetime", l.Err())
		time.Sleep(2 * time.Second)
		wants(t, "after it", l.Err(), txlock.ErrLost)
		time.Sleep(term)

		begun := time.Since(db.begun)
		release(t, write(lease.HoldAtLeast(term)))
		release(t, acquire(t, a, job))
		db.within("free", begun+waits+term, begun+waits+term+time.Second)
	})
}

// TestHoldAtLeastEntered proves that the last release of an owner that has entered again
// counts, with the longest time, from the first grant on.
func TestHoldAtLeastEntered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		outer := acquire(t, m, job, lease.HoldAtLeast(time.Minute))
		ctx := contextOf(t, outer)
		time.Sleep(time.Second)
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(time.Hour)))
		must(t, outer.Err())
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(2*time.Second)))
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }))
		release(t, outer)
		must(t, acquire(t, db.manager(), job).Release(t.Context()))
		db.within("free", time.Hour, time.Hour+500*time.Millisecond)

		// By two managers, that of the last release.
		begun := time.Since(db.begun)
		ctx = lease.WithOwner(t.Context(), "ann")
		second := db.manager()
		held := acquireIn(ctx, t, second, job, lease.HoldAtLeast(time.Hour))
		again := acquireIn(ctx, t, m, job, lease.HoldAtLeast(time.Minute))
		release(t, held)
		must(t, again.Renew(t.Context()))
		release(t, again)
		release(t, acquire(t, second, job))
		db.within("free", begun+time.Minute, begun+time.Minute+500*time.Millisecond)
	})
}

// TestHoldAtLeastOfALostLease proves that a lease which is lost is free when its TTL is
// over, that of nobody else is kept, nor one of an Acquire that fails; and that ForceRelease frees one that is kept.
func TestHoldAtLeastOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		l := acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		must(t, other.ForceRelease(t.Context(), job))
		next := acquire(t, other, job)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		must(t, next.Renew(t.Context()))
		release(t, next)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		wire.fault("RenewMany", fails)
		<-l.Done()
		wire.Up()
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, m)

		wire.fault("Take", answersLate(5*time.Second))
		wants(t, "Acquire", second(m.Acquire(limited(t, time.Second), job, lease.HoldAtLeast(time.Hour))), context.DeadlineExceeded)
		wire.Up()
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.MaxLifetime(time.Minute), lease.HoldAtLeast(time.Hour))
		<-l.Done() // before its row has expired
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		release(t, l)
		must(t, other.ForceRelease(t.Context(), job))
		next = acquire(t, other, job)
		higher(t, next, l)
		release(t, next)
		nothingHeld(t, m)
	})
}

// TestClockOfTheServerJumps proves that an Acquire is granted where the server's clock has jumped
// forward, and that a lease which is over by that clock is found lost.
func TestClockOfTheServerJumps(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		db.SetClock(time.Hour) // the statement is too late, and sent again
		release(t, acquire(t, m, txlock.Named("forward")))
		wire.sends(t, "ReadClock", 2)
		other := acquire(t, db.manager(), job)
		higher(t, other, l)
		<-l.Done()
		db.at("lost", 10*time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		release(t, other)
	})
}

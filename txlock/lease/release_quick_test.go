package lease_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// TestCloseEndsAll proves that Close tells the holders and those who wait, and releases
// all, and that a manager that is closed refuses all.
func TestCloseEndsAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other, wire := db.process()
		held, guarded, tx := acquire(t, other, txlock.Named("held")), acquire(t, other, txlock.Named("guarded")), wire.Begin()
		must(t, guarded.Guard(t.Context(), tx))
		m, mute := db.process()
		s, of := semaphore(t, m, txlock.Named("permits"), 1), semaphore(t, other, txlock.Named("of others"), 2)
		permits := []*lease.Lease{permit(t, of), permit(t, of)}
		of = semaphore(t, m, txlock.Named("of others"), 2)
		mine := []*lease.Lease{acquire(t, m, job), share(t, m, txlock.Named("shared")), permit(t, s)}
		ways := map[string]func() error{
			"first":  func() error { return second(m.Acquire(t.Context(), held.Key())) },
			"second": func() error { return second(m.Acquire(t.Context(), held.Key())) },
			"fair":   func() error { return second(m.Acquire(t.Context(), held.Key(), lease.Fair())) },
			"shared": func() error { return second(m.AcquireShared(t.Context(), held.Key())) },
			"permit": func() error { return second(s.Acquire(t.Context())) },
			"writer": func() error { return second(m.Acquire(t.Context(), txlock.Named("shared"))) },
			"resize": func() error { return second(of.Resize(t.Context(), 1)) },
			"force":  func() error { return m.ForceRelease(t.Context(), guarded.Key()) },
		}
		working := contextOf(t, mine[0])
		var all sync.WaitGroup
		for name, wait := range ways {
			all.Go(func() { wants(t, name, wait(), lease.ErrClosed) })
		}
		time.Sleep(time.Second / 2)
		mute.fault("Permits", hangs)
		time.Sleep(time.Second / 2)
		must(t, m.Close(t.Context()))
		all.Wait()
		db.at("all", time.Second)
		wants(t, "the cause of the context", context.Cause(working), txlock.ErrNotHeld)
		for _, l := range mine {
			wants(t, "a lease of a manager that was closed", l.Err(), txlock.ErrNotHeld)
			must(t, l.Release(t.Context()))
		}
		for name, wait := range ways {
			wants(t, name+", later", wait(), lease.ErrClosed)
		}
		must(t, m.Close(t.Context()))
		must(t, tx.Commit())
		releaseMany(t, append(permits, held, guarded))
		nothingHeld(t, other)
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
		if deadline == 0 {
			t.Fatalf("%d handles are dropped, want %d", r.count("dropped"), want)
		}
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

// TestDroppedHandle proves that a handle that is garbage is noticed: the observer is told,
// the lease isn't renewed any more, and others have it after its TTL.
func TestDroppedHandle(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(recorder)
		m, wire := db.process(lease.Observe(told.observe))
		drop(t, m, job)
		told.collect(t, 1)
		renewals := len(wire.calls("RenewMany"))
		dropped := time.Now()
		next := acquire(t, db.manager(), job, lease.WaitAtMost(ttl+time.Second))
		if waited := time.Since(dropped); waited < ttl/4 {
			t.Errorf("it was free after %v", waited)
		}
		time.Sleep(ttl)
		if n := len(wire.calls("RenewMany")) - renewals; n > 0 {
			t.Errorf("%d renewals of a dropped lease", n)
		}
		for what, want := range map[string]int{"granted": 1, "dropped": 1, "lost": 1, "released": 0} {
			if n := told.count(what); n != want {
				t.Errorf("%d are %s, want %d", n, what, want)
			}
		}
		release(t, next)

		share(t, m, job)
		told.collect(t, 2)
		release(t, acquire(t, m, job, lease.WaitAtMost(2*ttl)))
	})
}

// TestDroppedAmongOthers proves that a lease goes on while it has another handle, that a
// lease whose handles were dropped can be entered again, and that Close releases one.
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
		if n := told.count("dropped"); n > 0 {
			t.Errorf("%d handles are dropped: %v", n, told.all())
		}
		stop()
		told.collect(t, 1) // whose context is over now
	})
}

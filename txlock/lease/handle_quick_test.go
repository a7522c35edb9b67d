package lease_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
		if again.Token() != token {
			t.Errorf("token %d, want %d", again.Token(), token)
		}
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

// TestNoFalseAlarm proves, while garbage is collected all the time, that no handle is
// reported that is released at its end.
func TestNoFalseAlarm(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(recorder)
		m := db.manager(lease.Observe(told.observe), lease.TTL(10*time.Millisecond))
		for range testdb.Long(100, 300) {
			ended := make(chan struct{})
			for i := range 3 {
				go func() {
					defer func() { ended <- struct{}{} }()
					_ = m.Do(context.Background(), txlock.Named(string(rune('a'+i))), func(context.Context, *lease.Lease) error {
						time.Sleep(20 * time.Millisecond)
						return nil
					})
					l, err := m.Acquire(context.Background(), job)
					if err == nil {
						time.Sleep(4 * time.Millisecond)
						_ = l.Release(context.Background())
					}
				}()
			}
			runtime.GC()
			for range 3 {
				<-ended
			}
		}
		time.Sleep(time.Second)
		if n := told.count("dropped"); n > 0 {
			t.Errorf("%d handles are dropped", n)
		}
	})
}

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReleaseAgain proves that a lease is released once, whoever does it how often.
func TestReleaseAgain(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("Release", slow(time.Second))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				wantsNone(t, "Release", l.Release(t.Context()))
			})
		}
		all.Wait()
		release(t, l)
		if n := len(wire.calls("Release")); n != 1 {
			t.Errorf("%d releases", n)
		}
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		if !done(l) || l.Remaining() != 0 || l.Valid() || errors.Is(l.Err(), txlock.ErrLost) {
			t.Errorf("done %t, left %v, %v", done(l), l.Remaining(), l.Err())
		}
		working, cancel := l.Context(t.Context())
		defer cancel()
		wants(t, "the context of a handle that is over", context.Cause(working), txlock.ErrNotHeld)
		nothingHeld(t, m)
	})
}

// TestEndedContextReleases proves that Release is sent where the context has ended before,
// and goes on in the background where that ends meanwhile.
func TestEndedContextReleases(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, acquire(t, m, job).Release(ended))
		nothingHeld(t, m)

		l := acquire(t, m, job)
		wire.fault("Release", hangs)
		brief := limited(t, time.Second)
		wants(t, "Release", l.Release(brief), context.DeadlineExceeded)
		db.at("the end of the call", time.Second)
		wire.Up()
		time.Sleep(31 * time.Second)
		nothingHeld(t, m)
	})
}

// TestReleaseWithoutAnswer proves that Release asks again where it had no answer, and that
// nobody minds that the first was executed; and that it gives up after 5 seconds, after
// which it goes on in the background.
func TestReleaseWithoutAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("Release", times(1, loses))
		release(t, l)
		if n := len(wire.calls("Release")); n != 2 {
			t.Errorf("%d releases", n)
		}
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

// TestReleaseOfALostLease proves that Release says so, touches nobody else's hold, and
// removes its own where that is still there.
func TestReleaseOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, wire := db.process()
		b := db.manager()
		l := acquire(t, a, job)
		must(t, b.ForceRelease(t.Context(), job))
		other := acquire(t, b, job)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		must(t, other.Renew(t.Context()))
		release(t, other)

		l = acquire(t, a, job)
		wire.fault("RenewMany", loses) // it is renewed, and doesn't know
		<-l.Done()
		wants(t, "TryAcquire", second(b.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, a)
		release(t, acquire(t, b, job))
	})
}

// TestCloseEndsAll proves that Close tells the holders and those who wait, and releases
// all, and that a manager that is closed refuses all.
func TestCloseEndsAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other := db.manager()
		held := acquire(t, other, txlock.Named("held"))
		m := db.manager()
		s := semaphore(t, m, txlock.Named("permits"), 1)
		permit := permit(t, s)
		mine := []*lease.Lease{acquire(t, m, job), share(t, m, txlock.Named("shared")), permit}
		ways := map[string]func() error{
			"first":  func() error { return second(m.Acquire(t.Context(), held.Key())) },
			"second": func() error { return second(m.Acquire(t.Context(), held.Key())) },
			"fair":   func() error { return second(m.Acquire(t.Context(), held.Key(), lease.Fair())) },
			"shared": func() error { return second(m.AcquireShared(t.Context(), held.Key())) },
			"permit": func() error { return second(s.Acquire(t.Context())) },
			"writer": func() error { return second(m.Acquire(t.Context(), txlock.Named("shared"))) },
			"resize": func() error { return second(s.Resize(t.Context(), 2)) },
		}
		working, cancel := mine[0].Context(t.Context())
		defer cancel()
		var all sync.WaitGroup
		for name, wait := range ways {
			if name == "resize" {
				continue
			}
			all.Go(func() { wants(t, name, wait(), lease.ErrClosed) })
		}
		time.Sleep(time.Second)
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
		release(t, held)
		nothingHeld(t, other)
	})
}

// TestCloseIsBounded proves that Close returns when its context ends, and names what was
// not released.
func TestCloseIsBounded(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		for n := range 7 {
			acquire(t, m, txlock.Named(fmt.Sprint("key ", n)))
		}
		wire.fault("Release", hangs)
		ctx := limited(t, 2*time.Second)
		err := m.Close(ctx)
		db.within("Close", 2*time.Second, 2*time.Second+50*time.Millisecond)
		wants(t, "Close", err, context.DeadlineExceeded)
		for _, want := range []string{"7 leases were not released", `"key 0"`, `"key 4"`, "..."} {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		time.Sleep(time.Minute)
	})
}

// TestCloseReleasesWhatIsUnderWay proves that Close waits for what is released in the
// background, and that an Acquire which is granted meanwhile holds nothing.
func TestCloseReleasesWhatIsUnderWay(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other := db.manager()
		m, wire := db.process()
		release(t, acquire(t, m, job))
		wire.fault("Take", answersLate(2*time.Second))
		failed := later(func() error { return second(m.Acquire(t.Context(), job)) })
		time.Sleep(time.Second)
		closed := later(func() error { return m.Close(t.Context()) })
		wants(t, "Acquire", <-failed, lease.ErrClosed)
		must(t, <-closed)
		nothingHeld(t, other)
	})
}

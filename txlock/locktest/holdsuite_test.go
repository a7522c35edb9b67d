package locktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// keepingBehaves shows leases that stay held after their release.
func keepingBehaves(show show) {
	show("a lease that is released early stays held for its time, for everybody", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		done := func(context.Context, *lease.Lease) error { return nil }
		ctx := lease.WithOwner(t.Context(), "ann")
		must(t, one.Do(ctx, key, done, lease.HoldAtLeast(time.Hour)))
		for _, m := range []*lease.Manager{one, other} {
			wants(t, "TryDo", m.TryDo(ctx, key, done), txlock.ErrBusy)
			wants(t, "TryDo", m.TryDo(t.Context(), key, done), txlock.ErrBusy)
			info, err := m.Inspect(t.Context(), key)
			must(t, err)
			if !info.Held || info.Remaining <= 0 || info.Remaining > time.Hour || info.Owner != "released: ann" {
				t.Errorf("Inspect: %+v", info)
			}
		}
		must(t, other.ForceRelease(t.Context(), key))
		l, err := one.TryAcquire(ctx, key, lease.HoldAtLeast(time.Second))
		must(t, err)
		must(t, l.Release(t.Context()))
		next := acquire(t.Context(), t, other, key) // waits for the rest of the second
		if next.Token() < l.Token()+uint64(time.Second.Microseconds()) {
			t.Errorf("token %d after %d: it was not kept for a second", next.Token(), l.Token())
		}
		must(t, next.Release(t.Context()))
		_, err = one.AcquireShared(t.Context(), key, lease.HoldAtLeast(time.Second))
		wants(t, "AcquireShared", err, txlock.ErrInvalidOption)
		_, err = one.Acquire(t.Context(), key, lease.HoldAtLeast(0))
		wants(t, "Acquire", err, txlock.ErrInvalidOption)
	})
	show("a permit that is given back early stays taken for its time", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		s, err := one.Semaphore(key, 2)
		must(t, err)
		for range 2 {
			must(t, s.Do(t.Context(), func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(time.Hour)))
		}
		_, err = s.TryAcquire(t.Context())
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		must(t, other.ForceRelease(t.Context(), key, 1))
		l, err := s.TryAcquire(t.Context())
		must(t, err)
		must(t, l.Release(t.Context()))
	})
}

// togetherBehave shows leases that are acquired together.
func togetherBehave(show show) {
	show("AcquireAll takes all leases or none, in one order", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		a, b, c := txlock.Named(key.String()+"/a"), txlock.Named(key.String()+"/b"), txlock.Named(key.String()+"/c")
		all, err := one.AcquireAll(t.Context(), []txlock.Key{c, a, b, a})
		must(t, err)
		for i, key := range []txlock.Key{a, b, c} {
			if all.All()[i].Key() != key || all.Get(key) != all.All()[i] {
				t.Errorf("lease %d is of %v", i, all.All()[i].Key())
			}
			_, err := other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
		}
		working, stop := all.Context(t.Context())
		defer stop()
		must(t, one.TryDo(working, b, func(_ context.Context, l *lease.Lease) error { return l.Err() })) // enters again
		must(t, other.ForceRelease(t.Context(), b))
		wants(t, "Renew", all.Get(b).Renew(t.Context()), txlock.ErrLost)
		<-working.Done()
		wants(t, "the cause", context.Cause(working), txlock.ErrLost)
		wants(t, "Err", all.Err(), txlock.ErrLost)
		wants(t, "Release", all.Release(t.Context()), txlock.ErrNotHeld)

		last := acquire(t.Context(), t, other, c)
		_, err = one.TryAcquireAll(t.Context(), []txlock.Key{c, a, b})
		wants(t, "TryAcquireAll", err, txlock.ErrBusy)
		_, err = one.AcquireAll(t.Context(), []txlock.Key{c, a, b}, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		_, err = one.AcquireAll(ctx, []txlock.Key{c, a, b})
		wants(t, "deadline", err, context.DeadlineExceeded)
		must(t, last.Release(t.Context()))
		all, err = other.AcquireAll(t.Context(), []txlock.Key{a, b, c})
		must(t, err)
		must(t, all.Release(t.Context()))
		_, err = one.AcquireAll(t.Context(), nil)
		wants(t, "no keys", err, txlock.ErrInvalidKey)
	})
	show("calls of AcquireAll in any order never wait in a circle", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		a, b := txlock.Named(key.String()+"/a"), txlock.Named(key.String()+"/b")
		done := make(chan error)
		for m, keys := range map[*lease.Manager][]txlock.Key{one: {a, b}, other: {b, a}} {
			for range 2 {
				go func() {
					for range 5 {
						all, err := m.AcquireAll(t.Context(), keys)
						if err == nil {
							err = all.Release(t.Context())
						}
						if err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
		}
		for range 4 {
			must(t, <-done)
		}
	})
}

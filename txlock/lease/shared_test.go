package lease_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Readers read together, and keep a writer out until the last has gone.
func TestSharedExcludesWriters(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		one, other := newManager(t, pool), newManager(t, pool)
		key := named()
		first := share(t, one, key)
		next, err := other.TryAcquireShared(t.Context(), key)
		must(t, err)
		third, err := one.TryAcquireShared(t.Context(), key)
		must(t, err)
		if !first.Shared() || first.Token() == third.Token() && first.Owner() == third.Owner() {
			t.Errorf("readers %v and %v", first, third)
		}
		_, err = other.TryAcquire(t.Context(), key)
		if wants(t, "TryAcquire beside readers", err, txlock.ErrBusy); t.Failed() {
			return // nobody would release that
		}
		_, err = one.Acquire(t.Context(), key, lease.WaitAtMost(50*time.Millisecond))
		wants(t, "Acquire beside readers", err, txlock.ErrWaitTimeout)
		waiting := fairAcquire(t, other, key)
		release(t, first)
		release(t, next)
		wantsNone(t, "Renew", third.Renew(t.Context()))
		release(t, third)
		writer := waiting.lease(t)
		wants(t, "TryAcquireShared beside a writer", second(one.TryAcquireShared(t.Context(), key)), txlock.ErrBusy)
		reader, err := writer.Downgrade(t.Context())
		must(t, err)
		wants(t, "Err of the writer", writer.Err(), txlock.ErrNotHeld)
		wants(t, "TryAcquire after the downgrade", second(one.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		beside, err := one.TryAcquireShared(t.Context(), key)
		must(t, err)
		working, cancel := beside.Context(t.Context())
		defer cancel()
		wants(t, "upgrade", second(one.TryAcquire(working, key)), txlock.ErrUpgrade)
		again, err := one.TryAcquireShared(working, key)
		if err != nil || again.Token() != beside.Token() {
			t.Errorf("second AcquireShared of an owner: %v, %v", again, err)
		}
		release(t, again)
		release(t, beside)
		release(t, reader)
		release(t, acquire(t, one, key))
	})
}

// A semaphore of n has n holders at most, and no more than that number.
func TestSemaphore(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		s := semaphore(t, m, key, 3)
		same := semaphore(t, other, key, 3)
		var permits []*lease.Lease
		for _, s := range []*lease.Semaphore{s, same, s} {
			l, err := s.TryAcquire(t.Context())
			must(t, err)
			permits = append(permits, l)
		}
		wants(t, "a fourth", second(same.TryAcquire(t.Context())), txlock.ErrBusy)
		wrong := semaphore(t, other, key, 4)
		_, err := wrong.TryAcquire(t.Context())
		wants(t, "another number", err, txlock.ErrInvalidOption)
		t.Log(err)
		wants(t, "Acquire of a semaphore", second(m.TryAcquire(t.Context(), key)), txlock.ErrInvalidKey)
		wants(t, "AcquireShared of a semaphore", second(m.TryAcquireShared(t.Context(), key)), txlock.ErrInvalidKey)
		for _, l := range permits {
			wantsNone(t, "Renew", l.Renew(t.Context()))
		}
		bigger, err := s.Resize(t.Context(), 4)
		must(t, err)
		wants(t, "the old number", second(same.TryAcquire(t.Context())), txlock.ErrInvalidOption)
		l, err := wrong.TryAcquire(t.Context())
		must(t, err)
		permits = append(permits, l)
		_, err = bigger.TryAcquire(t.Context())
		wants(t, "a fifth", err, txlock.ErrBusy)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var smaller *lease.Semaphore
		resized := make(chan struct{})
		go func() {
			defer close(resized)
			smaller, err = bigger.Resize(ctx, 1)
		}()
		waitUntil(t, "the number is 1", func() bool {
			return number(t, db, "SELECT used_for FROM lockstep_leases WHERE name = ? AND slot = 0", key.String()) == -1
		})
		testdb.InUse(pool) // until Resize has read the answer too
		cancel()
		<-resized
		wants(t, "Resize under what is held", err, context.Canceled)
		if smaller == nil {
			t.Fatal("no semaphore of the new number")
		}
		for _, l := range permits {
			release(t, l)
		}
		one, err := smaller.TryAcquire(t.Context())
		must(t, err)
		wants(t, "a second of one", second(smaller.TryAcquire(t.Context())), txlock.ErrBusy)
		release(t, one)
	})
}

package lease_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// three are keys that are not in their order, one of them twice.
var three = []txlock.Key{txlock.Named("c"), txlock.Named("a"), txlock.Named("b"), txlock.Named("a")}

func acquireAll(t testing.TB, m *lease.Manager, keys []txlock.Key) *lease.Leases {
	t.Helper()
	return leasetest.Got(m.AcquireAll(t.Context(), keys))(t)
}

// TestAcquireAll proves that all leases are held, each key once and in one order; that Release releases all of
// them but what the owner had before, also where they could not be had; that their context ends when one is
// lost, and enters all of them again; and that a transaction that guards them fails if one is lost.
func TestAcquireAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other, ann := db.manager(), lease.WithOwner(t.Context(), "ann")
		outer := acquireIn(ann, t, m, txlock.Named("b"))
		all := leasetest.Got(m.AcquireAll(ann, three))(t)
		ctx := contextOf(t, all)
		var names []string
		for _, l := range all.All() {
			names = append(names, l.Key().String())
			if all.Get(l.Key()) != l {
				t.Errorf("Get(%q) is another lease", l.Key())
			}
			wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), l.Key())), txlock.ErrBusy)
			again := acquireIn(ctx, t, m, l.Key())
			entered(t, again, l)
			release(t, again)
		}
		if !slices.Equal(names, []string{"a", "b", "c"}) || all.Get(job) != nil || all.Err() != nil {
			t.Errorf("leases of %v, Err %v", names, all.Err())
		}
		must(t, wire.guarding(t, all).Commit())
		time.Sleep(time.Hour)
		must(t, errors.Join(all.Err(), ctx.Err()))
		must(t, all.Release(t.Context()))
		must(t, all.Release(t.Context()))
		wants(t, "Err", all.Err(), txlock.ErrNotHeld)
		must(t, outer.Err())
		last := acquire(t, other, txlock.Named("c"))
		wants(t, "TryAcquireAll", second(m.TryAcquireAll(ann, three)), txlock.ErrBusy)
		must(t, outer.Err())
		release(t, outer, last)
		nothingHeld(t, m)

		all = acquireAll(t, m, three)
		stopped, stop := all.Context(t.Context())
		stop()
		wants(t, "a context that was stopped", stopped.Err(), context.Canceled)
		must(t, all.Err())
		ctx = contextOf(t, all)
		must(t, other.ForceRelease(t.Context(), txlock.Named("c")))
		tx := wire.Begin()
		wants(t, "Guard", all.Guard(t.Context(), tx), txlock.ErrLost)
		must(t, tx.Rollback())
		<-ctx.Done()
		wants(t, "the cause", context.Cause(ctx), txlock.ErrLost)
		wants(t, "Err", all.Err(), txlock.ErrLost)
		must(t, all.Get(txlock.Named("a")).Err())
		wants(t, "Release", all.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, m)

		all = acquireAll(t, m, three)
		tx = wire.guarding(t, all)
		wants(t, "Release", all.Release(t.Context()), lease.ErrGuarded)
		must(t, tx.Commit())
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
	})
}

// TestAcquireAllOrNone proves that nothing stays held of a call that fails: because a
// lease is somebody else's, its time or its context is over, or the manager is closed.
func TestAcquireAllOrNone(t *testing.T) {
	for name, c := range map[string]struct {
		call func(ctx context.Context, m *lease.Manager) (*lease.Leases, error)
		want error
		took time.Duration
	}{
		"try": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			return m.TryAcquireAll(ctx, three, lease.HoldAtLeast(time.Hour))
		}, txlock.ErrBusy, 0},
		"limit": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			return m.AcquireAll(ctx, three, lease.WaitAtMost(time.Minute), lease.HoldAtLeast(time.Hour))
		}, txlock.ErrWaitTimeout, time.Minute},
		"deadline": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return m.AcquireAll(ctx, three, lease.HoldAtLeast(time.Hour))
		}, context.DeadlineExceeded, time.Minute},
		"closed": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			time.AfterFunc(time.Minute, func() { _ = m.Close(ctx) })
			return m.AcquireAll(ctx, three)
		}, lease.ErrClosed, time.Minute},
		"lost": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			time.AfterFunc(45*time.Second, func() { _ = m.ForceRelease(ctx, txlock.Named("a")) })
			return m.AcquireAll(ctx, three)
		}, txlock.ErrLost, 50 * time.Second}, // by the next renewal
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			m, other := db.manager(), db.manager()
			last := acquire(t, other, txlock.Named("c"))
			all, err := c.call(t.Context(), m)
			wants(t, "the call", err, c.want)
			db.at("the end of the call", c.took)
			if all != nil || t.Context().Err() == nil && errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", all, err)
			}
			synctest.Wait()
			for _, key := range []string{"a", "b"} {
				release(t, acquire(t, other, txlock.Named(key)))
			}
			db.at("all free", c.took)
			release(t, last)
			nothingHeld(t, other)
		})
	}
}

// TestAcquireAllWhilePaused proves that a process which was stopped at the end is told that
// its leases are over.
func TestAcquireAllWhilePaused(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		wire.fault("Take", func(_ context.Context, _ string, at store.Row, call func() error) error {
			err := call()
			if at.Key == "c" {
				db.Skip(time.Hour)
			}
			return err
		})
		wants(t, "AcquireAll", second(m.AcquireAll(t.Context(), three)), txlock.ErrLost)
		nothingHeld(t, m)
	})
}

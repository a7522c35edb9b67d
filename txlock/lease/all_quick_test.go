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

// TestAcquireAll proves that all leases are held, each key once and in one order, and that
// Release releases all of them.
func TestAcquireAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		all := acquireAll(t, m, three)
		var names []string
		for _, l := range all.All() {
			names = append(names, l.Key().String())
			must(t, l.Err())
			if all.Get(l.Key()) != l {
				t.Errorf("Get(%q) is another lease", l.Key())
			}
			wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), l.Key())), txlock.ErrBusy)
		}
		if !slices.Equal(names, []string{"a", "b", "c"}) || all.Get(job) != nil || all.Err() != nil {
			t.Errorf("leases of %v, Err %v", names, all.Err())
		}
		time.Sleep(time.Hour)
		must(t, all.Err())
		must(t, all.Release(t.Context()))
		must(t, all.Release(t.Context()))
		wants(t, "Err", all.Err(), txlock.ErrNotHeld)
		nothingHeld(t, m)
		wire.sends(t, "Release", 3)
		again, err := m.TryAcquireAll(t.Context(), three[:1])
		must(t, err)
		must(t, again.Release(t.Context()))
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

// TestAcquireAllEntersAgain proves that a lease which the owner has had before stays when
// the others are released, or could not be had.
func TestAcquireAllEntersAgain(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		ctx := lease.WithOwner(t.Context(), "ann")
		outer := acquireIn(ctx, t, m, txlock.Named("b"))
		all, err := m.AcquireAll(ctx, three)
		must(t, err)
		must(t, all.Release(t.Context()))
		must(t, outer.Err())
		last := acquire(t, other, txlock.Named("c"))
		wants(t, "TryAcquireAll", second(m.TryAcquireAll(ctx, three)), txlock.ErrBusy)
		must(t, outer.Err())
		release(t, outer, last)
		nothingHeld(t, m)
	})
}

// TestLeasesContext proves that the context of several leases ends when one is lost, and
// that all of them are entered again under it.
func TestLeasesContext(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		all := acquireAll(t, m, three)
		ctx := contextOf(t, all)
		for _, l := range all.All() {
			must(t, m.TryDo(ctx, l.Key(), func(_ context.Context, again *lease.Lease) error {
				entered(t, again, l)
				return nil
			}))
		}
		must(t, ctx.Err())
		must(t, db.manager().ForceRelease(t.Context(), txlock.Named("b")))
		<-ctx.Done()
		wants(t, "the cause", context.Cause(ctx), txlock.ErrLost)
		wants(t, "Err", all.Err(), txlock.ErrLost)
		must(t, all.Get(txlock.Named("a")).Err())
		err := all.Release(t.Context())
		wants(t, "Release", err, txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, m)

		all = acquireAll(t, m, three)
		ctx, stop := all.Context(t.Context())
		stop()
		if !errors.Is(ctx.Err(), context.Canceled) || all.Err() != nil {
			t.Errorf("%v, %v", ctx.Err(), all.Err())
		}
		must(t, all.Release(t.Context()))
	})
}

// TestLeasesGuard proves that a transaction that guards several leases ends before any of
// them is somebody else's, and fails if one is lost.
func TestLeasesGuard(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		all := acquireAll(t, m, three)
		tx := wire.guarding(t, all)
		for _, l := range all.All() {
			wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), l.Key())), txlock.ErrBusy)
		}
		must(t, tx.Commit())
		must(t, all.Err())
		must(t, other.ForceRelease(t.Context(), txlock.Named("c")))
		release(t, acquire(t, other, txlock.Named("c")))
		tx = wire.Begin()
		wants(t, "Guard", all.Guard(t.Context(), tx), txlock.ErrLost)
		must(t, tx.Rollback())
		wants(t, "Release", all.Release(t.Context()), txlock.ErrNotHeld)

		all = acquireAll(t, m, three)
		tx = wire.guarding(t, all)
		err := all.Release(t.Context())
		wants(t, "Release", err, lease.ErrGuarded)
		must(t, tx.Commit())
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
	})
}

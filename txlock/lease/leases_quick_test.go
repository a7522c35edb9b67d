package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestLeasesContext proves that the context of several leases ends when one is lost, and
// that all of them are entered again under it.
func TestLeasesContext(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		all := acquireAll(t, m, three)
		ctx, stop := all.Context(t.Context())
		defer stop()
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
		ctx, stop = all.Context(t.Context())
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
		tx := wire.Begin()
		must(t, all.Guard(t.Context(), tx))
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
		tx = wire.Begin()
		must(t, all.Guard(t.Context(), tx))
		err := all.Release(t.Context())
		wants(t, "Release", err, lease.ErrGuarded)
		must(t, tx.Commit())
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
	})
}

// TestTryDo proves that TryDo calls its function where the lease is free, and else returns
// at once.
func TestTryDo(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		failed := errors.New("failed")
		err := m.TryDo(t.Context(), job, func(_ context.Context, l *lease.Lease) error {
			must(t, l.Err())
			err := other.TryDo(t.Context(), job, func(context.Context, *lease.Lease) error {
				t.Error("called beside the holder")
				return nil
			})
			wants(t, "TryDo", err, txlock.ErrBusy)
			return failed
		})
		if err != failed { //nolint:errorlint // it is the error itself
			t.Errorf("TryDo: %v", err)
		}
		db.at("the end", 0)
		nothingHeld(t, m)
		if m.TryDo(t.Context(), job, nil) == nil {
			t.Error("TryDo takes a nil function")
		}
	})
}

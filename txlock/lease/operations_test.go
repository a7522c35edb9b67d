package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// moreOperations are those of HoldAtLeast, TryDo, AcquireAll, shared leases and permits.
var moreOperations = []operation{
	{"release a lease that stays held", func(ctx context.Context, tb testing.TB, db *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		if l, err := m.Acquire(ctx, key, lease.HoldAtLeast(time.Hour)); err != nil {
			tb.Fatal(err)
		} else {
			release(tb, l) // which prepares the statement
		}
		exec(tb, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
		l := acquire(tb, m, key, lease.HoldAtLeast(time.Hour))
		return func() error { return l.Release(ctx) }
	}, 2}, // what the row says decides for how long
	{"AcquireAll of three keys, and Release", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		keys := []txlock.Key{key, txlock.Named(key.String() + "/b"), txlock.Named(key.String() + "/a")}
		for _, key := range keys {
			warmUp(tb, m, key)
		}
		return func() error {
			all, err := m.AcquireAll(ctx, keys)
			if err != nil {
				return err
			}
			return all.Release(ctx)
		}
	}, 6},
	{"TryDo", func(ctx context.Context, _ testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		return func() error { return m.TryDo(ctx, key, func(context.Context, *lease.Lease) error { return nil }) }
	}, 2},
	{"DoShared", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		must(tb, m.DoShared(ctx, key, noWork)) // which marks the key
		return func() error { return m.DoShared(ctx, key, noWork) }
	}, 2},
	{"Renew of a reader", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := share(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
		return func() error { return l.Renew(ctx) }
	}, 1},
	{"Do of a key that has been shared", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		must(tb, m.DoShared(ctx, key, noWork))
		must(tb, m.Do(ctx, key, noWork))
		return func() error { return m.Do(ctx, key, noWork) }
	}, 3}, // one sees that nobody reads
	{"Do of a permit", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		s := semaphore(tb, m, txlock.Named(key.String()+"/permits"), 2)
		must(tb, s.Do(ctx, noWork))
		return func() error { return s.Do(ctx, noWork) }
	}, 3}, // one sees which is free
}

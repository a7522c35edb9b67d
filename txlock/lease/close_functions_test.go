package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestCloseUnderFunctions proves on the servers that a function of Do which Close waits for
// commits a transaction that its lease guards, while no other process gets the lease, and that
// the lease is free when the function has returned.
func TestCloseUnderFunctions(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other, key := newManager(t, pool), newManager(t, newPool(t, db, true)), named()
		closed := make(chan error, 1)
		var token uint64
		err := m.Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			token = l.Token()
			go func() { closed <- m.Close(context.Background()) }()
			<-ctx.Done()
			wants(t, "the cause", context.Cause(ctx), lease.ErrClosed)
			_, busy := other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire while the function returns", busy, txlock.ErrBusy)
			tx := begin(t, pool, sql.LevelDefault)
			wantsNone(t, "Guard while the manager closes", l.Guard(t.Context(), tx))
			return tx.Commit()
		})
		wantsNone(t, "Do", err)
		wantsNone(t, "Close", <-closed)
		next, err := other.TryAcquire(t.Context(), key)
		must(t, err)
		if next.Token() <= token {
			t.Errorf("token %d after %d", next.Token(), token)
		}
		release(t, next)
	})
}

// TestCloseUnderAFunctionThatGoesOn proves on the servers that no lease is released under a
// function that still runs when the context of Close ends.
func TestCloseUnderAFunctionThatGoesOn(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other, key := newManager(t, pool), newManager(t, newPool(t, db, true)), named()
		err := m.Do(t.Context(), key, func(_ context.Context, l *lease.Lease) error {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			closed := make(chan error)
			go func() { closed <- m.Close(ended) }()
			wants(t, "Close", <-closed, context.Canceled)
			wants(t, "the lease after Close", l.Err(), txlock.ErrNotHeld)
			info, err := other.Inspect(t.Context(), key)
			if err != nil || !info.Held || info.Token != l.Token() {
				t.Errorf("after Close: %+v, %v; want the lease of token %d", info, err, l.Token())
			}
			_, busy := other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire under a function that goes on", busy, txlock.ErrBusy)
			return nil
		})
		wants(t, "Do", err, txlock.ErrNotHeld)
	})
}

// TestCloseUnderAReentry proves on the servers that Close holds a lease that a function has
// re-entered, although it was acquired before outside of it.
func TestCloseUnderAReentry(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other, key := newManager(t, pool), newManager(t, newPool(t, db, true)), named()
		ctx := lease.WithOwner(t.Context(), "the only instance")
		if _, err := m.Acquire(ctx, key); err != nil {
			t.Fatal(err)
		}
		free, closed := acquire(t, m, named()), make(chan error, 1)
		err := m.Do(ctx, named(), func(ctx context.Context, _ *lease.Lease) error {
			again, err := m.Acquire(ctx, key)
			if err != nil {
				return err
			}
			go func() { closed <- m.Close(context.Background()) }()
			<-ctx.Done()
			<-free.Done()
			_, busy := other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire under a function that has re-entered", busy, txlock.ErrBusy)
			return again.Err()
		})
		wantsNone(t, "Join", errors.Join(err, <-closed))
	})
}

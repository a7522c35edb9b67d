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

// TestRefusalsNameTheHolderOnServers proves what the tests in memory do, on servers: what is
// named is what Inspect shows, and a transaction that AcquireTx leaves goes on, with a snapshot of
// its own time.
func TestRefusalsNameTheHolderOnServers(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		a, b := newManager(t, pool, lease.WithLabel("ours")), newManager(t, pool)
		key, shared, permits := named(), named(), named()
		held := acquire(t, a, key)
		reader := share(t, a, shared)
		one, of := permit(t, semaphore(t, a, permits, 1)), semaphore(t, b, permits, 1)
		holders := map[txlock.Key]*lease.Lease{key: held, shared: reader, permits: one}
		limit := lease.WaitAtMost(time.Millisecond)
		look := lease.NameHolders()
		for name, c := range map[string]struct {
			key  txlock.Key
			call func() error
		}{
			"TryAcquire":            {key, func() error { return second(b.TryAcquire(t.Context(), key)) }}, // the refusal has read it
			"TryAcquireShared":      {key, func() error { return second(b.TryAcquireShared(t.Context(), key, look)) }},
			"TryAcquireAll":         {key, func() error { return second(b.TryAcquireAll(t.Context(), []txlock.Key{named(), key}, look)) }},
			"Acquire":               {key, func() error { return second(b.Acquire(t.Context(), key, limit, look)) }},
			"TryAcquire of readers": {shared, func() error { return second(b.TryAcquire(t.Context(), shared, look)) }},
			"Acquire of readers":    {shared, func() error { return second(b.Acquire(t.Context(), shared, limit, look)) }},
			"TryAcquire, permits":   {permits, func() error { return second(of.TryAcquire(t.Context(), look)) }},
			"Acquire, permits":      {permits, func() error { return second(of.Acquire(t.Context(), limit, look)) }},
		} {
			info, err := infoOf(t, holders[c.key], a), error(nil)
			testdb.Await(soon, func() bool { // a busy machine is too late for a look, or has left the gate to one who was refused before
				err = c.call()
				return heldBy(err) != nil && heldBy(err).Owner == info.Owner
			})
			namesHolder(t, name, err, c.key, info)
		}

		table := counter(t, db)
		tx := begin(t, pool, sql.LevelRepeatableRead)
		_, err := b.AcquireTx(t.Context(), tx, key)
		wants(t, "AcquireTx", err, txlock.ErrBusy)
		namesHolder(t, "AcquireTx", err, key, infoOf(t, held, a))
		other := begin(t, pool, sql.LevelDefault)
		add(t, other, table)
		commit(t, other)
		if n := reads(t, tx, table); n != 1 {
			t.Errorf("the transaction sees %d of what was committed after the refusal", n)
		}
		add(t, tx, table)
		commit(t, tx)

		tx = begin(t, pool, sql.LevelDefault)
		guard(t, held, tx)
		_, err = b.TryAcquire(t.Context(), key) // which has looked why the row is locked
		wants(t, "TryAcquire of what is guarded", err, txlock.ErrBusy)
		namesHolder(t, "TryAcquire of what is guarded", err, key, infoOf(t, held, a))
		commit(t, tx)
		for _, l := range []*lease.Lease{held, reader, one} {
			release(t, l)
		}
	})
}

// TestReadersAreNamedInATransaction proves that AcquireTx names a reader whose row it has
// found.
func TestReadersAreNamedInATransaction(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		a, b := newManager(t, pool), newManager(t, pool)
		key := named()
		reader, err := a.AcquireShared(lease.WithOwner(t.Context(), "somebody"), key)
		must(t, err)
		testdb.Await(soon, func() bool {
			_, err = b.AcquireTx(t.Context(), begin(t, pool, sql.LevelDefault), key, lease.NameHolders())
			return heldBy(err) != nil
		})
		wants(t, "AcquireTx", err, txlock.ErrBusy)
		if held := heldBy(err); held == nil || held.Owner != "somebody" {
			t.Errorf("%v", err)
		}
		release(t, reader)
	})
}

// TestBlockerIsNamed proves that an open transaction that keeps others from a lease that is
// over is named by its session.
func TestBlockerIsNamed(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		a, b := newManager(t, pool), newManager(t, pool)
		key := named()
		held := acquire(t, a, key, lease.TTL(unhurried(t, b, 500*time.Millisecond)))
		tx := begin(t, pool, sql.LevelDefault)
		guard(t, held, tx)
		id := testdb.ConnID(t, tx)
		var err error
		if !testdb.Await(time.Minute, func() bool {
			_, err = b.TryAcquire(context.Background(), key, lease.GuardGrace(time.Hour))
			return heldBy(err) != nil && heldBy(err).Session == uint64(id)
		}) {
			t.Errorf("%v", err)
		}
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		_ = tx.Rollback()
		_ = held.Release(t.Context())
	})
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// TestSlowWaitsNameTheHolderOnServers proves on servers that the observer is told for whom a
// slow wait was: for the lease, a reader's place and a permit.
func TestSlowWaitsNameTheHolderOnServers(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		a := newManager(t, pool, lease.WithLabel("ours"))
		for name, of := range map[string]struct {
			hold, wait func(m *lease.Manager, key txlock.Key) (*lease.Lease, error)
		}{
			"the lease": {acquireNow, acquireNow},
			"a reader": {
				func(m *lease.Manager, key txlock.Key) (*lease.Lease, error) { return m.AcquireShared(t.Context(), key) },
				acquireNow,
			},
			"a permit": {permitNow, permitNow},
		} {
			var info lease.Info
			var told *answers
			for begun := time.Now(); time.Since(begun) < soon; { // on a busy machine a look may be too late
				told = new(answers)
				b := newManager(t, pool, lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(10*time.Millisecond))
				key := named()
				held, err := of.hold(a, key)
				must(t, err)
				info = infoOf(t, held, a)
				time.AfterFunc(300*time.Millisecond, func() { _ = held.Release(context.Background()) })
				l, err := of.wait(b, key)
				if err != nil {
					t.Fatal(name, err)
				}
				release(t, l)
				if told.granted.Held != nil {
					break
				}
			}
			if held := told.granted.Held; held == nil || held.Owner != info.Owner || held.Label != "ours" || !held.Since.Equal(info.Since) {
				t.Errorf("%s: %+v, want %+v", name, held, info)
			}
		}
	})
}

func acquireNow(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
	return m.Acquire(context.Background(), key)
}

func permitNow(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
	return permitOf(context.Background(), m, key)
}

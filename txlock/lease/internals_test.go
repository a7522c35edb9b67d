package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestRaiseToken proves that a lease goes on with the token that it was raised to: it
// is renewed, guarded and released, and the next one is higher.
func TestRaiseToken(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, key := newManager(t, pool, lease.TTL(unhurried(t, newManager(t, pool), 10*time.Second)), lease.RenewEvery(200*time.Millisecond)), named()
		l := acquire(t, m, key)
		first := l.Token()
		if err := inner.RaiseToken(t.Context(), l, first-1); err != nil || l.Token() != first {
			t.Errorf("RaiseToken to less: token %d of %d, %v", l.Token(), first, err)
		}
		raised := first + 1_000_000_000_000
		if err := inner.RaiseToken(t.Context(), l, raised); err != nil || l.Token() != raised {
			t.Fatalf("RaiseToken: token %d, want %d, %v", l.Token(), raised, err)
		}
		if n := number(t, db, "SELECT token FROM lockstep_leases WHERE name = ?", key.String()); uint64(n) != raised {
			t.Errorf("the row has token %d, want %d", n, raised)
		}
		awaitRenewals(t, db, l)
		wantsNone(t, "Renew", l.Renew(t.Context()))
		tx := begin(t, pool, sql.LevelDefault)
		wantsNone(t, "Guard", l.Guard(t.Context(), tx))
		// The row is locked: it waits for the end of the transaction.
		done := later(func() error { return inner.RaiseToken(t.Context(), l, raised+1) })
		select {
		case err := <-done:
			t.Errorf("RaiseToken of a row that is locked: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		wantsNone(t, "Commit", tx.Commit())
		if err := <-done; err != nil || l.Token() != raised+1 {
			t.Errorf("RaiseToken: token %d, %v", l.Token(), err)
		}
		release(t, l)
		wants(t, "RaiseToken of what was released", inner.RaiseToken(t.Context(), l, raised+2), txlock.ErrNotHeld)
		next := acquire(t, m, key)
		if next.Token() <= raised+1 {
			t.Errorf("token %d after %d", next.Token(), raised+1)
		}
		wants(t, "RaiseToken to a number that is no token", inner.RaiseToken(t.Context(), next, math.MaxUint64), txlock.ErrInvalidOption)
		release(t, next)
	})
}

// awaitRenewals waits for two renewals by the loop.
func awaitRenewals(t *testing.T, db *testdb.DB, l *lease.Lease) {
	t.Helper()
	for range 2 {
		const expires = "SELECT expires_us FROM lockstep_leases WHERE name = ?"
		before := number(t, db, expires, l.Key().String())
		for number(t, db, expires, l.Key().String()) == before {
			must(t, l.Err())
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// TestRaiseTokenLost proves that a token that may or may not have been raised loses the
// lease, and that one of a lease that somebody has taken does too.
func TestRaiseTokenLost(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true))
		l := acquire(t, m, named())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := inner.RaiseToken(ctx, l, l.Token()+1)
		wants(t, "RaiseToken without an answer", err, txlock.ErrLost)
		wants(t, "Err", l.Err(), txlock.ErrLost)

		l = acquire(t, m, named())
		exec(t, db, "UPDATE lockstep_leases SET owner = 'somebody' WHERE name = ?", l.Key().String())
		wants(t, "RaiseToken of what is somebody else's", inner.RaiseToken(t.Context(), l, l.Token()+1), txlock.ErrLost, lease.ErrReplaced)

		reader, err := m.AcquireShared(t.Context(), named())
		must(t, err)
		wants(t, "RaiseToken of a reader", inner.RaiseToken(t.Context(), reader, reader.Token()+1), txlock.ErrInvalidOption)
		release(t, reader)
	})
}

// TestEpoch proves that a database keeps its epoch, whoever begins one, and the
// cleanup leaves it.
func TestEpoch(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true), lease.PurgeEvery(0, time.Second))
		none, err := inner.Epoch(t.Context(), m)
		if err != nil || none.ID != "" {
			t.Errorf("a new database: %+v, %v", none, err)
		}
		begun, err := inner.BeginEpoch(t.Context(), m, time.Hour)
		if err != nil || begun.ID == "" || begun.Age < time.Hour || begun.Age > 2*time.Hour {
			t.Errorf("BeginEpoch: %+v, %v", begun, err)
		}
		again, err := inner.BeginEpoch(t.Context(), m, 0)
		if err != nil || again.ID != begun.ID || again.Age < begun.Age {
			t.Errorf("BeginEpoch again: %+v after %+v, %v", again, begun, err)
		}
		if _, err := m.Purge(t.Context()); err != nil {
			t.Error(err)
		}
		if all, err := m.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("List: %+v, %v", all, err)
		}
		kept, err := inner.Epoch(t.Context(), m)
		if err != nil || kept.ID != begun.ID {
			t.Errorf("after the cleanup: %+v, want %+v, %v", kept, begun, err)
		}
	})
}

// TestTermsAndOwner proves that Terms and OwnerOf tell what an Acquire would have.
func TestTermsAndOwner(t *testing.T) {
	t.Parallel()
	m := newManager(t, testdb.Open(t, testdb.Engines()[0]).Connect(t), lease.TTL(time.Minute))
	got, err := inner.Terms(m, lease.WaitAtMost(time.Second))
	if want := (leaseutil.Terms{TTL: time.Minute, WaitAtMost: time.Second}); err != nil || got != want {
		t.Errorf("Terms: %+v, want %+v, %v", got, want, err)
	}
	_, err = inner.Terms(m, lease.TTL(-1))
	wants(t, "Terms", err, txlock.ErrInvalidOption)
	if owner, named, err := inner.OwnerOf(lease.WithOwner(t.Context(), "me")); owner != "me" || !named || err != nil {
		t.Errorf("OwnerOf: %q, %v, %v", owner, named, err)
	}
	one, named, err := inner.OwnerOf(t.Context())
	two, _, err2 := inner.OwnerOf(t.Context())
	if one == two || one == "" || named || errors.Join(err, err2) != nil {
		t.Errorf("OwnerOf: %q and %q, %v, %v", one, two, named, errors.Join(err, err2))
	}
}

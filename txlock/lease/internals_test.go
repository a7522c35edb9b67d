package lease_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestRaiseToken proves that a lease goes on with the token that it was raised to: it
// is renewed, guarded and released, and the next one is higher.
func TestRaiseToken(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		first := l.Token()
		raised := first + 1_000_000_000_000
		raises := func(to, want uint64) {
			t.Helper()
			if err := inner.RaiseToken(t.Context(), l, to); err != nil || l.Token() != want {
				t.Errorf("RaiseToken to %d: token %d, want %d, %v", to, l.Token(), want, err)
			}
			if seen, err := wire.Stored(t.Context(), store.Row{Key: job.String()}); err != nil || seen.Token != want {
				t.Errorf("the row has %+v, want token %d, %v", seen, want, err)
			}
		}
		raises(first-1, first)
		raises(raised, raised)
		time.Sleep(2 * ttl)
		must(t, l.Renew(t.Context()))
		tx := wire.Begin()
		must(t, l.Guard(t.Context(), tx))
		// The row is locked: it waits for the end of the transaction.
		done := later(func() error { return inner.RaiseToken(t.Context(), l, raised+1) })
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("RaiseToken of a row that is locked: %v", err)
		default:
		}
		must(t, tx.Commit())
		must(t, <-done)
		raises(raised+1, raised+1)
		release(t, l)
		wants(t, "RaiseToken of what was released", inner.RaiseToken(t.Context(), l, raised+2), txlock.ErrNotHeld)
		next := acquire(t, m, job)
		higher(t, next, l)
		wants(t, "RaiseToken to a number that is no token", inner.RaiseToken(t.Context(), next, math.MaxUint64), txlock.ErrInvalidOption)
		release(t, next)
	})
}

// TestRaiseTokenLost proves that a token that may or may not have been raised loses the
// lease, and that one of a lease that somebody has taken does too.
func TestRaiseTokenLost(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		l := acquire(t, m, txlock.Named("unanswered"))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "RaiseToken without an answer", inner.RaiseToken(ended, l, l.Token()+1), txlock.ErrLost)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		l = acquire(t, m, job)
		must(t, db.manager().ForceRelease(t.Context(), job))
		acquire(t, db.manager(), job)
		wants(t, "RaiseToken of what is somebody else's", inner.RaiseToken(t.Context(), l, l.Token()+1), txlock.ErrLost, lease.ErrReplaced)
		reader := share(t, m, txlock.Named("shared"))
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
	m := newManager(t, nowhere(t), lease.TTL(time.Minute))
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

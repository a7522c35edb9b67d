package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

var job = txlock.Named("job")

// TestLeaseIsKept renews a lease for as long as its manager lives, until it is taken away,
// and then the one who waits is next.
func TestLeaseIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := locktest.NewMemory()
		m, other := leasesOf(t, memory, lease.TTL(time.Minute)), leasesOf(t, memory)
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		next := make(chan *lease.Lease)
		go func() {
			l, err := other.Acquire(t.Context(), job)
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		time.Sleep(time.Hour)
		must(t, l.Err())
		must(t, m.ForceRelease(t.Context(), job))
		second := <-next
		if second.Token() <= l.Token() {
			t.Errorf("token %d after %d", second.Token(), l.Token())
		}
		<-l.Done()
		wants(t, "Err", l.Err(), txlock.ErrLost)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		must(t, second.Release(t.Context()))
	})
}

// TestMaxLifetime ends a lease that is renewed.
func TestMaxLifetime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := leasesOf(t, locktest.NewMemory())
		l, err := m.Acquire(t.Context(), job, lease.TTL(time.Minute), lease.MaxLifetime(90*time.Second))
		must(t, err)
		began := time.Now()
		<-l.Done()
		if lived := time.Since(began); lived < 80*time.Second || lived > 90*time.Second {
			t.Errorf("it has lived for %v", lived)
		}
		wants(t, "Err", l.Err(), txlock.ErrLost)
	})
}

// TestDisconnect loses a lease when its time is over and the server is out of reach, and
// not before; another memory is another server.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, another := locktest.NewMemory(), locktest.NewMemory()
		m, away := leasesOf(t, memory, lease.TTL(time.Minute)), leasesOf(t, another)
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		kept, err := away.Acquire(t.Context(), job)
		must(t, err)
		working, cancel := l.Context(t.Context())
		defer cancel()
		memory.Disconnect()
		began := time.Now()
		if err := l.Renew(t.Context()); err == nil {
			t.Error("renewed without a server")
		}
		if _, err := m.Acquire(t.Context(), txlock.Named("free")); !fault.Unknown(err) {
			t.Errorf("Acquire: %v", err)
		}
		if tx, err := memory.DB().BeginTx(t.Context(), nil); err == nil {
			t.Error("a transaction was begun", tx.Rollback())
		}
		if time.Since(began) < 30*time.Second {
			must(t, l.Err())
		}
		<-working.Done()
		if lived := time.Since(began); lived < 30*time.Second || lived > time.Minute {
			t.Errorf("it has lived for %v", lived)
		}
		wants(t, "the cause", context.Cause(working), txlock.ErrLost)
		memory.Reconnect()
		time.Sleep(time.Minute)
		next, err := m.TryAcquire(t.Context(), job)
		must(t, err)
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		must(t, kept.Err())
	})
}

// TestGuardInMemory keeps a lease from others until the commit, and dooms a transaction
// that goes on after its lease was taken away.
func TestGuardInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := locktest.NewMemory()
		m, other := leasesOf(t, memory), leasesOf(t, memory)
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		wants(t, "Guard", l.Guard(t.Context(), nil), txlock.ErrNoTransaction)
		guarded := func() *sql.Tx {
			tx, err := memory.DB().BeginTx(t.Context(), nil)
			must(t, err)
			must(t, l.Guard(t.Context(), tx))
			return tx
		}
		tx := guarded()
		wants(t, "Release", l.Release(t.Context()), lease.ErrGuarded)
		_, err = other.TryAcquire(t.Context(), job)
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		must(t, tx.Commit())
		l, err = other.Acquire(t.Context(), job, lease.WaitAtMost(time.Minute))
		must(t, err)
		tx = guarded()
		must(t, m.ForceRelease(t.Context(), job))
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
		tx, err = memory.DB().BeginTx(t.Context(), nil)
		must(t, err)
		l, err = m.AcquireTx(t.Context(), tx, job)
		must(t, err)
		must(t, tx.Commit())
		must(t, l.Release(t.Context()))
	})
}

// TestNoSQL says of every statement that there is no SQL.
func TestNoSQL(t *testing.T) {
	t.Parallel()
	db := locktest.NewMemory().DB()
	defer func() { must(t, db.Close()) }()
	must(t, db.PingContext(t.Context()))
	_, exec := db.ExecContext(t.Context(), "DO 1")
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	_, join := txlock.Join(t.Context(), tx)
	must(t, tx.Rollback())
	for _, err := range []error{exec, join, schema.Install(t.Context(), db)} {
		if err == nil || !strings.Contains(err.Error(), "it takes no SQL") {
			t.Errorf("the error is %v", err)
		}
	}
}

// TestCloseOfALeaseInMemory ends what a manager holds and the calls that wait.
func TestCloseOfALeaseInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := locktest.NewMemory()
		m, other := leasesOf(t, memory), leasesOf(t, memory)
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		failed := make(chan error)
		go func() { _, err := other.Acquire(t.Context(), job); failed <- err }()
		synctest.Wait() // until it waits
		must(t, other.Close(t.Context()))
		wants(t, "Acquire", <-failed, lease.ErrClosed)
		must(t, m.Close(t.Context()))
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		if _, err := m.TryAcquire(t.Context(), job); !errors.Is(err, lease.ErrClosed) {
			t.Errorf("TryAcquire of a closed manager: %v", err)
		}
	})
}

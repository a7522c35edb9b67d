package locktest_test

import (
	"database/sql"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestWaitAtMost ends a wait when its time is over, and not before.
func TestWaitAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, key := locktest.NewMemory(), orders.Key(7)
		holder, waiter := memory.Begin(), memory.Begin()
		_, err := holder.Lock(t.Context(), key)
		must(t, err)
		began := time.Now()
		_, err = waiter.WaitAtMost(time.Minute).Lock(t.Context(), key)
		wants(t, "Lock", err, txlock.ErrWaitTimeout)
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("the wait has ended after %v", waited)
		}
		wants(t, "Verify", waiter.Verify(t.Context()), nil)
		must(t, holder.Commit())
		_, err = waiter.Lock(t.Context(), key)
		must(t, err)
	})
}

// TestFailNext makes one call fail, and the transaction end where the error means that.
func TestFailNext(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), orders.Key(7)
	for _, c := range []struct{ err, after, commit error }{
		{txlock.ErrStaleSnapshot, nil, nil},
		{txlock.ErrBusy, nil, nil},
		{txlock.ErrDeadlock, txlock.ErrTxDoomed, txlock.ErrTxDoomed},
		{txlock.ErrTxDoomed, txlock.ErrTxDoomed, txlock.ErrTxDoomed},
	} {
		s := memory.Begin()
		s.FailNext(c.err)
		grant, err := s.Lock(t.Context(), key)
		wants(t, "Lock", err, c.err)
		if _, held := s.Held(key); held || grant != (txlock.Grant{}) {
			t.Errorf("after %v the lock is held", c.err)
		}
		_, err = s.Lock(t.Context(), key)
		wants(t, "the next Lock", err, c.after)
		wants(t, "Commit", s.Commit(), c.commit)
	}
}

// TestSharedQueue grants readers together behind a writer that waits.
func TestSharedQueue(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), carts.Key("k")
	reader := memory.Begin()
	_, err := reader.RLock(t.Context(), key)
	must(t, err)
	writer, late := memory.Begin(), []*locktest.Scope{memory.Begin(), memory.Begin()}
	wrote := make(chan error)
	go func() { _, err := writer.Lock(t.Context(), key); wrote <- err }()
	must(t, writer.AwaitWaiting(t.Context()))
	read := make(chan error)
	for _, s := range late {
		go func() { _, err := s.RLock(t.Context(), key); read <- err }()
	}
	must(t, memory.AwaitWaiting(t.Context(), key, 3))
	must(t, reader.Commit())
	must(t, <-wrote)
	wants(t, "AwaitWaiting", memory.AwaitWaiting(t.Context(), key, 2), nil)
	must(t, writer.Commit())
	must(t, <-read)
	must(t, <-read)
}

// TestSavepoints asks again for what was locked since a savepoint, which stays locked.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	memory, before, since := locktest.NewMemory(), orders.Key(1), orders.Key(2)
	s := memory.Begin()
	_, err := s.Lock(t.Context(), before)
	must(t, err)
	must(t, s.Savepoint("nested"))
	_, err = s.Lock(t.Context(), since)
	must(t, err)
	must(t, s.Savepoint("deeper"))
	must(t, s.RollbackTo("nested"))
	if err := s.RollbackTo("deeper"); err == nil {
		t.Error("a savepoint that was rolled back is there")
	}
	if _, held := s.Held(before); !held {
		t.Error("what was locked before is not held")
	}
	if _, held := s.Held(since); held {
		t.Error("what was locked since is held")
	}
	_, err = memory.Begin().TryLock(t.Context(), since)
	wants(t, "TryLock by somebody else", err, nil) // its row was made since
	must(t, s.Commit())
	if version, err := memory.ReadVersion(t.Context(), since); version != 0 || err != nil {
		t.Errorf("version %d, %v, of what was rolled back", version, err)
	}
	wants(t, "Savepoint after the end", s.Savepoint("late"), sql.ErrTxDone)
	wants(t, "RollbackTo after the end", s.RollbackTo("nested"), sql.ErrTxDone)
}

// TestAFakeStoreFindsALateLock is a program that reads before it locks, which the
// stand-in finds out where the stand-in of the data says that it is read.
func TestAFakeStoreFindsALateLock(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), orders.Key(7)
	s, other := memory.Begin(), memory.Begin()
	s.Snapshot()
	_, err := other.Lock(t.Context(), key)
	must(t, err)
	must(t, other.Commit())
	_, err = s.Lock(t.Context(), key)
	wants(t, "Lock after the read", err, txlock.ErrStaleSnapshot)
	if !txlock.Retryable(err) {
		t.Errorf("not retryable: %v", err)
	}
	must(t, s.Rollback())
	s = memory.Begin()
	_, err = s.Lock(t.Context(), key)
	must(t, err)
	s.Snapshot()
	must(t, s.Commit())
}

// TestManyWait: a look for a deadlock looks once at each transaction that waits.
func TestManyWait(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), txlock.Named("popular")
	holder := memory.Begin()
	if _, err := holder.Lock(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	for range 100 {
		scope := memory.Begin()
		waiting.Go(func() {
			_, err := scope.Lock(t.Context(), key)
			if err := errors.Join(err, scope.Commit()); err != nil {
				t.Error(err)
			}
		})
		if err := scope.AwaitWaiting(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := holder.Commit(); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
}

// TestFirstLock rolls back the first lock of a key under two waiters: one of them meets a
// deadlock where the row was made in the transaction.
func TestFirstLock(t *testing.T) {
	t.Parallel()
	key, other := txlock.Named("first"), txlock.Named("other")
	for name, c := range map[string]struct {
		lock func(s *locktest.Scope) error
		want int
	}{
		"begins the transaction": {func(s *locktest.Scope) error { _, err := s.Lock(t.Context(), key); return err }, 0},
		"of several keys":        {func(s *locktest.Scope) error { _, err := s.LockAll(t.Context(), key, other); return err }, 1},
	} {
		memory := locktest.NewMemory()
		holder := memory.Begin()
		must(t, c.lock(holder))
		ended := make(chan error)
		for range 2 {
			scope := memory.Begin()
			go func() {
				_, err := scope.Lock(t.Context(), key)
				_ = scope.Rollback()
				ended <- err
			}()
		}
		must(t, memory.AwaitWaiting(t.Context(), key, 2))
		must(t, holder.Rollback())
		n := 0
		for range 2 {
			if errors.Is(<-ended, txlock.ErrDeadlock) {
				n++
			}
		}
		if n != c.want {
			t.Errorf("a first lock that %s: %d deadlocks, want %d", name, n, c.want)
		}
	}
}

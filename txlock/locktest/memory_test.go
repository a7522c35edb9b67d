package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestWaitAtMostByTheMovedClock ends a wait by moving the clock, and not before.
func TestWaitAtMostByTheMovedClock(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), orders.Key(7)
	holder, waiter := memory.Begin(), memory.Begin()
	_, err := holder.Lock(t.Context(), key)
	must(t, err)
	answered := make(chan error)
	go func() {
		_, err := waiter.WaitAtMost(time.Minute).Lock(t.Context(), key)
		answered <- err
	}()
	must(t, waiter.AwaitWaiting(t.Context()))
	memory.Advance(time.Minute - 1)
	select {
	case err := <-answered:
		t.Fatalf("the wait has ended too early: %v", err)
	default:
	}
	memory.Advance(1)
	wants(t, "Lock", <-answered, txlock.ErrWaitTimeout)
	wants(t, "Verify", waiter.Verify(t.Context()), nil)
	must(t, holder.Commit())
	_, err = waiter.Lock(t.Context(), key)
	must(t, err)
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

// TestLeaseExpires moves the clock past the TTL of a lease: its holder has lost it, and
// who waits is next.
func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), txlock.Named("job")
	m, err := memory.Manager(lease.TTL(time.Minute))
	must(t, err)
	l, err := m.Acquire(t.Context(), key)
	must(t, err)
	working, cancel := l.Context(t.Context())
	defer cancel()
	next := make(chan *locktest.Lease)
	go func() {
		l, err := m.Acquire(t.Context(), key)
		if err != nil {
			t.Error(err)
		}
		next <- l
	}()
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	memory.Advance(40 * time.Second)
	must(t, l.Renew(t.Context()))
	memory.Advance(time.Minute - 1)
	must(t, l.Err())
	if left := l.Left(); left != 1 {
		t.Errorf("%v are left", left)
	}
	memory.Advance(1)
	wants(t, "Err", l.Err(), txlock.ErrLost)
	wants(t, "the cause", context.Cause(working), txlock.ErrLost)
	<-l.Done()
	wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
	wants(t, "Guard", l.Guard(t.Context(), nil), txlock.ErrLost)
	second := <-next
	if second.Token() <= l.Token() {
		t.Errorf("token %d after %d", second.Token(), l.Token())
	}
	wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	wants(t, "Release again", l.Release(t.Context()), nil)
	must(t, second.Err())
	must(t, second.Release(t.Context()))
}

// TestMaxLifetime ends a lease that is renewed.
func TestMaxLifetime(t *testing.T) {
	t.Parallel()
	memory := locktest.NewMemory()
	m, err := memory.Manager()
	must(t, err)
	l, err := m.Acquire(t.Context(), txlock.Named("job"), lease.TTL(time.Minute), lease.MaxLifetime(90*time.Second))
	must(t, err)
	memory.Advance(50 * time.Second)
	must(t, l.Renew(t.Context()))
	memory.Advance(39 * time.Second)
	must(t, l.Err())
	memory.Advance(time.Second)
	wants(t, "Err", l.Err(), txlock.ErrLost)
}

// TestStandInsMistakes says what can't be.
func TestStandInsMistakes(t *testing.T) {
	t.Parallel()
	_, err := locktest.NewMemory().Manager(lease.TTL(-1))
	wants(t, "Manager", err, txlock.ErrInvalidOption)
	defer func() {
		if said, ok := recover().(string); !ok || said == "" {
			t.Error("Advance of a memory in real time says nothing")
		}
	}()
	locktest.NewRealTimeMemory().Advance(time.Second)
}

// TestForceReleaseAndClose take leases away.
func TestForceReleaseAndClose(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), txlock.Named("job")
	m, err := memory.Manager()
	must(t, err)
	other, err := memory.Manager()
	must(t, err)
	wants(t, "ForceRelease of a free lease", m.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
	l, err := m.Acquire(t.Context(), key)
	must(t, err)
	must(t, other.ForceRelease(t.Context(), key))
	wants(t, "Err", l.Err(), txlock.ErrLost)
	l, err = m.Acquire(t.Context(), key)
	must(t, err)
	failed := make(chan error)
	go func() { _, err := other.Acquire(t.Context(), key); failed <- err }()
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	must(t, other.Close(t.Context()))
	wants(t, "Acquire", <-failed, lease.ErrClosed)
	must(t, l.Err())
	must(t, m.Close(t.Context()))
	wants(t, "Err", l.Err(), txlock.ErrNotHeld)
	if _, err := m.TryAcquire(t.Context(), key); !errors.Is(err, lease.ErrClosed) {
		t.Errorf("TryAcquire of a closed manager: %v", err)
	}
}

// TestReadersExpire lets a reader that is dead keep a writer out for its own time only,
// and serves who waits behind in order.
func TestReadersExpire(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), txlock.Named("report")
	m, err := memory.Manager(lease.TTL(time.Minute))
	must(t, err)
	dead, err := m.AcquireShared(t.Context(), key)
	must(t, err)
	alive, err := m.AcquireShared(t.Context(), key, lease.TTL(time.Hour))
	must(t, err)
	wrote, read := make(chan *locktest.Lease), make(chan *locktest.Lease)
	acquire := func(call func(context.Context, txlock.Key, ...lease.AcquireOption) (*locktest.Lease, error), into chan *locktest.Lease) {
		l, err := call(t.Context(), key)
		if err != nil {
			t.Error(err)
		}
		into <- l
	}
	go acquire(m.Acquire, wrote)
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	for range 2 {
		go acquire(m.AcquireShared, read)
	}
	must(t, memory.AwaitWaiting(t.Context(), key, 3))
	must(t, alive.Release(t.Context()))
	memory.Advance(time.Minute - 1)
	must(t, dead.Err())
	memory.Advance(1)
	wants(t, "a dead reader", dead.Err(), txlock.ErrLost)
	writer := <-wrote
	wants(t, "readers who wait", memory.AwaitWaiting(t.Context(), key, 2), nil)
	reader, err := writer.Downgrade(t.Context()) // and now the others read, too
	must(t, err)
	for _, l := range []*locktest.Lease{<-read, <-read, reader} {
		if !l.Shared() || !l.Valid() {
			t.Errorf("shared %t, %v", l.Shared(), l.Err())
		}
		must(t, l.Release(t.Context()))
	}
}

// TestWhoWaitsBehindGoesOn grants a reader when the writer before it gives up.
func TestWhoWaitsBehindGoesOn(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), txlock.Named("report")
	m, err := memory.Manager()
	must(t, err)
	first, err := m.AcquireShared(t.Context(), key, lease.TTL(time.Hour))
	must(t, err)
	gaveUp, read := make(chan error), make(chan error)
	go func() { _, err := m.Acquire(t.Context(), key, lease.WaitAtMost(time.Minute)); gaveUp <- err }()
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	go func() { _, err := m.AcquireShared(t.Context(), key); read <- err }()
	must(t, memory.AwaitWaiting(t.Context(), key, 2))
	memory.Advance(time.Minute)
	wants(t, "the writer", <-gaveUp, txlock.ErrWaitTimeout)
	must(t, <-read)
	must(t, first.Err())
	must(t, m.Close(t.Context()))
}

// TestResizeByTheMovedClock waits for permits that are too many, and sends away who waits
// for a permit of before.
func TestResizeByTheMovedClock(t *testing.T) {
	t.Parallel()
	memory, key := locktest.NewMemory(), txlock.Named("mail")
	m, err := memory.Manager(lease.TTL(time.Minute))
	must(t, err)
	s, err := m.Semaphore(key, 2)
	must(t, err)
	for range 2 {
		_, err = s.Acquire(t.Context())
		must(t, err)
	}
	sent := make(chan error)
	go func() { _, err := s.Acquire(t.Context()); sent <- err }()
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	resized := make(chan *locktest.Semaphore)
	go func() {
		smaller, err := s.Resize(t.Context(), 1)
		if err != nil {
			t.Error(err)
		}
		resized <- smaller
	}()
	wants(t, "a wait for a permit of two", <-sent, txlock.ErrInvalidOption)
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	select {
	case <-resized:
		t.Fatal("resized under what is held")
	default:
	}
	memory.Advance(time.Minute)
	smaller := <-resized
	_, err = smaller.TryAcquire(t.Context())
	must(t, err)
	_, err = smaller.TryAcquire(t.Context())
	wants(t, "a second of one", err, txlock.ErrBusy)
	_, err = s.TryAcquire(t.Context())
	wants(t, "the old number", err, txlock.ErrInvalidOption)
}

// TestGuards counts the transactions that a lease in memory has guarded.
func TestGuards(t *testing.T) {
	t.Parallel()
	tx := new(sql.Tx) // the stand-in only sees that there is one
	memory := locktest.NewMemory()
	manager, err := memory.Manager(lease.TTL(time.Minute))
	must(t, err)
	for _, acquire := range []func(context.Context, txlock.Key, ...lease.AcquireOption) (*locktest.Lease, error){manager.Acquire, manager.AcquireShared} {
		l, err := acquire(t.Context(), orders.Key(7))
		must(t, err)
		must(t, l.Guard(t.Context(), tx))
		must(t, l.Guard(t.Context(), tx, txlock.NothingRead()))
		wants(t, "Guard of no transaction", l.Guard(t.Context(), nil), txlock.ErrNoTransaction)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "Guard under an ended context", l.Guard(ended, tx), context.Canceled)
		wants(t, "Renew under an ended context", l.Renew(ended), context.Canceled)
		memory.Advance(time.Minute)
		wants(t, "Guard of what is lost", l.Guard(t.Context(), tx), txlock.ErrLost)
		if n := l.Guards(); n != 2 {
			t.Errorf("%d guards", n)
		}
		working, cancel := l.Context(t.Context())
		defer cancel()
		wants(t, "a context of what is lost", context.Cause(working), txlock.ErrLost)
		if left := l.Left(); left != 0 {
			t.Errorf("%v are left of what is lost", left)
		}
	}
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

// TestRealTimeInABubble lets the time of a bubble pass in place of Advance.
func TestRealTimeInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, key := locktest.NewRealTimeMemory(), txlock.Named("job")
		m, err := memory.Manager(lease.TTL(time.Hour))
		must(t, err)
		l, err := m.Acquire(t.Context(), key)
		must(t, err)
		began := time.Now()
		_, err = m.Acquire(t.Context(), key, lease.WaitAtMost(time.Minute))
		wants(t, "Acquire", err, txlock.ErrWaitTimeout)
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("waited for %v", waited)
		}
		next, err := m.Acquire(t.Context(), key)
		must(t, err)
		if waited := time.Since(began); waited != time.Hour {
			t.Errorf("granted after %v", waited)
		}
		wants(t, "Err", l.Err(), txlock.ErrLost)
		must(t, next.Release(t.Context()))
	})
}

// TestManyWait: who looks for a deadlock looks at each who waits once.
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

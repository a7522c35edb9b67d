package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReadersAndWriter proves that readers share the lease, that a writer waits until the
// last of them has gone, is shown as a waiter so long, and that it is there at once then.
func TestReadersAndWriter(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		for i, m := range []*lease.Manager{a, a, b} {
			l := share(t, m, job)
			time.AfterFunc(time.Duration(i+1)*time.Second, func() { release(t, l) })
		}
		db.at("three readers", 0)
		wants(t, "TryAcquire", testdb.Err(b.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		shown := func(want lease.Kind, held bool) {
			all, err := a.List(t.Context())
			info, err2 := a.Inspect(t.Context(), job)
			if err = errors.Join(err, err2); err != nil || info.Kind != want || info.Held != held || all[0].Kind != want || all[0].Held != held {
				t.Errorf("the writer is shown as %+v, and listed as %+v, %v", info, all, err)
			}
		}
		time.AfterFunc(1500*time.Millisecond, func() { shown(lease.Waiter, false) })
		writer := acquire(t, b, job)
		shown(lease.Exclusive, true)
		db.within("the writer", 3*time.Second, 3*time.Second+30*time.Millisecond)
		wants(t, "TryAcquireShared", testdb.Err(a.TryAcquireShared(t.Context(), job)), txlock.ErrBusy)
		time.AfterFunc(time.Second, func() { release(t, writer) })
		release(t, share(t, b, job)) // in the same manager it is woken
		db.within("the reader", 4*time.Second, 4*time.Second+30*time.Millisecond)
		nothingHeld(t, a)
	})
}

// TestForceReleaseBesideAWriter releases the readers of a key for which a writer waits, by the manager's
// verb, and by what a tool was shown of the writer's row: it has the lease only if the row is still its own.
func TestForceReleaseBesideAWriter(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b, tools := db.manager(), db.manager(), lease.Internal(bridge.Pass{})
		for _, shown := range []bool{false, true} {
			reader := share(t, a, job)
			time.AfterFunc(time.Second, func() {
				wants(t, "ForceRelease of the waiter", a.ForceRelease(t.Context(), job, 0), txlock.ErrNotHeld)
				if shown {
					info := testdb.Got(a.Inspect(t.Context(), job))(t)
					must(t, testdb.Err(tools.ForceRelease(t.Context(), a, job, map[int64]uint64{0: info.Token})))
				}
				must(t, a.ForceRelease(t.Context(), job))
			})
			writer := acquire(t, b, job)
			wants(t, "TryAcquire beside the writer", testdb.Err(a.TryAcquire(t.Context(), job)), txlock.ErrBusy)
			must(t, writer.Renew(t.Context()))
			release(t, writer)
			_ = reader.Release(t.Context()) // it was taken
		}
		kept := acquire(t, a, job, lease.HoldAtLeast(time.Minute))
		reader := testdb.Got(kept.Downgrade(t.Context()))(t)
		info, err := b.Inspect(t.Context(), job)
		testdb.ErrorIf(t, err != nil || info.Kind != lease.Exclusive || !info.Held, "a lease that is kept beside its owner's reader is %+v, %v", info, err)
		release(t, reader)
	})
}

// TestReadersAfterWritersTTL proves that a reader that never leaves, and a writer that
// waits for it, keep other readers out for as long as the writer's TTL at a time;
// and that the writer gets the lease when those that it has found are gone.
func TestReadersAfterWritersTTL(t *testing.T) {
	for name, c := range map[string]struct {
		same    bool // the readers are of the writer's manager
		options []lease.AcquireOption
	}{"poll": {}, "fair": {options: []lease.AcquireOption{lease.Fair()}}, "same manager": {same: true}} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			a, b := db.manager(lease.Poll(time.Millisecond, 100*time.Millisecond)), db.manager()
			if c.same {
				b = a
			}
			old := share(t, a, job)
			writer := later(func() error {
				return acquired(b.Acquire(t.Context(), job, append(c.options, lease.TTL(2*time.Second))...))
			})
			synctest.Wait()
			wants(t, "a reader behind the writer", testdb.Err(a.TryAcquireShared(t.Context(), job)), txlock.ErrBusy)
			for n := range 3 { // again each time
				reader := share(t, a, job)
				least := time.Duration(n+1) * 2 * time.Second
				db.within("a reader is let in", least, least+time.Duration(n+1)*300*time.Millisecond)
				release(t, reader)
				time.Sleep(time.Second)
			}
			db.after(10 * time.Second)
			release(t, old)
			must(t, <-writer)
			db.within("the writer", 10*time.Second, 10*time.Second+300*time.Millisecond)
		})
	}
}

// TestWriterWhoDrainsIsNotEntered proves that nobody re-enters a writer's lease as long as
// that waits for readers, and that the wait ends where the writer gives up, after which
// readers come at once.
func TestWriterWhoDrainsIsNotEntered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		reader := share(t, a, job)
		reading := contextOf(t, reader)
		ctx, cancel := context.WithTimeout(lease.WithOwner(t.Context(), "me"), 5*time.Second)
		defer cancel()
		gives := later(func() error { return acquired(b.Acquire(ctx, job)) })
		synctest.Wait()
		wants(t, "the same owner", testdb.Err(b.TryAcquire(ctx, job)), txlock.ErrBusy)
		must(t, acquired(a.AcquireShared(reading, job))) // who reads already
		wants(t, "the writer", <-gives, context.DeadlineExceeded)
		db.at("the writer gives up", 5*time.Second)
		synctest.Wait()
		must(t, acquired(a.TryAcquireShared(t.Context(), job)))
		release(t, reader)

		// The limit of a wait, too.
		reader = share(t, a, job)
		wants(t, "the limit", testdb.Err(b.Acquire(t.Context(), job, lease.WaitAtMost(time.Second))), txlock.ErrWaitTimeout)
		db.at("the limit", 6*time.Second)
		synctest.Wait() // it is released in the background
		release(t, reader)

		named := lease.WithOwner(t.Context(), "me") // the lease of a reader that has waited is re-entered
		reader = share(t, a, job)
		time.AfterFunc(time.Second, func() { release(t, reader) })
		writer := acquireIn(named, t, b, job)
		must(t, acquired(b.TryAcquire(named, job)))
		release(t, writer)
		nothingHeld(t, a)
	})
}

// TestPlacesOfReadersAreUsedAgain proves that the readers of a manager use as many rows as
// there are at a time, also after a call without an answer, after a Downgrade to what the owner
// reads by already, and after a release while a transaction guards it.
func TestPlacesOfReadersAreUsedAgain(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		slots := make(map[int64]bool)
		read := func(n int) {
			all := several(n, func(int) *lease.Lease { return share(t, m, job) })
			found := list(t, m)
			for _, info := range found {
				slots[info.Slot] = true
			}
			release(t, all...)
		}
		read(3)
		read(3)
		testdb.Equal(t, "rows of 3 readers", len(slots), 3)
		ann := lease.WithOwner(t.Context(), "ann")
		for range 5 {
			var readers []*lease.Lease
			for _, writer := range []*lease.Lease{acquireIn(ann, t, m, job), acquireIn(ann, t, m, job)} {
				reader := got(writer.Downgrade(ann))(t)
				readers = append(readers, reader)
			}
			entered(t, readers[1], readers[0])
			release(t, readers[0], readers[1])
			guarded, tx := share(t, m, job), wire.Begin()
			must(t, guarded.Guard(t.Context(), tx))
			wants(t, "Release under a guard", guarded.Release(t.Context()), lease.ErrGuarded)
			must(t, tx.Commit())
			time.Sleep(time.Second) // it is released in the background
		}
		nothingHeld(t, m)
		read(3)
		testdb.Equal(t, "rows of 3 readers after those of one owner", len(slots), 3)
		wire.fault("Take", loses)
		_, err := m.AcquireShared(t.Context(), job)
		testdb.ErrorIf(t, err == nil, "no error")
		wire.Up()
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
		read(3)
		testdb.Equal(t, "rows of 3 readers", len(slots), 3)
	})
}

// TestKeysOfSemaphores proves that a key is that of a lease or of a semaphore of one number, and
// that who wants the other is refused by an error that names both numbers, and keeps nobody out.
func TestKeysOfSemaphores(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		three, more := semaphore(t, m, job, 3), semaphore(t, db.manager(), job, 17)
		held := acquire(t, m, job)
		wants(t, "TryAcquire beside a lease", testdb.Err(three.TryAcquire(t.Context())), txlock.ErrInvalidKey)
		wants(t, "Acquire beside a lease", testdb.Err(three.Acquire(t.Context())), txlock.ErrInvalidKey)
		must(t, held.Renew(t.Context()))
		release(t, held)

		refused := func(s *lease.Semaphore, says string) {
			t.Helper()
			for _, acquire := range []func(context.Context, ...lease.AcquireOption) (*lease.Lease, error){s.Acquire, s.TryAcquire} {
				_, err := acquire(t.Context())
				wants(t, says, err, txlock.ErrInvalidOption)
				testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), says), "%v, want %s", err, says)
			}
		}
		held = permit(t, three)
		refused(more, "has 3 permits, not 17")
		must(t, testdb.Err(three.Resize(limited(t, time.Minute), 17))) // which waits for none
		refused(three, "has 17 permits, not 3")
		release(t, held)
		wants(t, "TryAcquire of the lease", testdb.Err(m.TryAcquire(t.Context(), job)), txlock.ErrInvalidKey)
		wants(t, "TryAcquireShared", testdb.Err(m.TryAcquireShared(t.Context(), job)), txlock.ErrInvalidKey)
		tx := wire.Begin()
		wants(t, "AcquireTx", testdb.Err(m.AcquireTx(t.Context(), tx, job)), txlock.ErrInvalidKey)
		beside := testdb.Got(more.TryAcquire(t.Context()))(t) // the transaction is open
		release(t, beside)
		must(t, tx.Rollback())

		for _, n := range []int{0, -1, lease.MaxPermits + 1} {
			wants(t, fmt.Sprintf("Semaphore of %d", n), testdb.Err(m.Semaphore(job, n)), txlock.ErrInvalidOption)
			wants(t, fmt.Sprintf("Resize to %d", n), testdb.Err(more.Resize(t.Context(), n)), txlock.ErrInvalidOption)
		}
		wants(t, "Semaphore of no key", testdb.Err(m.Semaphore(txlock.Key{}, 3)), txlock.ErrInvalidKey)
		shared := txlock.Named("shared")
		release(t, share(t, m, shared))
		wants(t, "a permit of a shared lease", testdb.Err(semaphore(t, m, shared, 3).TryAcquire(t.Context())), txlock.ErrInvalidKey)
		for _, key := range []txlock.Key{txlock.Named("unused"), shared} {
			before, _ := db.Rows()
			wants(t, "Resize of no semaphore", testdb.Err(semaphore(t, m, key, 3).Resize(t.Context(), 4)), txlock.ErrInvalidKey)
			after, _ := db.Rows()
			testdb.ErrorIf(t, len(after) != len(before), "%d rows, %d before", len(after), len(before))
		}
	})
}

// TestResizeWaitsForPermits proves that a Resize to fewer waits for those that are too
// many, or until its context ends, that nobody comes in beyond the new number meanwhile, that
// waiters of the old number are told, however they wait, and that a Resize to more lets waiters
// of the new number in at once.
func TestResizeWaitsForPermits(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		s := semaphore(t, m, job, 3)
		held := several(3, func(int) *lease.Lease { return permit(t, s) })
		var told []chan error
		for _, s := range []*lease.Semaphore{s, s, semaphore(t, other, job, 3), semaphore(t, db.manager(), job, 3)} {
			for _, options := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
				told = append(told, later(func() error { return testdb.Err(s.Acquire(t.Context(), options...)) }))
			}
		}
		synctest.Wait()
		fewer, err := s.Resize(limited(t, 2*time.Second), 1)
		db.at("Resize that is ended", 2*time.Second)
		wants(t, "Resize", err, context.DeadlineExceeded)
		testdb.FatalIf(t, fewer == nil, "the number holds already")
		for _, waiter := range told {
			wants(t, "a waiter of the old number", <-waiter, txlock.ErrInvalidOption)
		}
		wants(t, "a second permit", testdb.Err(semaphore(t, other, job, 1).TryAcquire(t.Context())), txlock.ErrBusy)
		released := make(chan error)
		time.AfterFunc(3*time.Second, func() { released <- errors.Join(held[1].Release(t.Context()), held[2].Release(t.Context())) })
		must(t, testdb.Err(fewer.Resize(t.Context(), 1)))
		must(t, <-released)
		db.within("Resize", 5*time.Second, 5*time.Second+30*time.Millisecond)
		must(t, held[0].Renew(t.Context()))
		wants(t, "a second permit", testdb.Err(fewer.TryAcquire(t.Context())), txlock.ErrBusy)
		more := testdb.Got(fewer.Resize(t.Context(), 2))(t)
		must(t, acquired(more.TryAcquire(t.Context())))
		release(t, held[0])
	})
}

// TestResizeWaitsForThoseOfBefore proves that Resize waits for what an earlier one has
// given up to wait for, and not for what another has made a permit again.
func TestResizeWaitsForThoseOfBefore(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		s := semaphore(t, m, job, 4)
		held := several(4, func(int) *lease.Lease { return permit(t, s) })
		wants(t, "Resize that is given up", testdb.Err(s.Resize(limited(t, time.Second), 2)), context.DeadlineExceeded)
		again := later(func() error { return testdb.Err(s.Resize(limited(t, time.Minute), 1)) })
		synctest.Wait()
		must(t, m.ForceRelease(t.Context(), job, 2)) // the only one that the second has taken away
		time.Sleep(time.Second)
		select {
		case err := <-again:
			t.Errorf("Resize has returned while three permits are held: %v", err)
		default:
		}
		must(t, testdb.Err(s.Resize(t.Context(), 4)))
		must(t, <-again)
		db.within("again", 2*time.Second, 3*time.Second)
		for _, l := range held {
			_ = l.Release(t.Context()) // one was taken away
		}
	})
}

// TestDrainDoesNotSpin proves that a writer that waits for a reader's guarded transaction
// sends no more than its looks, and that one who tries doesn't wait for it.
func TestDrainDoesNotSpin(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		reading, guards := db.process()
		m, wire := db.process()
		r := share(t, reading, job, lease.TTL(3*time.Second))
		tx := guards.guarding(t, r)
		db.after(3*time.Second + time.Millisecond) // its time is over by the server's clock, too
		wants(t, "TryAcquire", testdb.Err(m.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		db.within("TryAcquire", 3*time.Second, 3*time.Second+100*time.Millisecond)
		before := wire.total()
		wants(t, "Acquire", testdb.Err(m.Acquire(t.Context(), job, lease.WaitAtMost(time.Second))), txlock.ErrWaitTimeout)
		n := wire.total() - before
		testdb.ErrorIf(t, n < 50 || n > 250, "%d statements in a second", n)
		must(t, tx.Rollback())
		wants(t, "Release", r.Release(t.Context()), txlock.ErrNotHeld)
	})
}

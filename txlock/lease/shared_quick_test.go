package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReadersAndWriter proves that readers share the lease, that a writer waits until the
// last of them has gone, and that it is there at once then.
func TestReadersAndWriter(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		for i, m := range []*lease.Manager{a, a, b} {
			l := share(t, m, job)
			time.AfterFunc(time.Duration(i+1)*time.Second, func() { release(t, l) })
		}
		db.at("three readers", 0)
		wants(t, "TryAcquire", second(b.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		writer := acquire(t, b, job)
		db.within("the writer", 3*time.Second, 3*time.Second+30*time.Millisecond)
		wants(t, "TryAcquireShared", second(a.TryAcquireShared(t.Context(), job)), txlock.ErrBusy)
		time.AfterFunc(time.Second, func() { release(t, writer) })
		release(t, share(t, b, job)) // in the same manager it is woken
		db.within("the reader", 4*time.Second, 4*time.Second+30*time.Millisecond)
		nothingHeld(t, a)
	})
}

// TestTryLeavesReadersAlone proves that a TryAcquire which finds readers holds nothing
// afterwards, so that more of them may come.
func TestTryLeavesReadersAlone(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		first := share(t, a, job)
		for range 10 {
			wants(t, "TryAcquire", second(b.TryAcquire(t.Context(), job)), txlock.ErrBusy)
			second, err := a.TryAcquireShared(t.Context(), job)
			must(t, err)
			release(t, second)
		}
		release(t, first)
		db.at("all", 0)
		release(t, acquire(t, b, job))
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
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, db *memory) {
				a, b := db.manager(lease.Poll(time.Millisecond, 100*time.Millisecond)), db.manager()
				if c.same {
					b = a
				}
				old := share(t, a, job)
				l := crowd{db: db}
				l.join(t.Context(), "writer", 0, func(ctx context.Context) (*lease.Lease, error) {
					return b.Acquire(ctx, job, append(c.options, lease.TTL(2*time.Second))...)
				})
				wants(t, "a reader behind the writer", second(a.TryAcquireShared(t.Context(), job)), txlock.ErrBusy)
				for n := range 3 { // again each time
					reader := share(t, a, job)
					least := time.Duration(n+1) * 2 * time.Second
					db.within("a reader is let in", least, least+time.Duration(n+1)*300*time.Millisecond)
					release(t, reader)
					time.Sleep(time.Second)
				}
				db.after(10 * time.Second)
				release(t, old)
				l.all.Wait()
				db.within("the writer", 10*time.Second, 10*time.Second+300*time.Millisecond)
			})
		})
	}
}

// TestDeadReaderIsPassed proves that a writer waits for a reader that is dead until its
// time is over, and no longer.
func TestDeadReaderIsPassed(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		dead, wire := db.process()
		share(t, dead, job, lease.TTL(3*time.Second))
		wire.Down(nil)
		m := db.manager()
		wants(t, "TryAcquire", second(m.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		writer := acquire(t, m, job)
		db.within("the writer", 3*time.Second, 3*time.Second+30*time.Millisecond)
		release(t, writer)

		share(t, db.manager(), job)
		wire.Up()
		time.Sleep(time.Minute)
	})
	t.Run("without waiting", func(t *testing.T) {
		inMemory(t, func(t *testing.T, db *memory) {
			dead, wire := db.process()
			share(t, dead, job, lease.TTL(3*time.Second))
			wire.Down(nil)
			defer wire.Up()
			db.after(4 * time.Second)
			l, err := db.manager().TryAcquire(t.Context(), job)
			must(t, err)
			release(t, l)
		})
	})
}

// TestWriterWhoDrainsIsNotEntered proves that nobody re-enters a writer's lease as long as
// that waits for readers, and that the wait ends where the writer gives up, after which
// readers come at once.
func TestWriterWhoDrainsIsNotEntered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		reader := share(t, a, job)
		ctx, cancel := context.WithTimeout(lease.WithOwner(t.Context(), "me"), 5*time.Second)
		defer cancel()
		l := crowd{db: db}
		l.join(ctx, "writer", 0, func(ctx context.Context) (*lease.Lease, error) { return b.Acquire(ctx, job) })
		wants(t, "the same owner", second(b.TryAcquire(ctx, job)), txlock.ErrBusy)
		l.all.Wait()
		db.at("the writer gives up", 5*time.Second)
		synctest.Wait()
		another, err := a.TryAcquireShared(t.Context(), job)
		must(t, err)
		release(t, another)
		release(t, reader)

		// The limit of a wait, too.
		reader = share(t, a, job)
		wants(t, "the limit", second(b.Acquire(t.Context(), job, lease.WaitAtMost(time.Second))), txlock.ErrWaitTimeout)
		db.at("the limit", 6*time.Second)
		synctest.Wait() // it is released in the background
		release(t, reader)

		named := lease.WithOwner(t.Context(), "me") // the lease of a reader that has waited is re-entered
		reader = share(t, a, job)
		time.AfterFunc(time.Second, func() { release(t, reader) })
		writer := acquireIn(named, t, b, job)
		again, err := b.TryAcquire(named, job)
		must(t, err)
		release(t, again)
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
			var all []*lease.Lease
			for range n {
				all = append(all, share(t, m, job))
			}
			found, err := m.List(t.Context())
			must(t, err)
			for _, info := range found {
				slots[info.Slot] = true
			}
			for _, l := range all {
				release(t, l)
			}
		}
		read(3)
		read(3)
		if len(slots) != 3 {
			t.Errorf("%d rows of 3 readers", len(slots))
		}
		ann := lease.WithOwner(t.Context(), "ann")
		for range 5 {
			var readers []*lease.Lease
			for _, writer := range []*lease.Lease{acquireIn(ann, t, m, job), acquireIn(ann, t, m, job)} {
				reader, err := writer.Downgrade(ann)
				must(t, err)
				readers = append(readers, reader)
			}
			entered(t, readers[1], readers[0])
			release(t, readers[0])
			release(t, readers[1])
			guarded, tx := share(t, m, job), wire.Begin()
			must(t, guarded.Guard(t.Context(), tx))
			wants(t, "Release under a guard", guarded.Release(t.Context()), lease.ErrGuarded)
			must(t, tx.Commit())
			time.Sleep(time.Second) // it is released in the background
		}
		nothingHeld(t, m)
		read(3)
		if len(slots) != 3 {
			t.Errorf("%d rows of 3 readers after those of one owner", len(slots))
		}
		wire.fault("Take", loses)
		if _, err := m.AcquireShared(t.Context(), job); err == nil {
			t.Error("no error")
		}
		wire.Up()
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
		read(3)
		if len(slots) != 3 {
			t.Errorf("%d rows of 3 readers", len(slots))
		}
	})
}

// TestSemaphoreGrantsItsNumber proves that no more permits are held than there are, and
// that a release lets the next one in.
func TestSemaphoreGrantsItsNumber(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		s := semaphore(t, a, job, 3)
		other := semaphore(t, b, job, 3)
		l := crowd{db: db}
		for i, name := range names(9, "") {
			l.join(t.Context(), name, time.Second, func(ctx context.Context) (*lease.Lease, error) {
				if i < 3 { // in both managers
					return other.Acquire(ctx)
				}
				return s.Acquire(ctx)
			})
		}
		wants(t, "TryAcquire", second(s.TryAcquire(t.Context())), txlock.ErrBusy)
		l.all.Wait()
		for i, when := range l.when {
			if least := time.Duration(i/3) * time.Second; when < least || when > least+800*time.Millisecond {
				t.Errorf("grants at %v", l.when)
				break
			}
		}
		wrong := semaphore(t, b, job, 4)
		wants(t, "another number", second(wrong.TryAcquire(t.Context())), txlock.ErrInvalidOption)
		wants(t, "a lease of the same key", second(b.TryAcquire(t.Context(), job)), txlock.ErrInvalidKey)
	})
}

// TestPermitsAreNotReentered proves that an owner who acquires twice has two permits.
func TestPermitsAreNotReentered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		s, err := db.manager().Semaphore(job, 2)
		must(t, err)
		ctx := lease.WithOwner(t.Context(), "me")
		must(t, s.Do(ctx, func(ctx context.Context, _ *lease.Lease) error {
			both, err := s.Acquire(ctx)
			must(t, err)
			wants(t, "a third", second(s.TryAcquire(ctx)), txlock.ErrBusy)
			return both.Release(ctx)
		}))
	})
}

// TestResizeWaitsForPermits proves that a Resize to fewer waits for those that are too
// many, or until its context ends, that waiters of the old number are told, and that a
// Resize to more lets waiters of the new number in at once.
func TestResizeWaitsForPermits(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		s := semaphore(t, m, job, 3)
		var held []*lease.Lease
		for range 3 {
			l := permit(t, s)
			held = append(held, l)
		}
		told := later(func() error { return second(s.Acquire(t.Context())) })
		synctest.Wait()
		ctx := limited(t, 2*time.Second)
		fewer, err := s.Resize(ctx, 1)
		db.at("Resize that is ended", 2*time.Second)
		if wants(t, "Resize", err, context.DeadlineExceeded); fewer == nil {
			t.Fatal("the number holds already")
		}
		wants(t, "a waiter of the old number", <-told, txlock.ErrInvalidOption)
		released := make(chan error)
		time.AfterFunc(3*time.Second, func() { released <- errors.Join(held[1].Release(t.Context()), held[2].Release(t.Context())) })
		must(t, second(fewer.Resize(t.Context(), 1)))
		must(t, <-released)
		db.within("Resize", 5*time.Second, 5*time.Second+30*time.Millisecond)
		wants(t, "a second permit", second(fewer.TryAcquire(t.Context())), txlock.ErrBusy)
		more, err := fewer.Resize(t.Context(), 2)
		must(t, err)
		l, err := more.TryAcquire(t.Context())
		must(t, err)
		release(t, l)
		release(t, held[0])
	})
}

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReentryInMemory proves who re-enters a lease: a caller with the context of its handle, in the same
// manager without a statement, and the owner who is named; and that it is released with
// the last handle.
func TestReentryInMemory(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		must(t, m.Do(t.Context(), job, func(ctx context.Context, l *lease.Lease) error {
			before := wire.total()
			again := acquireIn(ctx, t, m, job)
			try := mustLease(t)(m.TryAcquire(ctx, job))
			shared := mustLease(t)(m.AcquireShared(ctx, job))
			if wire.total() != before {
				t.Error("a statement was sent")
			}
			for _, l2 := range []*lease.Lease{again, try, shared} {
				if l2.Token() != l.Token() || l2.Owner() != l.Owner() {
					t.Errorf("token %d of %s, want %d of %s", l2.Token(), l2.Owner(), l.Token(), l.Owner())
				}
				release(t, l2)
				wants(t, "released", l2.Err(), txlock.ErrNotHeld)
			}
			must(t, l.Err())

			elsewhere := acquireIn(ctx, t, other, job)
			entered(t, elsewhere, l)
			release(t, elsewhere)
			wants(t, "somebody else", second(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
			return nil
		}))
		nothingHeld(t, m)
		db.at("all", 0)
	})
}

// acquireIn is acquire under a context.
func acquireIn(ctx context.Context, t testing.TB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	return mustLease(t)(m.Acquire(ctx, key, options...))
}

// TestReentryOfANamedOwner proves that an owner who is named re-enters its lease in any
// manager, and holds it until all of them have released it.
func TestReentryOfANamedOwner(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		ctx := lease.WithOwner(t.Context(), "me")
		first, again := acquireIn(ctx, t, a, job), acquireIn(ctx, t, a, job)
		third := acquireIn(ctx, t, b, job)
		if first.Token() != third.Token() || first.Owner() != "me" {
			t.Errorf("tokens %d and %d of %q", first.Token(), third.Token(), first.Owner())
		}
		info := inspect(t, a, job)
		if info.Holders != 2 || info.Owner != "me" { // one for each manager
			t.Errorf("%+v", info)
		}
		for _, l := range []*lease.Lease{first, third} {
			release(t, l)
			wants(t, "somebody else", second(b.TryAcquire(lease.WithOwner(t.Context(), "you"), job)), txlock.ErrBusy)
		}
		time.Sleep(time.Minute)
		must(t, again.Err())
		release(t, again)
		release(t, acquireIn(lease.WithOwner(t.Context(), "you"), t, b, job))
	})
}

// TestContextOfALostLease proves that a caller with the context of a lease that is over asks as
// somebody else.
func TestContextOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, operator := db.manager(), db.manager()
		over := func(end func(l *lease.Lease)) *lease.Lease {
			l := acquire(t, m, job)
			ctx := contextOf(t, l)
			end(l)
			again, err := m.Acquire(lease.WithOwner(context.WithoutCancel(ctx), "me"), job) // the innermost counts
			must(t, err)
			release(t, again)
			again = mustLease(t)(m.Acquire(context.WithoutCancel(ctx), job))
			if again.Owner() == l.Owner() || again.Token() <= l.Token() {
				t.Errorf("owner %s token %d, after %s token %d", again.Owner(), again.Token(), l.Owner(), l.Token())
			}
			release(t, again)
			return l
		}
		over(func(l *lease.Lease) { release(t, l) })
		over(func(l *lease.Lease) {
			must(t, operator.ForceRelease(t.Context(), job))
			<-l.Done()
		})
		l := over(func(l *lease.Lease) { // and before the holder knows
			must(t, operator.ForceRelease(t.Context(), job))
			wants(t, "Renew", l.Renew(t.Context()), lease.ErrReplaced)
		})
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// TestAnotherDatabase proves that under the context of a lease a manager of another
// database acquires its own.
func TestAnotherDatabase(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		here, there := db.manager(), (&memory{memstore.New(), t, db.begun}).manager()
		must(t, here.Do(t.Context(), job, func(ctx context.Context, l *lease.Lease) error {
			other := acquireIn(ctx, t, there, job)
			if other.Owner() == l.Owner() {
				t.Errorf("both are of %s", l.Owner())
			}
			wants(t, "another goroutine", second(there.TryAcquire(ctx, job)), txlock.ErrBusy)
			release(t, other)
			return l.Err()
		}))
	})
}

// TestTakenOverMeanwhile proves that a caller with the context of a lease which another owner has
// taken over, and released, doesn't get that as its own.
func TestTakenOverMeanwhile(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		ctx := lease.WithOwner(t.Context(), "me")
		l := acquireIn(ctx, t, a, job)
		working := contextOf(t, l)
		must(t, b.ForceRelease(t.Context(), job))
		newer := acquireIn(ctx, t, b, job) // of the same name, and higher
		third := db.manager()
		other, err := third.TryAcquire(working, job)
		wants(t, "under the context of the first", err, txlock.ErrBusy)
		if other != nil {
			t.Errorf("token %d, the lease has %d, the context %d", other.Token(), newer.Token(), l.Token())
		}
		must(t, newer.Err())
		release(t, newer)
		nothingHeld(t, third)
	})
}

// TestUpgradeIsRefusedAtOnce proves that a reader is told at once that it can't become a writer,
// also where it reads by another manager, by the context of its lease and by its name, and while
// a writer waits for it.
func TestUpgradeIsRefusedAtOnce(t *testing.T) {
	for how, byName := range map[string]bool{"its context": false, "its name": true} {
		for _, waits := range []string{"nobody waits", "a writer waits here", "a writer waits elsewhere"} {
			runInMemory(t, how+", "+waits, func(t *testing.T, db *memory) {
				reading := db.manager()
				m, wire := db.process()
				outer := t.Context()
				if byName {
					outer = lease.WithOwner(outer, "me")
				}
				reader := mustLease(t)(reading.AcquireShared(outer, job))
				ctx := outer
				if !byName {
					var cancel context.CancelFunc
					ctx, cancel = reader.Context(outer)
					defer cancel()
				}
				writers := crowd{db: db}
				if by := map[string]*lease.Manager{"a writer waits here": m, "a writer waits elsewhere": db.manager()}[waits]; by != nil {
					writers.join(t.Context(), "writer", 0, func(ctx context.Context) (*lease.Lease, error) { return by.Acquire(ctx, job) })
				}
				for _, m := range []*lease.Manager{reading, m} {
					for _, options := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
						wants(t, "Acquire", second(m.Acquire(ctx, job, options...)), txlock.ErrUpgrade)
						wants(t, "AcquireTx", second(m.AcquireTx(ctx, wire.Begin(), job, options...)), txlock.ErrUpgrade)
						if err := second(m.TryAcquire(ctx, job, options...)); waits == "nobody waits" || !errors.Is(err, txlock.ErrBusy) { // it waits for nobody
							wants(t, "TryAcquire", err, txlock.ErrUpgrade)
						}
					}
				}
				db.within("all", 0, time.Second)
				wants(t, "another name", second(m.TryAcquire(lease.WithOwner(outer, "somebody else"), job)), txlock.ErrBusy)
				must(t, reader.Err())
				release(t, reader)
				writers.all.Wait()
				release(t, acquireIn(outer, t, m, job))
			})
		}
	}
}

// TestWriterMeetsItsReader proves that an owner's writer doesn't wait for its own reader,
// which has come while it waited: whoever is first, both calls end.
func TestWriterMeetsItsReader(t *testing.T) {
	for how, options := range map[string][]lease.ManagerOption{"poll": nil, "fair": {lease.Fair()}} {
		for _, apart := range []bool{true, false} {
			for _, first := range []string{"reader", "writer"} {
				runInMemory(t, fmt.Sprintf("%s, apart %t, the %s first", how, apart, first), func(t *testing.T, db *memory) {
					writes, other := db.manager(options...), db.manager()
					reads := writes
					if apart {
						reads = db.manager(options...)
					}
					release(t, share(t, other, job)) // it is of readers
					holder := acquire(t, other, job)
					ctx := lease.WithOwner(limited(t, time.Minute), "me")
					var reader *lease.Lease
					calls := map[string]func() error{
						"reader": func() (err error) {
							reader, err = reads.AcquireShared(ctx, job)
							return err
						},
						"writer": func() error { return acquired(writes.Acquire(ctx, job)) },
					}
					ends := map[string]chan error{first: later(calls[first])}
					delete(calls, first)
					synctest.Wait()
					for who, call := range calls {
						ends[who] = later(call)
					}
					time.Sleep(time.Second)
					release(t, holder)
					must(t, <-ends["reader"])
					if err := <-ends["writer"]; err != nil {
						wants(t, "the writer", err, txlock.ErrUpgrade)
					}
					db.within("both", time.Second, 5*time.Second)
					release(t, reader)
				})
			}
		}
	}
}

// TestReaderReenters proves that a reader re-enters, and has a place in each manager.
func TestReaderReenters(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, wire := db.process()
		b := db.manager()
		ctx := lease.WithOwner(t.Context(), "me")
		first := mustLease(t)(a.AcquireShared(ctx, job))
		before := wire.total()
		second := mustLease(t)(a.AcquireShared(ctx, job))
		if second.Token() != first.Token() || wire.total() != before {
			t.Errorf("tokens %d and %d", first.Token(), second.Token())
		}
		third := mustLease(t)(b.AcquireShared(ctx, job))
		info := inspect(t, a, job)
		if len(info.Others) != 2 {
			t.Errorf("%+v", info)
		}
		release(t, first)
		must(t, errors.Join(second.Err(), third.Err()))
		release(t, second, third)
		nothingHeld(t, a)
	})
}

// TestOwnerWhoseAnswerIsLost proves that an owner whose second Acquire had no answer holds
// what it held before, and nothing more.
func TestOwnerWhoseAnswerIsLost(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager()
		b, wire := db.process()
		ctx := lease.WithOwner(t.Context(), "me")
		l := acquireIn(ctx, t, a, job)
		wire.fault("Take", times(1, loses))
		if _, err := b.Acquire(ctx, job); err == nil {
			t.Error("no error")
		}
		time.Sleep(3 * time.Second)
		info := inspect(t, a, job)
		if info.Holders != 1 {
			t.Errorf("%+v", info)
		}
		must(t, l.Renew(ctx))
		release(t, l)
		nothingHeld(t, a)
	})
}

// TestOwnerEntersWhileItWaits lets an owner wait for a lease which the same owner acquires
// then: in another manager, or in a transaction of its own one.
func TestOwnerEntersWhileItWaits(t *testing.T) {
	for _, inTransaction := range []bool{false, true} {
		runInMemory(t, map[bool]string{true: "in a transaction", false: "in another manager"}[inTransaction], func(t *testing.T, db *memory) {
			slow := lease.Poll(time.Minute, time.Minute)
			other, second := db.manager(), db.manager()
			waits, wire := db.process(slow)
			ann := lease.WithOwner(t.Context(), "ann")
			held := acquire(t, other, job)
			enters := later(func() error { return acquired(waits.Acquire(ann, job, lease.TTL(time.Hour))) })
			synctest.Wait()
			must(t, held.Release(t.Context()))
			var l *lease.Lease
			if inTransaction {
				tx := wire.Begin()
				l = mustLease(t)(waits.AcquireTx(ann, tx, job, lease.TTL(time.Hour)))
				must(t, tx.Commit())
			} else {
				l = mustLease(t)(second.TryAcquire(ann, job, lease.TTL(time.Hour)))
			}
			must(t, <-enters)
			db.within("the owner has entered", 0, 2*time.Minute)
			must(t, l.Release(t.Context()))
		})
	}
}

// TestExpiredLeaseIsNotEntered proves that an owner doesn't enter its own lease whose time is
// over, also where no timer has said so yet: it acquires it anew.
func TestExpiredLeaseIsNotEntered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		owned := lease.WithOwner(t.Context(), "me")
		old := acquireIn(owned, t, m, job)
		db.Skip(ttl + time.Second) // for the clocks, and not for the timers
		again := acquireIn(owned, t, m, job)
		if again.Err() != nil || again.Token() <= old.Token() {
			t.Errorf("token %d after %d, %v", again.Token(), old.Token(), again.Err())
		}
		wants(t, "the old handle", old.Err(), txlock.ErrLost)
		release(t, again)
	})
}

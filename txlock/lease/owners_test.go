package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// commits returns a verb that acquires in a transaction that commits.
func (w *wire) commits() verb {
	return func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
		tx := w.Begin()
		l, err := m.AcquireTx(ctx, tx, key, options...)
		if err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		return l, tx.Commit()
	}
}

// untilFree tries until it is not refused.
func (v verb) untilFree(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
	for {
		l, err := v(ctx, m, key, options...)
		if !errors.Is(err, txlock.ErrBusy) && !txlock.Retryable(err) || ctx.Err() != nil {
			return l, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestRestartUnderTheSameName proves that a program which was started again under the name
// of its owner takes the lease over from its former self, with a higher token, and has
// nothing left of that to release.
func TestRestartUnderTheSameName(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, key := newManager(t, pool), named()
		ctx := lease.WithOwner(t.Context(), "worker-7")
		before := acquireIn(ctx, t, m, key)
		// As another process has written it.
		exec(t, db, "UPDATE lockstep_leases SET holders = CONCAT(';12345678', RIGHT(holders, 14)) WHERE name = ? AND slot = 0", key.String())
		started := newManager(t, pool)
		l := mustLease(t)(started.TryAcquire(ctx, key))
		higher(t, l, before)
		again, err := newManager(t, pool).TryAcquire(ctx, key)
		if err != nil || again.Token() != l.Token() {
			t.Fatalf("in another manager of the process: %v", err)
		}
		wants(t, "Renew of the former", before.Renew(t.Context()), txlock.ErrLost)
		release(t, again, l)
		release(t, acquire(t, newManager(t, pool), key, lease.WaitAtMost(1)))
	})
}

// TestNameOfADeadReader proves that a program that was started again under its owner's name
// waits for the reader that it was, whose time will be over: that is no upgrade.
func TestNameOfADeadReader(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, key := newManager(t, pool), named()
		ctx := lease.WithOwner(t.Context(), "reader of "+key.String())
		release(t, share(t, m, key))
		readers(t, db, key, 1, ";of a process that is dead", "UNIX_TIMESTAMP() * 1000000 + 3600000000")
		exec(t, db, "UPDATE lockstep_leases SET owner = ? WHERE name = ? AND slot > 0", "reader of "+key.String(), key.String())
		wants(t, "TryAcquire", second(m.TryAcquire(ctx, key)), txlock.ErrBusy)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = UNIX_TIMESTAMP() * 1000000 + 1000000 WHERE name = ? AND slot > 0", key.String())
		l, err := m.Acquire(ctx, key)
		wantsNone(t, "Acquire", err)
		release(t, l)
	})
}

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

			another := acquireIn(ctx, t, m, txlock.Named("another")) // the context is the owner's for its key alone
			wants(t, "another key", second(m.TryAcquire(ctx, another.Key())), txlock.ErrBusy)
			release(t, another)

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

// TestOwnerEntersWhileItWaits proves that an owner who waits for a lease enters it when the same owner has acquired
// it in another manager.
func TestOwnerEntersWhileItWaits(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		held, other, waits := acquire(t, db.manager(), job), db.manager(), db.manager(lease.Poll(time.Minute, time.Minute))
		ann := lease.WithOwner(t.Context(), "ann")
		enters := later(func() error { return acquired(waits.Acquire(ann, job, lease.TTL(time.Hour))) })
		time.Sleep(time.Second)
		release(t, held)
		l := mustLease(t)(other.TryAcquire(ann, job, lease.TTL(time.Hour)))
		must(t, <-enters)
		db.within("the owner has entered", 0, 2*time.Minute)
		release(t, l)
	})
}

// TestRaiseToken proves that a lease goes on with the token that it was raised to, and that the next one is higher.
func TestRaiseToken(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		raised := l.Token() + 1_000_000_000_000
		for _, to := range []uint64{raised, raised - 1} {
			must(t, inner.RaiseToken(t.Context(), l, to))
			equal(t, "the token", l.Token(), raised)
			equal(t, "that of the row", leasetest.Got(wire.Stored(t.Context(), store.Row{Key: job.String()}))(t).Token, raised)
		}
		time.Sleep(2 * ttl)
		must(t, wire.guarding(t, l).Commit())
		release(t, l)
		next := acquire(t, m, job)
		higher(t, next, l)
		wants(t, "RaiseToken to a number that is no token", inner.RaiseToken(t.Context(), next, math.MaxUint64), txlock.ErrInvalidOption)
		release(t, next)
	})
}

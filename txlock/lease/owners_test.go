package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
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
		db.Exec(t, "UPDATE lockstep_leases SET holders = CONCAT(';12345678', RIGHT(holders, 14)) WHERE name = ? AND slot = 0", key.String())
		started := newManager(t, pool)
		l := got(started.TryAcquire(ctx, key))(t)
		higher(t, l, before)
		again, err := newManager(t, pool).TryAcquire(ctx, key)
		testdb.FatalIf(t, err != nil || again.Token() != l.Token(), "in another manager of the process: %v", err)
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
		db.Exec(t, "UPDATE lockstep_leases SET owner = ? WHERE name = ? AND slot > 0", "reader of "+key.String(), key.String())
		wants(t, "TryAcquire", testdb.Err(m.TryAcquire(ctx, key)), txlock.ErrBusy)
		db.Exec(t, "UPDATE lockstep_leases SET expires_us = UNIX_TIMESTAMP() * 1000000 + 1000000 WHERE name = ? AND slot > 0", key.String())
		l, err := m.Acquire(ctx, key)
		wants(t, "Acquire", err, nil)
		release(t, l)
	})
}

// TestReentryInMemory proves who re-enters a lease: a caller with the context of its handle, in the same
// manager without a statement, and the owner who is named; that it is released with the last
// handle; and that an owner who acquires twice has two permits.
func TestReentryInMemory(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		must(t, m.Do(t.Context(), job, func(ctx context.Context, l *lease.Lease) error {
			before := wire.total()
			again := acquireIn(ctx, t, m, job)
			try := got(m.TryAcquire(ctx, job))(t)
			shared := got(m.AcquireShared(ctx, job))(t)
			testdb.ErrorIf(t, wire.total() != before, "a statement was sent")
			for _, l2 := range []*lease.Lease{again, try, shared} {
				testdb.ErrorIf(t, l2.Token() != l.Token() || l2.Owner() != l.Owner(), "token %d of %s, want %d of %s", l2.Token(), l2.Owner(), l.Token(), l.Owner())
				release(t, l2)
				wants(t, "released", l2.Err(), txlock.ErrNotHeld)
			}
			must(t, l.Err())

			another := acquireIn(ctx, t, m, txlock.Named("another")) // the context is the owner's for its key alone
			wants(t, "another key", testdb.Err(m.TryAcquire(ctx, another.Key())), txlock.ErrBusy)
			release(t, another)

			elsewhere := acquireIn(ctx, t, other, job)
			entered(t, elsewhere, l)
			release(t, elsewhere)
			wants(t, "somebody else", testdb.Err(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
			return nil
		}))
		s := semaphore(t, m, txlock.Named("permits"), 2)
		must(t, s.Do(lease.WithOwner(t.Context(), "me"), func(ctx context.Context, _ *lease.Lease) error {
			both := got(s.Acquire(ctx))(t)
			wants(t, "a third", testdb.Err(s.TryAcquire(ctx)), txlock.ErrBusy)
			return both.Release(ctx)
		}))
		nothingHeld(t, m)
		db.at("all", 0)
	})
}

// acquireIn is acquire under a context.
func acquireIn(ctx context.Context, t testing.TB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	return got(m.Acquire(ctx, key, options...))(t)
}

// TestAnotherDatabase proves that under the context of a lease a manager of another
// database acquires its own.
func TestAnotherDatabase(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		here, there := db.manager(), (&memory{memstore.New(), t, db.begun}).manager()
		must(t, here.Do(t.Context(), job, func(ctx context.Context, l *lease.Lease) error {
			other := acquireIn(ctx, t, there, job)
			testdb.ErrorIf(t, other.Owner() == l.Owner(), "both are of %s", l.Owner())
			wants(t, "another goroutine", testdb.Err(there.TryAcquire(ctx, job)), txlock.ErrBusy)
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
		testdb.ErrorIf(t, other != nil, "a lease beside an error")
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
				reader := got(reading.AcquireShared(outer, job))(t)
				ctx := outer
				if !byName {
					var cancel context.CancelFunc
					ctx, cancel = reader.Context(outer)
					defer cancel()
				}
				writer := make(chan error, 1)
				writer <- nil
				if by := map[string]*lease.Manager{"a writer waits here": m, "a writer waits elsewhere": db.manager()}[waits]; by != nil {
					writer = later(func() error { return acquired(by.Acquire(t.Context(), job)) })
					synctest.Wait()
				}
				for _, m := range []*lease.Manager{reading, m} {
					for _, options := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
						wants(t, "Acquire", testdb.Err(m.Acquire(ctx, job, options...)), txlock.ErrUpgrade)
						wants(t, "AcquireTx", testdb.Err(m.AcquireTx(ctx, wire.Begin(), job, options...)), txlock.ErrUpgrade)
						if err := testdb.Err(m.TryAcquire(ctx, job, options...)); waits == "nobody waits" || !errors.Is(err, txlock.ErrBusy) { // it waits for nobody
							wants(t, "TryAcquire", err, txlock.ErrUpgrade)
						}
					}
				}
				db.within("all", 0, time.Second)
				wants(t, "another name", testdb.Err(m.TryAcquire(lease.WithOwner(outer, "somebody else"), job)), txlock.ErrBusy)
				must(t, reader.Err())
				release(t, reader)
				must(t, <-writer)
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
		testdb.ErrorIf(t, again.Err() != nil || again.Token() <= old.Token(), "token %d after %d, %v", again.Token(), old.Token(), again.Err())
		wants(t, "the old handle", old.Err(), txlock.ErrLost)
		release(t, again)
	})
}

// three are keys that are not in their order, one of them twice.
var three = []txlock.Key{txlock.Named("c"), txlock.Named("a"), txlock.Named("b"), txlock.Named("a")}

func acquireAll(t testing.TB, m *lease.Manager, keys []txlock.Key) *lease.Leases {
	t.Helper()
	return testdb.Got(m.AcquireAll(t.Context(), keys))(t)
}

// TestAcquireAll proves that all leases are held, each key once and in one order; that Release releases all of
// them but what the owner had before, also where they could not be had; that their context ends when one is
// lost, and enters all of them again; and that a transaction that guards them fails if one is lost.
func TestAcquireAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other, ann := db.manager(), lease.WithOwner(t.Context(), "ann")
		outer := acquireIn(ann, t, m, txlock.Named("b"))
		all := testdb.Got(m.AcquireAll(ann, three))(t)
		ctx := contextOf(t, all)
		var names []string
		for _, l := range all.All() {
			names = append(names, l.Key().String())
			testdb.ErrorIf(t, all.Get(l.Key()) != l, "Get(%q) is another lease", l.Key())
			wants(t, "TryAcquire", testdb.Err(other.TryAcquire(t.Context(), l.Key())), txlock.ErrBusy)
			again := acquireIn(ctx, t, m, l.Key())
			entered(t, again, l)
			release(t, again)
		}
		testdb.ErrorIf(t, !slices.Equal(names, []string{"a", "b", "c"}) || all.Get(job) != nil || all.Err() != nil, "leases of %v, Err %v", names, all.Err())
		must(t, wire.guarding(t, all).Commit())
		time.Sleep(time.Hour)
		must(t, errors.Join(all.Err(), ctx.Err()))
		must(t, all.Release(t.Context()))
		must(t, all.Release(t.Context()))
		wants(t, "Err", all.Err(), txlock.ErrNotHeld)
		must(t, outer.Err())
		last := acquire(t, other, txlock.Named("c"))
		wants(t, "TryAcquireAll", testdb.Err(m.TryAcquireAll(ann, three)), txlock.ErrBusy)
		must(t, outer.Err())
		release(t, outer, last)
		nothingHeld(t, m)

		all = acquireAll(t, m, three)
		stopped, stop := all.Context(t.Context())
		stop()
		wants(t, "a context that was stopped", stopped.Err(), context.Canceled)
		must(t, all.Err())
		ctx = contextOf(t, all)
		must(t, other.ForceRelease(t.Context(), txlock.Named("c")))
		tx := wire.Begin()
		wants(t, "Guard", all.Guard(t.Context(), tx), txlock.ErrLost)
		must(t, tx.Rollback())
		<-ctx.Done()
		wants(t, "the cause", context.Cause(ctx), txlock.ErrLost)
		wants(t, "Err", all.Err(), txlock.ErrLost)
		must(t, all.Get(txlock.Named("a")).Err())
		wants(t, "Release", all.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, m)

		all = acquireAll(t, m, three)
		tx = wire.guarding(t, all)
		wants(t, "Release", all.Release(t.Context()), lease.ErrGuarded)
		must(t, tx.Commit())
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
	})
}

// TestAcquireAllOrNone proves that nothing stays held of a call that fails: because a
// lease is somebody else's, its time or its context is over, or the manager is closed.
func TestAcquireAllOrNone(t *testing.T) {
	for name, c := range map[string]struct {
		call func(ctx context.Context, m *lease.Manager) (*lease.Leases, error)
		want error
		took time.Duration
	}{
		"try": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			return m.TryAcquireAll(ctx, three, lease.HoldAtLeast(time.Hour))
		}, txlock.ErrBusy, 0},
		"limit": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			return m.AcquireAll(ctx, three, lease.WaitAtMost(time.Minute), lease.HoldAtLeast(time.Hour))
		}, txlock.ErrWaitTimeout, time.Minute},
		"deadline": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return m.AcquireAll(ctx, three, lease.HoldAtLeast(time.Hour))
		}, context.DeadlineExceeded, time.Minute},
		"closed": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			time.AfterFunc(time.Minute, func() { _ = m.Close(ctx) })
			return m.AcquireAll(ctx, three)
		}, lease.ErrClosed, time.Minute},
		"lost": {func(ctx context.Context, m *lease.Manager) (*lease.Leases, error) {
			time.AfterFunc(45*time.Second, func() { _ = m.ForceRelease(ctx, txlock.Named("a")) })
			return m.AcquireAll(ctx, three)
		}, txlock.ErrLost, 50 * time.Second}, // by the next renewal
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			m, other := db.manager(), db.manager()
			last := acquire(t, other, txlock.Named("c"))
			all, err := c.call(t.Context(), m)
			wants(t, "the call", err, c.want)
			db.at("the end of the call", c.took)
			testdb.ErrorIf(t, all != nil || t.Context().Err() == nil && errors.Is(err, context.Canceled), "%v, %v", all, err)
			synctest.Wait()
			for _, key := range []string{"a", "b"} {
				release(t, acquire(t, other, txlock.Named(key)))
			}
			db.at("all free", c.took)
			release(t, last)
			nothingHeld(t, other)
		})
	}
}

// isAsked checks whether the holder was asked, and why.
func isAsked(t *testing.T, l *lease.Lease, want ...string) {
	t.Helper()
	closed := false
	select {
	case <-l.ReleaseRequested():
		closed = true
	default:
	}
	if why, asked := l.ReleaseReason(); asked != closed || asked != (len(want) > 0) || asked && why != want[0] {
		t.Errorf("ReleaseRequested is closed: %t, asked: %t because of %q, want %q", closed, asked, why, want)
	}
}

// TestAskedWithTheRenewal proves that a holder is told of a question with its next renewal, also of a newer one,
// that the lease goes on meanwhile, that it costs one statement more only then, and that all readers and holders
// of permits are asked, and neither the next holder nor one whose lease is kept after its release.
func TestAskedWithTheRenewal(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		operator := db.manager()
		l := acquire(t, m, job)
		time.Sleep(15 * time.Second)
		before := l.ReleaseRequested()
		must(t, operator.RequestRelease(t.Context(), job, "a new version"))
		isAsked(t, l)
		<-before
		db.at("told", 20*time.Second)
		isAsked(t, l, "a new version")
		must(t, operator.RequestRelease(t.Context(), job, ""))
		must(t, l.Renew(t.Context()))
		isAsked(t, l, "")
		again := acquireIn(lease.WithOwner(t.Context(), l.Owner()), t, m, job)
		isAsked(t, again, "")
		time.Sleep(25 * time.Second)
		must(t, l.Err())
		wire.sends(t, "Question", 1) // of Renew; RenewMany has told the first
		release(t, again, l)
		next := acquire(t, operator, job, lease.HoldAtLeast(time.Hour))
		time.Sleep(ttl)
		isAsked(t, next)
		must(t, m.RequestRelease(t.Context(), job, "why"))
		release(t, next)
		info := inspect(t, m, job)
		testdb.ErrorIf(t, !info.Held || info.ReleaseReason != "" || !info.ReleaseRequestedAt.IsZero(), "after the release: %+v", info)

		shared, permits := txlock.Named("shared"), txlock.Named("permits")
		held := map[*lease.Lease]string{share(t, m, shared): "readers", share(t, m, shared): "readers", share(t, operator, shared): "readers"}
		for range 3 {
			held[permit(t, semaphore(t, m, permits, 4))] = "permits"
		}
		must(t, errors.Join(m.RequestRelease(t.Context(), shared, "readers"), operator.RequestRelease(t.Context(), permits, "permits")))
		for l, why := range held {
			<-l.ReleaseRequested()
			isAsked(t, l, why)
			release(t, l)
		}
		for _, key := range []txlock.Key{job, shared, permits, txlock.Named("nothing")} {
			wants(t, "Ask for what nobody holds", m.RequestRelease(t.Context(), key, ""), txlock.ErrNotHeld)
		}
		wire.fault("AskHolders", fails)
		err := m.RequestRelease(t.Context(), job, "")
		testdb.ErrorIf(t, err == nil || errors.Is(err, txlock.ErrNotHeld), "%v", err)
	})
}

// TestAskWaitsForAGuard proves that requests wait for a transaction that guards the lease, however many, and
// although the token is ahead of the server's clock; that a later holder isn't asked; and that the context and
// Close end the wait.
func TestAskWaitsForAGuard(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		db.SetClock(time.Hour)
		m, wire := db.process()
		l := acquire(t, m, job)
		db.SetClock(0)
		tx := wire.guarding(t, l)
		wants(t, "Ask", m.RequestRelease(limited(t, time.Second), job, ""), context.DeadlineExceeded)
		closing := db.manager()
		ends := later(func() error { return closing.RequestRelease(t.Context(), job, "") })
		var answers []chan error
		for range 3 {
			answers = append(answers, later(func() error { return db.manager().RequestRelease(t.Context(), job, "why") }))
			time.Sleep(time.Second)
		}
		must(t, closing.Close(t.Context()))
		wants(t, "Ask of a manager that is closed meanwhile", <-ends, lease.ErrClosed)
		must(t, tx.Commit())
		for _, answer := range answers {
			must(t, <-answer)
		}
		must(t, l.Renew(t.Context()))
		isAsked(t, l, "why")

		tx = wire.guarding(t, l)
		late := later(func() error { return m.RequestRelease(t.Context(), job, "late") })
		time.Sleep(time.Second)
		wants(t, "Release", l.Release(t.Context()), lease.ErrGuarded)
		must(t, tx.Commit())
		next := acquire(t, m, job)
		err := <-late
		testdb.ErrorIf(t, err != nil && !errors.Is(err, txlock.ErrNotHeld), "%v", err)
		must(t, next.Renew(t.Context()))
		isAsked(t, next)
		release(t, next)
	})
}

// TestQuestionsAfterDowngrade proves that a reader who was the writer is asked what that was, told or not.
func TestQuestionsAfterDowngrade(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, operator := db.manager(), db.manager()
		for _, asked := range []string{"never", "and told", "and not told"} {
			writer := acquire(t, m, named())
			if asked != "never" {
				must(t, operator.RequestRelease(t.Context(), writer.Key(), "why"))
			}
			if asked == "and told" {
				must(t, writer.Renew(t.Context()))
			}
			reader := got(writer.Downgrade(t.Context()))(t)
			if asked == "never" {
				isAsked(t, reader)
			} else {
				<-reader.ReleaseRequested()
				isAsked(t, reader, "why")
			}
			must(t, operator.RequestRelease(t.Context(), writer.Key(), "again"))
			must(t, reader.Renew(t.Context()))
			isAsked(t, reader, "again")
			release(t, reader)
		}
	})
}

// TestLabels proves who is listed with which label: that of the manager, of the call, and of who came first.
func TestLabels(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(lease.WithLabel("ours")), db.manager()
		l := acquire(t, m, job)
		again := acquireIn(lease.WithOwner(t.Context(), l.Owner()), t, other, job, lease.WithLabel("later")) // a statement, which re-enters
		plain, reader := acquire(t, other, txlock.Named("plain")), share(t, m, txlock.Named("read"), lease.WithLabel(""))
		next := fairAcquireUnder(t.Context(), other, job, lease.Fair(), lease.WithLabel("next"))
		synctest.Wait()
		var notes []string
		for _, info := range list(t, m) {
			notes = append(notes, string(info.Kind)+" "+info.Label[strings.LastIndex(info.Label, ":")+1:])
		}
		want := []string{"waiter next", "exclusive ours", "exclusive " + strings.Split(l.Owner(), "/")[1], "reader "}
		testdb.ErrorIf(t, !slices.Equal(notes, want), "List has the notes %q, want %q", notes, want)
		release(t, again, l, plain, reader)
		release(t, next.lease(t))
	})
}

package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestEveryVerbAfterClose proves that no call of a manager that is closed, of its semaphores or of
// its leases sends anything, and that each says why, whichever methods there are.
func TestEveryVerbAfterClose(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		s, l, tx := semaphore(t, m, named(), 2), acquire(t, m, named()), wire.Begin()
		permit := permit(t, s)
		must(t, m.Close(t.Context()))
		before := wire.total()
		of := make(map[reflect.Type]reflect.Value)
		for _, arg := range []any{named(), []txlock.Key{named()}, 3, "why", time.Hour, time.Now(), uint64(1) << 50, map[int64]uint64{0: 1}, m, l} {
			of[reflect.TypeOf(arg)] = reflect.ValueOf(arg)
		}
		of[reflect.TypeFor[context.Context]()], of[reflect.TypeFor[txlock.Tx]()] = reflect.ValueOf(t.Context()), reflect.ValueOf(tx)
		of[reflect.TypeFor[func(context.Context, *lease.Lease) error]()] = reflect.ValueOf(func(context.Context, *lease.Lease) error {
			t.Error("the function was called")
			return nil
		})
		quiet := []string{"Close", "Release", "Semaphore", "OwnerOf"} // which send nothing, and succeed
		for _, on := range []any{m, inner, s, l, permit} {
			for i := range reflect.TypeOf(on).NumMethod() {
				name, call := fmt.Sprintf("%T.%s", on, reflect.TypeOf(on).Method(i).Name), reflect.ValueOf(on).Method(i)
				in := several(call.Type().NumIn()-map[bool]int{true: 1}[call.Type().IsVariadic()], func(i int) reflect.Value { return of[call.Type().In(i)] })
				out := call.Call(in)
				if len(out) == 0 || !out[len(out)-1].Type().Implements(reflect.TypeFor[error]()) {
					continue
				}
				err, _ := out[len(out)-1].Interface().(error)
				want := lease.ErrClosed
				switch {
				case slices.ContainsFunc(quiet, func(verb string) bool { return strings.HasSuffix(name, "."+verb) }):
					want = nil
				case on == any(l), on == any(permit), strings.HasSuffix(name, ".RaiseToken"):
					want = txlock.ErrNotHeld
				}
				testdb.ErrorIf(t, !errors.Is(err, want), "%s: %v, want %v", name, err, want)
			}
		}
		testdb.Equal(t, "calls that were sent", wire.total()-before, 0)
		must(t, tx.Rollback())
	})
}

// TestCloseBesideALongStatement proves that Close doesn't wait for what the program
// executes on the connections that the manager has used, too.
func TestCloseBesideALongStatement(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(2)
		// Its loop gives the pool's connection back that it has kept while it held something.
		m := newManager(t, pool, lease.RenewEvery(50*time.Millisecond))
		release(t, acquire(t, m, named())) // its statements stay prepared
		release(t, acquire(t, m, named()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		executing := make(chan int64, 2)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				conn, err := pool.Conn(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				executing <- testdb.ConnID(t, conn)
				_, _ = conn.ExecContext(ctx, "DO SLEEP(600)") // until the test ends it
			})
		}
		for range 2 {
			within(t, "a connection", executing)
		}
		quickly(t, "Close", func() { wants(t, "Close, which holds nothing", m.Close(limited(t, 500*time.Millisecond)), nil) })
		cancel()
		all.Wait()
	})
}

// TestCloseAfterItsPool proves that Close of a manager whose pool was closed before
// doesn't try on until its context ends, and says at once what it could not release.
func TestCloseAfterItsPool(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m := testdb.Got(lease.NewManager(pool))(t)
		held := []*lease.Lease{acquire(t, m, named()), acquire(t, m, named())}
		must(t, pool.Close())
		ctx := limited(t, time.Minute)
		begun, delays := time.Now(), testdb.Delays(t)
		err := m.Close(ctx)
		took := time.Since(begun)
		testdb.ErrorIf(t, took > 10*time.Second+delays(), "Close took %v", took)
		for _, l := range held {
			testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), l.Key().String()) || !strings.Contains(err.Error(), "2 leases were not released"),
				"Close doesn't say that %v was not released: %v", l.Key(), err)
			wants(t, "a lease afterwards", l.Err(), txlock.ErrNotHeld)
		}
		wants(t, "Close", err, pool.PingContext(ctx)) // that of database/sql, which has no name
	})
}

// TestCloseWhileATransactionGuards proves that Close waits for the end of a transaction
// that guards a lease, or was granted one, and that nothing is held then; and that it says
// so where its context ends first.
func TestCloseWhileATransactionGuards(t *testing.T) {
	for _, granted := range []bool{false, true} {
		for name, within := range map[string]time.Duration{"in time": 10 * time.Second, "too late": time.Second} {
			runInMemory(t, name, func(t *testing.T, db *memory) {
				other := db.manager()
				m, wire := db.process()
				tx := wire.Begin()
				if granted {
					acquireTx(t, m, tx, job)
				} else {
					must(t, acquire(t, m, job).Guard(t.Context(), tx))
				}
				closed := later(func() error { return m.Close(limited(t, within)) })
				if within > 3*time.Second {
					time.Sleep(3 * time.Second)
					must(t, tx.Commit())
					must(t, <-closed)
					nothingHeld(t, other)
					return
				}
				err := <-closed
				wants(t, "Close", err, context.DeadlineExceeded)
				testdb.Fails(t, "Close", err, `1 lease was not released, and ends after its TTL: "job"`)
				must(t, tx.Commit())
				wants(t, "TryAcquire", testdb.Err(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
			})
		}
	}
}

// doing starts a function by each verb that calls one under a lease, all at once, and returns
// when all have called runs. The channel has what each verb has returned.
func doing(t *testing.T, m *lease.Manager, fn func(ctx context.Context, l *lease.Lease, runs func()) error) (ended chan error, verbs int) {
	t.Helper()
	s := semaphore(t, m, txlock.Named("permits"), 2)
	ctx, running := t.Context(), make(chan struct{})
	work := func(ctx context.Context, l *lease.Lease) error {
		return fn(ctx, l, func() { running <- struct{}{} })
	}
	all := []func() error{
		func() error { return m.Do(ctx, txlock.Named("Do"), work) },
		func() error { return m.TryDo(ctx, txlock.Named("TryDo"), work) },
		func() error { return m.DoShared(ctx, txlock.Named("DoShared"), work) },
		func() error { return s.Do(ctx, work) },
	}
	ended = make(chan error, len(all))
	for _, verb := range all {
		go func() { ended <- verb() }()
	}
	for range all {
		<-running
	}
	return ended, len(all)
}

// refusesMore proves that a manager which closes refuses new functions at once.
func refusesMore(t *testing.T, m *lease.Manager) {
	t.Helper()
	none := func(context.Context, *lease.Lease) error {
		t.Error("a function was called while the manager closes")
		return nil
	}
	wants(t, "Do while the manager closes", m.Do(t.Context(), job, none), lease.ErrClosed)
	wants(t, "TryDo while the manager closes", m.TryDo(t.Context(), job, none), lease.ErrClosed)
}

// TestCloseWaitsForFunctions proves that Close ends the contexts of functions by ErrClosed at
// once, keeps their leases and those that they have acquired, renewed for longer than the TTL,
// until they have returned, so that they commit under them, and leaves nothing held. A handle of
// nobody's function is released at once.
func TestCloseWaitsForFunctions(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const drains = 2 * time.Minute // four times the TTL
		m, wire := db.process()
		other := db.manager()
		ended, verbs := doing(t, m, func(ctx context.Context, l *lease.Lease, runs func()) error {
			inner, err := m.Acquire(ctx, txlock.Named("inner of "+l.Key().String()))
			runs()
			if err != nil {
				return err
			}
			<-ctx.Done()
			wants(t, "the cause", context.Cause(ctx), lease.ErrClosed)
			refusesMore(t, m)
			time.Sleep(drains)
			tx := wire.Begin()
			wants(t, "Guard while the manager closes", l.Guard(t.Context(), tx), nil)
			must(t, tx.Commit())
			for _, l := range []*lease.Lease{l, inner} {
				wants(t, fmt.Sprintf("%v is given away under its function", l.Key()), l.Err(), nil)
			}
			return nil
		})
		free := acquire(t, m, job)
		closed := later(func() error { return m.Close(context.WithoutCancel(t.Context())) })
		<-free.Done()
		db.at("the handle of nobody's function ended", 0)
		time.Sleep(time.Second)
		all := list(t, other)
		wants(t, "TryAcquire while the functions return", testdb.Err(other.TryAcquire(t.Context(), txlock.Named("Do"))), txlock.ErrBusy)
		testdb.ErrorIf(t, len(all) != 2*verbs, "%d leases are held while the functions return, want %d: %v", len(all), 2*verbs, all)
		for range verbs {
			must(t, <-ended)
		}
		must(t, <-closed)
		db.within("Close", drains, drains+time.Second)
		nothingHeld(t, other)
	})
}

// TestCloseLeavesFunctionsThatGoOn proves that Close returns with its context, whatever its
// functions do, names what it has left, and that no lease of theirs is free before its TTL.
func TestCloseLeavesFunctionsThatGoOn(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		returns := make(chan struct{})
		ended, verbs := doing(t, m, func(_ context.Context, l *lease.Lease, runs func()) error {
			runs()
			<-returns // whatever the context says
			wants(t, "a lease after Close", l.Err(), txlock.ErrNotHeld)
			return nil
		})
		err := m.Close(limited(t, 10*time.Second))
		db.within("Close", 10*time.Second, 11*time.Second)
		wants(t, "Close", err, context.DeadlineExceeded)
		testdb.Fails(t, "Close", err, "4 leases were not released", `"Do"`, `"TryDo"`, `"DoShared"`, `"permits"`)
		_, busy := other.TryAcquire(t.Context(), txlock.Named("Do"))
		wants(t, "TryAcquire under a function that goes on", busy, txlock.ErrBusy)
		close(returns)
		for range verbs {
			wants(t, "what has called the function", <-ended, txlock.ErrNotHeld)
		}
		release(t, acquire(t, other, txlock.Named("Do")))
		db.within("the lease was free", 30*time.Second, time.Minute)
	})
}

// TestCloseByAFunction proves that Close is refused to a function that it would wait for, by its goroutine, by its
// context and by that of one inside it that has returned; that the manager goes on; and that Close works by
// either context when the function has returned.
func TestCloseByAFunction(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		var outer, inside context.Context
		must(t, m.Do(t.Context(), job, func(ctx context.Context, l *lease.Lease) error {
			outer = context.WithoutCancel(ctx)
			must(t, m.Do(ctx, txlock.Named("another"), func(ctx context.Context, _ *lease.Lease) error {
				inside = context.WithoutCancel(ctx)
				return nil
			}))
			for what, err := range map[string]error{
				"its goroutine": m.Close(context.Background()),
				"its context":   <-later(func() error { return m.Close(outer) }),
				"that inside":   <-later(func() error { return m.Close(inside) }),
			} {
				testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "call it when that has returned"), "Close by %s: %v", what, err)
			}
			wants(t, "after a Close that was refused", errors.Join(l.Err(), ctx.Err()), nil)
			must(t, m.Do(ctx, txlock.Named("another"), noWork))
			must(t, other.Close(ctx)) // which waits for none
			return nil
		}))
		must(t, m.Close(inside))
		must(t, m.Close(outer))
		wants(t, "Do", m.Do(t.Context(), job, noWork), lease.ErrClosed)
	})
}

// TestCloseBeforeTheFunction proves that a function whose lease was granted while Close was
// called is not called any more.
func TestCloseBeforeTheFunction(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		closed := make(chan error, 1)
		var m *lease.Manager
		m = db.manager(lease.Observe(func(ctx context.Context, e txlock.Event) {
			if e.Kind == txlock.Granted {
				go func() { closed <- m.Close(context.WithoutCancel(ctx)) }()
				time.Sleep(time.Second)
			}
		}))
		wants(t, "Do", m.Do(t.Context(), job, func(context.Context, *lease.Lease) error {
			t.Error("the function was called")
			return nil
		}), lease.ErrClosed)
		must(t, <-closed)
		nothingHeld(t, db.manager())
	})
}

// TestCloseUnderAReentry proves that Close holds a lease that a function has re-entered,
// although it was acquired before outside of it.
func TestCloseUnderAReentry(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		ctx := lease.WithOwner(t.Context(), "the only instance")
		acquireIn(ctx, t, m, job)
		free, closed := acquire(t, m, txlock.Named("free")), make(chan error, 1)
		must(t, m.Do(ctx, txlock.Named("Do"), func(ctx context.Context, _ *lease.Lease) error {
			again := acquireIn(ctx, t, m, job)
			go func() { closed <- m.Close(context.Background()) }()
			<-ctx.Done()
			<-free.Done()
			synctest.Wait()
			wants(t, "TryAcquire under a function that has re-entered", testdb.Err(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
			return again.Err()
		}))
		must(t, <-closed)
	})
}

// TestCloseWaitsForReleases proves that Close waits for a Release which has begun before
// it, is cut short by its context, and goes on in the background.
func TestCloseWaitsForReleases(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other := db.manager()
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("Release", times(1, hangs))
		released := later(func() error { return l.Release(limited(t, time.Second)) })
		time.Sleep(500 * time.Millisecond)
		closed := later(func() error { return m.Close(context.WithoutCancel(t.Context())) })
		wants(t, "Release", <-released, context.DeadlineExceeded)
		must(t, <-closed)
		db.within("Close", time.Second, 2*time.Second)
		nothingHeld(t, other)
	})
}

// TestReleaseWithoutAnswer proves that Release is sent where the context has ended before; that it
// asks again where it had no answer, and that nobody minds that the first was executed; and that it
// gives up after 5 seconds, or with its context, after which it goes on in the background.
func TestReleaseWithoutAnswer(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		must(t, acquire(t, m, job).Release(ended(t)))
		nothingHeld(t, m)

		l := acquire(t, m, job)
		wire.fault("Release", hangs)
		wants(t, "Release", l.Release(limited(t, time.Second)), context.DeadlineExceeded)
		db.at("the end of the call", time.Second)
		wire.Up()
		time.Sleep(ttl + time.Second)
		nothingHeld(t, m)

		l, wire.all = acquire(t, m, job), nil
		wire.fault("Release", times(1, loses))
		release(t, l)
		wire.sends(t, "Release", 2)
		nothingHeld(t, m)

		l = acquire(t, m, job)
		wire.fault("Release", fails)
		begun := time.Since(db.begun)
		if err := l.Release(t.Context()); err == nil || errors.Is(err, txlock.ErrNotHeld) ||
			!strings.HasSuffix(err.Error(), ": the server has not answered for 5s, and the release continues in the background") {
			t.Errorf("Release of who is cut off: %v", err)
		}
		db.at("the end of the call", begun+5*time.Second)
		wire.Up()
		time.Sleep(2 * time.Second)
		nothingHeld(t, m)
	})
}

// TestReleaseDuringRenewal proves that a release waits for the renewal that is under way,
// so that this doesn't come after it.
func TestReleaseDuringRenewal(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		wire.fault("RenewMany", slow(2*time.Second))
		db.after(11 * time.Second)
		release(t, l)
		db.at("released", 12*time.Second)
		wire.seconds(t, "RenewMany", 10)
		wire.seconds(t, "Release", 12)
		nothingHeld(t, m)

		l = acquire(t, m, job)
		wire.fault("Renew", hangs) // the program's own is interrupted
		renewed := later(func() error { return l.Renew(t.Context()) })
		synctest.Wait()
		release(t, l)
		db.at("released", 12*time.Second)
		wants(t, "Renew", <-renewed, txlock.ErrNotHeld)
		time.Sleep(time.Hour)
		wire.seconds(t, "RenewMany", 10)
	})
}

// TestCloseEndsAll proves that Close tells those who wait, whatever for.
func TestCloseEndsAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other := db.manager(), db.manager()
		var all sync.WaitGroup
		for name, wait := range waitsWithoutLimit {
			key, hold := txlock.Named(name), exclusive
			if strings.HasSuffix(name, "a permit") {
				hold = permitOf
			}
			must(t, testdb.Err(hold(t.Context(), other, key)))
			all.Go(func() { wants(t, name, wait(t.Context(), m, key), lease.ErrClosed) })
		}
		time.Sleep(time.Second)
		must(t, m.Close(t.Context()))
		all.Wait()
		db.at("all", time.Second)
	})
}

// count is how often an observer was told of a kind.
func (r *recorder) count(what string) (n int) {
	for _, e := range r.all() {
		if e.what == what {
			n++
		}
	}
	return n
}

// collect lets garbage be collected and renewals pass, until an observer was told so often
// of dropped handles. The cleanups run beside the bubble, in real time.
func (r *recorder) collect(t *testing.T, want int) {
	t.Helper()
	for deadline := 10_000; r.count("dropped") < want; deadline-- {
		testdb.FatalIf(t, deadline == 0, "%d handles are dropped, want %d", r.count("dropped"), want)
		runtime.GC()
		time.Sleep(ttl / 3)
	}
}

// passes lets garbage be collected and renewals pass: what would be dropped would be
// noticed. Another handle is dropped meanwhile, so that the cleanups have run.
func (r *recorder) passes(t *testing.T, m *lease.Manager) {
	t.Helper()
	for range 3 {
		drop(t, m, named())
		r.collect(t, r.count("dropped")+1)
	}
}

// drop acquires a lease and drops the handle.
//
//go:noinline
func drop(t *testing.T, m *lease.Manager, key txlock.Key) { acquire(t, m, key) }

// TestDroppedAmongOthers proves that a handle that is garbage is noticed; that a lease goes on while it has
// another handle, that one whose handles were dropped can be entered again, is not renewed, and is others' after
// its TTL, and that Close releases one.
func TestDroppedAmongOthers(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := new(recorder)
		m := db.manager(lease.Observe(told.observe))
		ctx := lease.WithOwner(t.Context(), "owner")
		first := acquireIn(ctx, t, m, job)
		token := first.Token()
		acquireIn(ctx, t, m, job)
		told.collect(t, 1)
		time.Sleep(2 * ttl)
		must(t, first.Err())
		told.collect(t, 2) // nobody uses the first any more, either
		again := acquireIn(ctx, t, m, job)
		time.Sleep(2 * ttl)
		must(t, again.Err())
		testdb.Equal(t, "token", again.Token(), token)
		release(t, again)
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(time.Second)))

		drop(t, m, job)
		told.collect(t, 3)
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(ttl+time.Second)))
		time.Sleep(ttl)
		testdb.Equal(t, "told that it is lost", told.count("lost"), 1)
		share(t, m, job)
		told.collect(t, 4)
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(2*ttl)))

		drop(t, m, job)
		told.collect(t, 5)
		must(t, m.Close(t.Context()))
		release(t, acquire(t, db.manager(), job, lease.WaitAtMost(time.Second)))
	})
}

// TestNotDropped proves what counts as used: a handle inside of Do, one whose context is
// open, one whose channel is waited for; and that one which was released or lost is not
// reported.
func TestNotDropped(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told, strangers := new(recorder), new(recorder)
		m, other := db.manager(lease.Observe(told.observe)), db.manager(lease.Observe(strangers.observe))
		must(t, m.Do(t.Context(), job, func(ctx context.Context, _ *lease.Lease) error {
			strangers.passes(t, other)
			return ctx.Err()
		}))
		release(t, acquire(t, m, job))
		lost := acquire(t, m, job)
		must(t, other.ForceRelease(t.Context(), job))
		<-lost.Done()
		working, stop := acquire(t, m, job).Context(t.Context())
		done := acquire(t, m, txlock.Named("done")).Done()
		asked := acquire(t, m, txlock.Named("asked")).ReleaseRequested()
		strangers.passes(t, other)
		must(t, working.Err())
		must(t, m.RequestRelease(t.Context(), txlock.Named("asked"), ""))
		<-asked
		must(t, other.ForceRelease(t.Context(), txlock.Named("done")))
		<-done
		n := told.count("dropped")
		testdb.ErrorIf(t, n > 0, "%d handles are dropped: %v", n, told.all())
		stop()
		told.collect(t, 1) // whose context is over now
	})
}

// TestHoldAtLeast proves that a lease which is released early stays held until its time is
// over, shorter or longer than its TTL, for everybody, and is not renewed; that who waits
// gets it then and not earlier; and that one which is released late is free at once.
func TestHoldAtLeast(t *testing.T) {
	for _, atLeast := range []time.Duration{5 * time.Second, 10 * time.Minute} {
		for name, others := range map[string]bool{"in the same process": false, "in another one": true} {
			runInMemory(t, fmt.Sprintf("%v/%s", atLeast, name), func(t *testing.T, db *memory) {
				m, wire := db.process()
				waits := m
				if others {
					waits = db.manager()
				}
				ctx := lease.WithOwner(t.Context(), "ann")
				must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error {
					time.Sleep(time.Second)
					return nil
				}, lease.HoldAtLeast(atLeast)))
				db.at("done", time.Second)
				for _, by := range []*lease.Manager{m, waits} {
					for _, ctx := range []context.Context{ctx, t.Context()} { // the same owner, too
						wants(t, "TryAcquire", testdb.Err(by.TryAcquire(ctx, job)), txlock.ErrBusy)
					}
				}
				all := list(t, m)
				testdb.ErrorIf(t, len(all) != 1 || !all[0].Held || all[0].Remaining != atLeast-time.Second || all[0].Owner != store.Released+"ann", "List: %+v", all)
				tries := len(wire.calls("Take"))
				next := acquire(t, waits, job, lease.HoldAtLeast(atLeast))
				db.within("free", atLeast, atLeast+500*time.Millisecond)
				n := len(wire.calls("Take"))
				testdb.ErrorIf(t, !others && n > tries+2, "who waits has tried %d times", n-tries)
				time.Sleep(atLeast)
				release(t, next)
				nothingHeld(t, m)
				n = len(wire.calls("RenewMany"))
				testdb.ErrorIf(t, atLeast < 10*time.Second && n > 0, "renewed %d times", n)
			})
		}
	}
}

// TestTermsCountFromTheGrant proves that HoldAtLeast and MaxLifetime of a writer that has waited for a reader
// count from when it has the lease.
func TestTermsCountFromTheGrant(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const waits, term = 20 * time.Second, 30 * time.Second
		a, b := db.manager(), db.manager(lease.TTL(term))
		write := func(option lease.AcquireOption) *lease.Lease {
			reader := share(t, a, job)
			time.AfterFunc(waits, func() { _ = reader.Release(context.Background()) })
			return acquire(t, b, job, option)
		}
		l := write(lease.MaxLifetime(term))
		time.Sleep(term - time.Second)
		wants(t, "within its lifetime", l.Err(), nil)
		time.Sleep(2 * time.Second)
		wants(t, "after it", l.Err(), txlock.ErrLost)
		time.Sleep(term)

		begun := time.Since(db.begun)
		release(t, write(lease.HoldAtLeast(term)))
		release(t, acquire(t, a, job))
		db.within("free", begun+waits+term, begun+waits+term+time.Second)
	})
}

// TestHoldAtLeastEntered proves that the last release of an owner that has entered again
// counts, with the longest time, from the first grant on.
func TestHoldAtLeastEntered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		outer := acquire(t, m, job, lease.HoldAtLeast(time.Minute))
		ctx := contextOf(t, outer)
		time.Sleep(time.Second)
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(time.Hour)))
		must(t, outer.Err())
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(2*time.Second)))
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }))
		release(t, outer)
		must(t, acquire(t, db.manager(), job).Release(t.Context()))
		db.within("free", time.Hour, time.Hour+500*time.Millisecond)

		// By two managers, that of the last release.
		begun := time.Since(db.begun)
		ctx = lease.WithOwner(t.Context(), "ann")
		second := db.manager()
		held := acquireIn(ctx, t, second, job, lease.HoldAtLeast(time.Hour))
		again := acquireIn(ctx, t, m, job, lease.HoldAtLeast(time.Minute))
		release(t, held)
		must(t, again.Renew(t.Context()))
		release(t, again)
		release(t, acquire(t, second, job))
		db.within("free", begun+time.Minute, begun+time.Minute+500*time.Millisecond)
	})
}

// TestHoldAtLeastOfALostLease proves that a lease which is lost is free when its TTL is
// over, that of nobody else is kept, nor one of an Acquire that fails; and that ForceRelease frees one that is kept.
func TestHoldAtLeastOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		l := acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		must(t, other.ForceRelease(t.Context(), job))
		next := acquire(t, other, job)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		must(t, next.Renew(t.Context()))
		release(t, next)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		wire.fault("RenewMany", fails)
		<-l.Done()
		wire.Up()
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, m)

		wire.fault("Take", answersLate(5*time.Second))
		wants(t, "Acquire", testdb.Err(m.Acquire(limited(t, time.Second), job, lease.HoldAtLeast(time.Hour))), context.DeadlineExceeded)
		wire.Up()
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.MaxLifetime(time.Minute), lease.HoldAtLeast(time.Hour))
		<-l.Done() // before its row has expired
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		release(t, l)
		must(t, other.ForceRelease(t.Context(), job))
		next = acquire(t, other, job)
		higher(t, next, l)
		release(t, next)
		nothingHeld(t, m)
	})
}

// TestClockOfTheServerJumps proves that an Acquire is granted where the server's clock has jumped
// forward, and that a lease which is over by that clock is found lost.
func TestClockOfTheServerJumps(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job)
		db.SetClock(time.Hour) // the statement is too late, and sent again
		release(t, acquire(t, m, txlock.Named("forward")))
		wire.sends(t, "ReadClock", 2)
		other := acquire(t, db.manager(), job)
		higher(t, other, l)
		<-l.Done()
		db.at("lost", 10*time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost, lease.ErrReplaced)
		release(t, other)
	})
}

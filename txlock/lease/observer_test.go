package lease_test

import (
	"context"
	"errors"
	"fmt"
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

// told is one call of an observer.
type told struct {
	what string
	txlock.Event
	ctx context.Context
	at  time.Time
}

// recorder is an observer that notes what it is told.
type recorder struct {
	mu     sync.Mutex
	events []told
	now    balance
}

// balance is what is waited for and held, by what an observer was told.
type balance struct{ waiting, held int }

func (r *recorder) weigh(waiting, held int) balance {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.waiting += waiting
	r.now.held += held
	return r.now
}

func (r *recorder) observe(ctx context.Context, e txlock.Event) {
	if e.Kind == txlock.Requested {
		r.weigh(1, 0)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, told{string(e.Kind), e, ctx, time.Now()})
	switch {
	case e.Kind == txlock.Granted && !e.Again:
		r.now.held++
	case e.Kind == txlock.Lost, e.Kind == txlock.Released && !errors.Is(e.Err, txlock.ErrLost):
		r.now.held--
	}
	if e.Kind == txlock.Granted || e.Kind == txlock.Refused {
		r.now.waiting--
	}
}

func (r *recorder) all() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// fair returns of each wait whether it kept the order of the queue.
func (r *recorder) fair() (all []bool) {
	for _, e := range r.all() {
		if e.Kind == txlock.Waited {
			all = append(all, e.Fair)
		}
	}
	return all
}

// waitFor returns when the observer was told of the kind.
func (r *recorder) waitFor(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if slices.ContainsFunc(r.all(), func(e told) bool { return e.what == what }) {
			return
		}
	}
	t.Fatalf("nothing is %s: %v", what, r.all())
}

// expect compares the order of the events, in which a run of renewals counts once,
// and what all events of a test have in common.
func expect(t *testing.T, events []told, key txlock.Key, want ...string) {
	t.Helper()
	var got []string
	for _, e := range events {
		if e.what != "renewed" || len(got) == 0 || got[len(got)-1] != "renewed" {
			got = append(got, e.what)
		}
		testdb.ErrorIf(t, !e.Lease || e.Shared || e.Key != key || e.Owner == "" || e.Took < 0 || e.ctx == nil, "%s: %+v", e.what, e.Event)
	}
	testdb.ErrorIf(t, !slices.Equal(got, want), "events %v, want %v: %v", got, want, events)
}

type mark struct{}

// TestObserverOfALife proves that an observer is told of a lease that is waited for,
// renewed and released: in this order, with key, owner, token and durations, and of the
// grant and the release under the context of their calls.
func TestObserverOfALife(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		m := db.manager(lease.Observe(seen.observe))
		held := acquire(t, db.manager(), job)
		time.AfterFunc(time.Minute, func() { release(t, held) })
		ctx := context.WithValue(t.Context(), mark{}, "here")
		l := acquireIn(ctx, t, m, job)
		waited := time.Since(db.begun)
		time.Sleep(time.Minute)
		must(t, l.Release(ctx))
		must(t, l.Release(ctx)) // and says nothing
		events := seen.all()
		expect(t, events, job, "waited", "granted", "renewed", "released")
		for _, e := range events {
			token, took := l.Token(), waited
			switch e.what {
			case "waited":
				token = 0
			case "renewed":
				took = min(max(1, e.Took), ttl) // what it has
			case "released":
				took = time.Minute
			}
			testdb.ErrorIf(t, e.Err != nil || e.Owner != l.Owner() || e.Token != token || e.Took != took || e.what != "renewed" && e.ctx.Value(mark{}) != "here",
				"%s: %+v, under the context of the call: %v; want token %d, took %v", e.what, e.Event, e.ctx.Value(mark{}), token, took)
		}
	})
}

// TestObserverOfALoss proves that an observer is told of a loss once, with its cause,
// however it is found, and of the Release that finds nothing to release.
func TestObserverOfALoss(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, wire *wire, other *lease.Manager, l *lease.Lease){
		"found by a renewal": func(t *testing.T, _ *wire, other *lease.Manager, l *lease.Lease) {
			must(t, other.ForceRelease(t.Context(), job))
			wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
		},
		"found by two guards": func(t *testing.T, wire *wire, _ *lease.Manager, l *lease.Lease) {
			thief := taking(t, wire.Store)
			var guards sync.WaitGroup
			for range 2 {
				guards.Go(func() {
					tx := wire.Begin()
					wants(t, "Guard", l.Guard(t.Context(), tx), txlock.ErrLost)
					must(t, tx.Rollback())
				})
			}
			synctest.Wait()
			must(t, thief.Commit())
			guards.Wait()
		},
		"by its maximum lifetime": func(_ *testing.T, _ *wire, _ *lease.Manager, l *lease.Lease) { <-l.Done() },
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			seen, want := new(recorder), []string{"granted", "lost", "released"}
			options := []lease.ManagerOption{lease.Observe(seen.observe)}
			if name == "by its maximum lifetime" {
				options, want = append(options, lease.MaxLifetime(time.Minute)), []string{"granted", "renewed", "lost", "released"}
			}
			m, wire := db.process(options...)
			l := acquire(t, m, job)
			lose(t, wire, db.manager(), l)
			seen.waitFor(t, "lost") // Done may be a moment earlier
			wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
			events := seen.all()
			expect(t, events, job, want...)
			lost, last := events[len(events)-2], events[len(events)-1]
			wants(t, "lost", lost.Err, txlock.ErrLost)
			wants(t, "released", last.Err, txlock.ErrNotHeld, txlock.ErrLost)
			testdb.ErrorIf(t, lost.Took < 0 || lost.Took > last.Took || last.Took > time.Since(db.begun),
				"held for %v until the loss, and %v in all", lost.Took, last.Took)
			for _, e := range events {
				testdb.ErrorIf(t, e.Token != l.Token(), "%s: token %d, want %d", e.what, e.Token, l.Token())
			}
		})
	}
}

// TestObserverBalances proves that a call is answered for each that is asked, and that a
// lease is told as ended once for each that is told as new, whatever ends it.
func TestObserverBalances(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen, key := new(recorder), named()
		m, w := db.process(lease.Observe(seen.observe), lease.TTL(3*time.Second))
		expects := func(what string, waiting, held int) {
			t.Helper()
			got := seen.weigh(0, 0)
			testdb.ErrorIf(t, got != (balance{waiting, held}), "%s: %+v, want %d waiting and %d held", what, got, waiting, held)
		}
		l := acquire(t, m, key)
		again := got(m.Acquire(lease.WithOwner(t.Context(), l.Owner()), key))(t)
		expects("entered twice", 0, 1)
		granted := make(chan *lease.Lease)
		for range 2 {
			go func() { granted <- acquire(t, m, key) }()
		}
		synctest.Wait()
		expects("two wait", 2, 1)
		release(t, again, l)
		l = <-granted
		expects("one waits", 1, 1)
		release(t, l)
		l = <-granted
		release(t, l)
		expects("nobody", 0, 0)
		_, err := m.Acquire(t.Context(), txlock.Named(""))
		testdb.ErrorIf(t, err == nil, "a key without a name")
		shared := got(m.AcquireShared(t.Context(), named()))(t)
		down := acquire(t, m, named())
		wants(t, "of what is held", testdb.Err(m.TryAcquire(t.Context(), down.Key())), txlock.ErrBusy)
		down = got(down.Downgrade(t.Context()))(t)
		expects("readers", 0, 2)
		before := len(seen.all())
		wants(t, "TryAcquire behind a reader", testdb.Err(m.TryAcquire(t.Context(), shared.Key())), txlock.ErrBusy)
		wants(t, "TryAcquireAll", testdb.Err(m.TryAcquireAll(t.Context(), []txlock.Key{shared.Key(), named()})), txlock.ErrBusy)
		wants(t, "Acquire", testdb.Err(m.Acquire(limited(t, 10*time.Second), shared.Key())), context.DeadlineExceeded)
		synctest.Wait()
		for _, e := range seen.all()[before:] {
			reader := e.Shared && e.what == "renewed"
			testdb.ErrorIf(t, e.Key == shared.Key() && !reader && e.what != "refused" && e.what != "waited", "%s of a lease that was never granted: %+v", e.what, e.Event)
		}
		expects("readers, and writers in vain", 0, 2)
		release(t, shared, down)
		must(t, m.ForceRelease(t.Context(), acquire(t, m, key).Key()))
		seen.waitFor(t, "lost")
		expects("a loss", 0, 0)
		acquire(t, m, key)
		acquire(t, m, named())
		cut := acquire(t, m, named())
		w.Down(nil)
		time.Sleep(10 * time.Second)
		expects("cut off for longer than the TTL", 0, 0)
		wants(t, "Release of what was lost", cut.Release(limited(t, time.Second)), txlock.ErrNotHeld, txlock.ErrLost)
		expects("Release of what was lost", 0, 0)
		w.Up()
		acquire(t, m, named())
		acquire(t, m, named())
		expects("before the end", 0, 2)
		err = m.Close(ended(t))
		testdb.ErrorIf(t, err == nil, "Close under a context that has ended releases all")
		synctest.Wait()
		expects("closed", 0, 0)
	})
}

// TestObserverPanics proves that nothing stays held if the observer panics before the caller has the lease, that
// the panic goes on, and that the manager can be used afterwards.
func TestObserverPanics(t *testing.T) {
	var all verb = func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (*lease.Lease, error) {
		return nil, acquiredAll(m.AcquireAll(ctx, []txlock.Key{key, txlock.Named("another")}))
	}
	for name, c := range map[string]struct {
		in      txlock.Kind
		past    int // how many it lets pass
		acquire verb
	}{
		"a lease": {txlock.Granted, 0, exclusive}, "a wait": {txlock.Waited, 0, exclusive}, "a permit": {txlock.Granted, 0, permitOf},
		"a reader": {txlock.Granted, 0, shared}, "AcquireAll": {txlock.Granted, 1, all},
		"HoldAtLeast": {txlock.Granted, 0, tryExclusive.under(lease.HoldAtLeast(time.Hour))},
	} {
		runInMemory(t, name, func(t *testing.T, db *memory) {
			in, left := c.in, c.past
			m := db.manager(lease.Observe(func(_ context.Context, e txlock.Event) {
				if e.Kind == in {
					if left--; left < 0 {
						panic(e.Kind)
					}
				}
			}))
			if in == txlock.Waited {
				held := acquire(t, db.manager(), job)
				time.AfterFunc(time.Second, func() { _ = held.Release(context.Background()) })
			}
			func() {
				defer func() { testdb.Equal(t, "the panic", recover(), any(c.in)) }()
				_, _ = c.acquire(t.Context(), m, job)
			}()
			in = ""
			for _, m := range []*lease.Manager{db.manager(), m} {
				must(t, testdb.Err(c.acquire(t.Context(), m, job))) // it is free
				_ = m.ForceRelease(t.Context(), job)                // which AcquireAll has released
			}
		})
	}
}

// heldBy returns who holds the lease as an error says, nil for nobody.
func heldBy(err error) *txlock.HeldError {
	var held *txlock.HeldError
	errors.As(err, &held)
	return held
}

// namesHolder demands that an error names the holder of a key: by the owner, its label, and when it
// was granted by the server's clock.
func namesHolder(t *testing.T, what string, err error, key txlock.Key, info lease.Info) {
	t.Helper()
	want := txlock.HeldError{Key: key, Owner: info.Owner, Label: info.Label, Since: info.Since}
	if held := heldBy(err); held == nil || *held != want {
		t.Errorf("%s: %v has %+v, want %+v", what, err, held, want)
	} else if !strings.Contains(err.Error(), held.Error()) {
		t.Errorf("%s: the text is %v", what, err)
	}
}

// infoOf returns what Inspect shows of a lease that is held.
func infoOf(t *testing.T, l *lease.Lease, m *lease.Manager) lease.Info {
	t.Helper()
	info := inspect(t, m, l.Key())
	for _, held := range append(info.Others, info) {
		if held.Owner == l.Owner() {
			return held
		}
	}
	t.Fatalf("%v is not held by %q", l.Key(), l.Owner())
	return lease.Info{}
}

// TestRefusalsNameTheHolder proves that a wait that ends by its limit or by its context names who was seen
// last, without a call more; and that with NameHolders each refusal names the holder, reader or permit by one look.
func TestRefusalsNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager(lease.WithLabel("the nightly report"))
		naming, wire := db.process(lease.NameHolders())
		plain, unnamed := db.process()
		calls := tries(wire)
		for name, wait := range waitsWithoutLimit {
			calls["limit: "+name] = func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) error {
				return wait(ctx, m, key, lease.WaitAtMost(time.Second))
			}
		}
		for name, call := range calls {
			for kind, hold := range map[string]verb{"lease": exclusive, "reader": shared, "permit": permitOf} {
				if strings.HasSuffix(name, "a permit") != (kind == "permit") || kind == "reader" && strings.Contains(name, "Shared") {
					continue
				}
				m, of, looks := naming, wire, 1
				if strings.Contains(name, ": ") && kind == "lease" {
					m, of, looks = plain, unnamed, 0
				}
				what, key := name+" of a "+kind, txlock.Named(name+" of a "+kind)
				held := got(hold(t.Context(), a, key))(t)
				info, before := infoOf(t, held, a), len(of.calls("Inspect"))
				err := call(t.Context(), m, key)
				testdb.ErrorIf(t, !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrWaitTimeout), "%s: %v", what, err)
				namesHolder(t, what, err, key, info)
				time.Sleep(time.Second) // what a wait for readers has kept is released in the background
				release(t, held)
				must(t, call(t.Context(), m, key))
				n := len(of.calls("Inspect")) - before
				testdb.ErrorIf(t, n > looks, "%s: %d looks", what, n)
			}
		}
		held := acquire(t, a, job)
		err := testdb.Err(plain.Acquire(limited(t, time.Second), job))
		wants(t, "Acquire", err, context.DeadlineExceeded)
		namesHolder(t, "the end of the context", err, job, infoOf(t, held, a))
		err = testdb.Err(plain.TryAcquire(t.Context(), job))
		testdb.ErrorIf(t, heldBy(err) != nil, "named without a look: %v", err)
		release(t, held)
	})
}

// TestWaitsBehindOthersNameTheHolder proves that with NameHolders a wait whose turn never
// comes names who has the lease at its end, and not who had it when it queued.
func TestWaitsBehindOthersNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager(lease.WithLabel("the next"))
		first := acquire(t, a, job)
		next := fairAcquireUnder(t.Context(), b, job, lease.Fair())
		time.Sleep(time.Second)
		last := fairAcquireUnder(t.Context(), db.manager(), job, lease.Fair())
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { _ = first.Release(context.Background()) })
		_, err := db.manager().Acquire(t.Context(), job, lease.Fair(), lease.NameHolders(), lease.WaitAtMost(10*time.Second))
		wants(t, "behind others", err, txlock.ErrWaitTimeout)
		namesHolder(t, "behind others", err, job, infoOf(t, next.lease(t), b))
		release(t, next.lease(t))
		release(t, last.lease(t))
	})
}

// TestWaitingWriterIsNoHolder proves that a refusal for a writer that waits for a reader names the reader
// with NameHolders, to the observer too, and says without that it may be so.
func TestWaitingWriterIsNoHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, told := db.manager(), new(answers)
		info := infoOf(t, share(t, a, job), a)
		ctx, cancel := context.WithCancel(t.Context())
		waits := fairAcquireUnder(ctx, db.manager(lease.WithLabel("who waits")), job)
		time.Sleep(time.Second)
		plain, bare := db.process()
		named, wired := db.process(lease.NameHolders(), lease.Observe(told.observe))
		wires := map[*lease.Manager]*wire{plain: bare, named: wired}
		for name, try := range map[string]verb{
			"TryAcquire": tryExclusive, "TryAcquireShared": tryShared,
			"Acquire": exclusive.under(lease.WaitAtMost(time.Second)), "AcquireShared": shared.under(lease.WaitAtMost(time.Second)),
			"AcquireTx": func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
				return wires[m].commits()(ctx, m, key, options...)
			},
		} {
			_, err := try(t.Context(), named, job)
			namesHolder(t, name, err, job, info)
			held := told.refused.Held
			testdb.ErrorIf(t, held == nil || held.Owner != info.Owner, "%s: the observer was told of %+v", name, held)
			if _, err = try(t.Context(), plain, job); heldBy(err) != nil {
				testdb.Fails(t, name, err, "or waited for readers")
			}
		}
		wired.fault("Inspect", fails)
		testdb.Fails(t, "a look that fails", testdb.Err(named.Acquire(t.Context(), job, lease.WaitAtMost(time.Second))), "or waited for readers")
		wired.Up()
		cancel()
		waits.end(t)

		kept := txlock.Named("kept")
		release(t, share(t, a, kept))
		release(t, acquire(t, a, kept, lease.HoldAtLeast(time.Hour)))
		err := testdb.Err(plain.Acquire(t.Context(), kept, lease.WaitAtMost(time.Second)))
		wants(t, "Acquire", err, txlock.ErrWaitTimeout)
		testdb.ErrorIf(t, strings.Contains(err.Error(), "waited for readers"), "what was released waits for nobody: %v", err)
	})
}

// answers notes the last grant, refusal and wait that it is told of.
type answers struct{ granted, refused, waited txlock.Event }

func (a *answers) observe(_ context.Context, e txlock.Event) {
	switch e.Kind {
	case txlock.Granted:
		a.granted = e
	case txlock.Refused:
		a.refused = e
	case txlock.Waited:
		a.waited = e
	}
}

func (a *answers) names(t *testing.T, what string, info lease.Info) {
	t.Helper()
	want := txlock.HeldError{Key: info.Key, Owner: info.Owner, Label: info.Label, Since: info.Since}
	for which, e := range map[string]txlock.Event{"granted": a.granted, "waited": a.waited} {
		testdb.ErrorIf(t, e.Held == nil || *e.Held != want, "%s: %s has %+v, want %+v", what, which, e.Held, want)
	}
}

// TestSlowWaitsNameTheHolder proves that the observer is told for whom a wait was, also one in vain: by
// a look of the wait's own, or where there is none and SlowWait asks for it, by one look more.
func TestSlowWaitsNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager(lease.WithLabel("the nightly report"))
		for name, c := range map[string]struct{ wait, hold verb }{
			"Acquire": {exclusive, exclusive}, "Acquire fairly": {fairly, exclusive}, "AcquireShared": {shared, exclusive}, "a permit": {permitOf, permitOf},
			"Acquire under a limit": {exclusive.under(lease.WaitAtMost(time.Hour)), exclusive},
		} {
			for _, asked := range []bool{true, false} {
				told := new(answers)
				options := []lease.ManagerOption{lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(time.Second)}
				if !asked {
					options = options[:2]
				}
				b, wire := db.process(options...)
				key := txlock.Named(name)
				held := got(c.hold(t.Context(), a, key))(t)
				info := infoOf(t, held, a)
				info.Key = key
				if asked {
					wants(t, name+" in vain", testdb.Err(c.wait(limited(t, 10*time.Second), b, key)), context.DeadlineExceeded)
					of := told.refused.Held
					testdb.ErrorIf(t, of == nil || of.Owner != info.Owner, "%s in vain: %+v", name, of)
				}
				looks := len(wire.calls("Inspect"))
				time.AfterFunc(10*time.Second, func() { _ = held.Release(context.Background()) })
				l := got(c.wait(t.Context(), b, key))(t)
				if asked || name != "a permit" { // whose wait sees only that none is free
					told.names(t, name, info)
				}
				want := 0
				if asked {
					want = 1
				}
				n := len(wire.calls("Inspect")) - looks
				testdb.ErrorIf(t, n != want, "%s, asked=%t: %d looks more, want %d", name, asked, n, want)
				release(t, l)
				told.granted, told.waited = txlock.Event{}, txlock.Event{}
				l = got(c.wait(t.Context(), b, key))(t)
				testdb.ErrorIf(t, told.granted.Held != nil || told.waited.Held != nil, "%s: free, but %v had it", name, told.granted.Held)
				release(t, l)
			}
		}
	})
}

// TestSlowServerLosesNotAll proves that a server which renews too few leases in time for all
// of them to be kept loses some and not all.
func TestSlowServerLosesNotAll(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const ttl, leases, perRow = time.Second, 300, 2 * time.Millisecond
		m, wire := db.process(lease.TTL(ttl))
		held := several(leases, func(n int) *lease.Lease { return share(t, m, txlock.Named(fmt.Sprint(n))) })
		wire.fault("RenewMany", func(ctx context.Context, _ string, _ store.Row, call func() error) error {
			before, _ := db.Rows()
			err := call()
			after, _ := db.Rows()
			took := time.Duration(0)
			for at, row := range after {
				if row.Expires != before[at].Expires {
					took += perRow
				}
			}
			select {
			case <-time.After(took):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		time.Sleep(5 * ttl)
		kept := 0
		for _, l := range held {
			if l.Err() == nil {
				kept++
			}
		}
		testdb.ErrorIf(t, kept < leases/4, "%d of %d are kept", kept, leases)
	})
}

package lease_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		if !e.Lease || e.Shared || e.Key != key || e.Owner == "" || e.Took < 0 || e.ctx == nil {
			t.Errorf("%s: %+v", e.what, e.Event)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v: %v", got, want, events)
	}
}

// between fails where a duration is out of its bounds.
func between(t *testing.T, what string, least, d, most time.Duration) {
	t.Helper()
	if d < least || d > most {
		t.Errorf("%s took %v, not from %v to %v", what, d, least, most)
	}
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
		granted := time.Since(db.begun)
		time.Sleep(time.Minute)
		must(t, l.Release(ctx))
		must(t, l.Release(ctx)) // and says nothing
		events := seen.all()
		expect(t, events, job, "waited", "granted", "renewed", "released")
		for _, e := range events {
			if e.Err != nil || e.Owner != l.Owner() {
				t.Errorf("%s: error %v, owner %q, want %q", e.what, e.Err, e.Owner, l.Owner())
			}
			if want := l.Token(); e.what != "waited" && e.Token != want || e.what == "waited" && e.Token != 0 {
				t.Errorf("%s: token %d, want %d", e.what, e.Token, want)
			}
			if called := e.what != "renewed"; called && e.ctx.Value(mark{}) != "here" {
				t.Errorf("%s: not under the context of the call", e.what)
			}
		}
		between(t, "the wait", granted, events[0].Took, granted)
		between(t, "the grant", granted, events[1].Took, granted)
		for _, e := range events[2 : len(events)-1] {
			between(t, "what a renewal has", 1, e.Took, ttl)
		}
		between(t, "the hold", time.Minute, events[len(events)-1].Took, time.Minute)
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
			between(t, "the hold until the loss", 0, lost.Took, last.Took)
			between(t, "the hold", lost.Took, last.Took, time.Since(db.begun))
			for _, e := range events {
				if e.Token != l.Token() {
					t.Errorf("%s: token %d, want %d", e.what, e.Token, l.Token())
				}
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
			if got := seen.weigh(0, 0); got != (balance{waiting, held}) {
				t.Errorf("%s: %+v, want %d waiting and %d held", what, got, waiting, held)
			}
		}
		l := acquire(t, m, key)
		again := mustLease(t)(m.Acquire(lease.WithOwner(t.Context(), l.Owner()), key))
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
		if _, err := m.Acquire(t.Context(), txlock.Named("")); err == nil {
			t.Error("a key without a name")
		}
		shared := mustLease(t)(m.AcquireShared(t.Context(), named()))
		down := acquire(t, m, named())
		wants(t, "of what is held", second(m.TryAcquire(t.Context(), down.Key())), txlock.ErrBusy)
		down = mustLease(t)(down.Downgrade(t.Context()))
		expects("readers", 0, 2)
		before := len(seen.all())
		wants(t, "TryAcquire behind a reader", second(m.TryAcquire(t.Context(), shared.Key())), txlock.ErrBusy)
		wants(t, "TryAcquireAll", second(m.TryAcquireAll(t.Context(), []txlock.Key{shared.Key(), named()})), txlock.ErrBusy)
		wants(t, "Acquire", second(m.Acquire(limited(t, 10*time.Second), shared.Key())), context.DeadlineExceeded)
		synctest.Wait()
		for _, e := range seen.all()[before:] {
			if reader := e.Shared && e.what == "renewed"; e.Key == shared.Key() && !reader && e.what != "refused" && e.what != "waited" {
				t.Errorf("%s of a lease that was never granted: %+v", e.what, e.Event)
			}
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
		if err := m.Close(ended(t)); err == nil {
			t.Error("Close under a context that has ended releases all")
		}
		synctest.Wait()
		expects("closed", 0, 0)
	})
}

// TestObserverPanics proves that nothing stays held if the observer panics before the caller has the lease, that
// the panic goes on, and that the manager can be used afterwards.
func TestObserverPanics(t *testing.T) {
	var all, atLeast verb = func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (*lease.Lease, error) {
		return nil, acquiredAll(m.AcquireAll(ctx, []txlock.Key{key, txlock.Named("another")}))
	}, func(ctx context.Context, m *lease.Manager, key txlock.Key, _ ...lease.AcquireOption) (*lease.Lease, error) {
		return m.TryAcquire(ctx, key, lease.HoldAtLeast(time.Hour))
	}
	for name, c := range map[string]struct {
		in      txlock.Kind
		past    int // how many it lets pass
		acquire verb
	}{
		"a lease": {txlock.Granted, 0, exclusive}, "a wait": {txlock.Waited, 0, exclusive}, "a permit": {txlock.Granted, 0, permitOf},
		"a reader": {txlock.Granted, 0, shared}, "AcquireAll": {txlock.Granted, 1, all}, "HoldAtLeast": {txlock.Granted, 0, atLeast},
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
				defer func() { equal(t, "the panic", recover(), any(c.in)) }()
				_, _ = c.acquire(t.Context(), m, job)
			}()
			in = ""
			for _, m := range []*lease.Manager{db.manager(), m} {
				must(t, second(c.acquire(t.Context(), m, job))) // it is free
				_ = m.ForceRelease(t.Context(), job)            // which AcquireAll has released
			}
		})
	}
}

package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

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
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		const ttl, every = 15 * time.Second, 500 * time.Millisecond
		seen := new(recorder)
		m, other := newManager(t, pool, lease.Observe(seen.observe), lease.TTL(ttl), lease.RenewEvery(every)), newManager(t, pool)
		key := named()
		held := acquire(t, other, key)
		// A refusal cuts an expiry that lies too far ahead: so it shows when it has come.
		exec(t, db, "UPDATE lockstep_leases SET expires_us = expires_us + 3600000000 WHERE name = ?", key.String())
		expiry := func() int64 {
			return number(t, db, "SELECT expires_us FROM lockstep_leases WHERE name = ?", key.String())
		}
		far := expiry()
		ctx := context.WithValue(t.Context(), mark{}, "here")
		asked := time.Now()
		got := make(chan *lease.Lease, 1)
		go func() {
			l, err := m.Acquire(ctx, key)
			wantsNone(t, "Acquire", err)
			got <- l
		}()
		for deadline := time.Now().Add(20 * time.Second); expiry() == far; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing was refused")
			}
		}
		const wait = 60 * time.Millisecond
		_, err := other.Acquire(t.Context(), key, lease.WaitAtMost(wait)) // passes the time
		wants(t, "Acquire while it is held", err, txlock.ErrWaitTimeout)
		release(t, held)
		l := <-got
		if l == nil {
			t.FailNow()
		}
		granted := time.Since(asked)
		seen.waitFor(t, "renewed")
		must(t, l.Release(ctx))
		must(t, l.Release(ctx)) // and says nothing
		lived := time.Since(asked)
		events := seen.all()
		expect(t, events, key, "waited", "granted", "renewed", "released")
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
		waited, was, last := events[0], events[1], events[len(events)-1]
		between(t, "the wait", wait/2, waited.Took, granted)
		between(t, "the grant", waited.Took, was.Took, granted)
		for _, e := range events[2 : len(events)-1] {
			between(t, "what a renewal has", 1, e.Took, ttl)
		}
		// The interval of renewals was spent in it; half is for clocks of two kinds.
		between(t, "the hold", every/2, last.Took, lived)
	})
}

// TestObserverOfRefusals proves that an observer is told why a lease was not granted,
// and of a wait in vain before that.
func TestObserverOfRefusals(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		holder := newManager(t, pool)
		for name, test := range map[string]struct {
			ask    func(ctx context.Context, m *lease.Manager, key txlock.Key) error
			cause  error
			events []string
			took   time.Duration
		}{
			"try": {func(ctx context.Context, m *lease.Manager, key txlock.Key) error {
				_, err := m.TryAcquire(ctx, key)
				return err
			}, txlock.ErrBusy, []string{"refused"}, 0},
			"limit": {func(ctx context.Context, m *lease.Manager, key txlock.Key) error {
				_, err := m.Acquire(ctx, key, lease.WaitAtMost(80*time.Millisecond))
				return err
			}, txlock.ErrWaitTimeout, []string{"waited", "refused"}, 80 * time.Millisecond},
			"context": {func(ctx context.Context, m *lease.Manager, key txlock.Key) error {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // the first try is answered by then, and no wait
				defer cancel()
				return m.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil })
			}, context.DeadlineExceeded, []string{"waited", "refused"}, 2 * time.Second},
			"in a transaction": {func(ctx context.Context, m *lease.Manager, key txlock.Key) (err error) {
				tx, err := pool.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }()
				_, err = m.AcquireTx(ctx, tx, key)
				return err
			}, txlock.ErrBusy, []string{"refused"}, 0},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				seen := new(recorder)
				m, key := newManager(t, pool, lease.Observe(seen.observe)), named()
				l := acquire(t, holder, key)
				defer release(t, l)
				began := time.Now()
				err := test.ask(t.Context(), m, key)
				wants(t, "the call", err, test.cause)
				events := seen.all()
				expect(t, events, key, test.events...)
				for _, e := range events {
					wants(t, e.what, e.Err, test.cause)
					between(t, e.what, test.took/2, e.Took, time.Since(began))
					if e.Token != 0 || e.Owner == l.Owner() {
						t.Errorf("%s: token %d, owner %q", e.what, e.Token, e.Owner)
					}
				}
			})
		}
	})
}

// TestObserverOfALoss proves that an observer is told of a loss once, with its cause,
// however it is found, and of the Release that finds nothing to release.
func TestObserverOfALoss(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		for name, test := range map[string]struct {
			options []lease.ManagerOption
			lose    func(t *testing.T, m *lease.Manager, l *lease.Lease)
			events  []string
		}{
			"found by a renewal": {nil, func(t *testing.T, m *lease.Manager, l *lease.Lease) {
				must(t, m.ForceRelease(t.Context(), l.Key()))
				wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
			}, []string{"granted", "lost", "released"}},
			"found by a guard": {nil, func(t *testing.T, m *lease.Manager, l *lease.Lease) {
				must(t, m.ForceRelease(t.Context(), l.Key()))
				tx := begin(t, pool, sql.LevelDefault)
				defer func() { _ = tx.Rollback() }()
				wants(t, "Guard", l.Guard(t.Context(), tx), txlock.ErrLost)
			}, []string{"granted", "lost", "released"}},
			"found by two guards": {nil, func(t *testing.T, _ *lease.Manager, l *lease.Lease) {
				thief := begin(t, db.Admin(), sql.LevelDefault)
				defer func() { _ = thief.Rollback() }()
				if _, err := thief.ExecContext(t.Context(), "UPDATE lockstep_leases SET token = token + 1 WHERE name = ?", l.Key().String()); err != nil {
					t.Fatal(err)
				}
				const guards = 2
				found := make(chan error, guards)
				for range guards {
					tx := begin(t, pool, sql.LevelReadCommitted)
					id := testdb.ConnID(t, tx)
					go func() {
						err := l.Guard(t.Context(), tx)
						_ = tx.Rollback()
						found <- err
					}()
					db.WaitForLockWait(t, id)
				}
				must(t, thief.Commit())
				for range guards {
					wants(t, "Guard", <-found, txlock.ErrLost)
				}
			}, []string{"granted", "lost", "released"}},
			"found by the loop": {[]lease.ManagerOption{lease.RenewEvery(2500 * time.Millisecond)}, func(t *testing.T, _ *lease.Manager, l *lease.Lease) {
				exec(t, db, "UPDATE lockstep_leases SET token = token + 1 WHERE name = ?", l.Key().String())
				<-l.Done()
			}, []string{"granted", "lost", "released"}},
			"by its maximum lifetime": {[]lease.ManagerOption{lease.TTL(4500 * time.Millisecond), lease.MaxLifetime(6 * time.Second)}, func(_ *testing.T, _ *lease.Manager, l *lease.Lease) {
				<-l.Done()
			}, []string{"granted", "renewed", "lost", "released"}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				seen := new(recorder)
				m, key := newManager(t, pool, append(test.options, lease.Observe(seen.observe))...), named()
				began := time.Now()
				l := acquire(t, m, key)
				test.lose(t, m, l)
				seen.waitFor(t, "lost") // Done may be a moment earlier
				wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
				events := seen.all()
				expect(t, events, key, test.events...)
				lost, last := events[len(events)-2], events[len(events)-1]
				wants(t, "lost", lost.Err, txlock.ErrLost)
				wants(t, "released", last.Err, txlock.ErrNotHeld, txlock.ErrLost)
				between(t, "the hold until the loss", 0, lost.Took, last.Took)
				between(t, "the hold", lost.Took, last.Took, time.Since(began))
				for _, e := range events {
					if e.Token != l.Token() {
						t.Errorf("%s: token %d, want %d", e.what, e.Token, l.Token())
					}
				}
			})
		}
	})
}

// TestObserverOfReentry proves that each handle is a grant, with the token of the
// first, and that the lease is released once, with the last of them; and that Close
// releases what is held.
func TestObserverOfReentry(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		seen := new(recorder)
		m, key := newManager(t, pool, lease.Observe(seen.observe)), named()
		ctx := lease.WithOwner(t.Context(), key.String())
		var handles []*lease.Lease
		for range 3 {
			l := acquireIn(ctx, t, m, key)
			handles = append(handles, l)
		}
		release(t, handles[0])
		expect(t, seen.all(), key, "granted", "granted", "granted")
		release(t, handles[2])
		release(t, handles[1])
		expect(t, seen.all(), key, "granted", "granted", "granted", "released")
		l := acquire(t, m, key)
		must(t, m.Close(t.Context()))
		events := seen.all()
		expect(t, events, key, "granted", "granted", "granted", "released", "granted", "released")
		for i, e := range events {
			want := handles[0]
			if i >= 4 {
				want = l
			}
			if e.Token != want.Token() || e.Owner != want.Owner() || e.Err != nil {
				t.Errorf("%s: token %d, owner %q, error %v; want %d, %q", e.what, e.Token, e.Owner, e.Err, want.Token(), want.Owner())
			}
		}
	})
}

// TestObserverFromManyGoroutines proves that the events of leases that live side by
// side carry each its own key and token.
func TestObserverFromManyGoroutines(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const workers, rounds = 8, 5
		pool, seen := newPool(t, db, true), new(recorder)
		m := newManager(t, pool, lease.Observe(seen.observe))
		errs := make(chan error, workers)
		for range workers {
			go func() {
				var err error
				for range rounds {
					err = m.Do(t.Context(), named(), func(context.Context, *lease.Lease) error { return nil })
					if err != nil {
						err = fmt.Errorf("Do: %w", err)
						break
					}
				}
				errs <- err
			}()
		}
		for range workers {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		tokens := make(map[txlock.Key]uint64)
		for _, e := range seen.all() {
			switch e.what {
			case "granted":
				tokens[e.Key] = e.Token
			case "released":
				if tokens[e.Key] != e.Token {
					t.Errorf("%v: released with token %d, granted with %d", e.Key, e.Token, tokens[e.Key])
				}
				delete(tokens, e.Key)
			default:
				t.Errorf("%v: %s", e.Key, e.what)
			}
		}
		if n := len(seen.all()); n != 2*workers*rounds || len(tokens) != 0 {
			t.Errorf("%d events, %d leases are not released", n, len(tokens))
		}
	})
}

package lease_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// crowd is a number of goroutines that ask for the same lease, one after the other.
type crowd struct {
	db      *memory
	all     sync.WaitGroup
	mu      sync.Mutex
	came    []string
	granted []string
	when    []time.Duration
}

// join lets the next one come. It returns when that waits; what it holds, it holds for a
// while.
func (l *crowd) join(ctx context.Context, name string, hold time.Duration, acquire func(context.Context) (*lease.Lease, error)) {
	l.came = append(l.came, name)
	l.all.Go(func() {
		got, err := acquire(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.db.t.Errorf("%s: %v", name, err)
			return
		}
		l.mu.Lock()
		l.granted = append(l.granted, name)
		l.when = append(l.when, time.Since(l.db.begun))
		l.mu.Unlock()
		time.Sleep(hold)
		if err := got.Release(context.Background()); err != nil {
			l.db.t.Errorf("%s: %v", name, err)
		}
	})
	synctest.Wait()
}

// inOrder waits for all, and checks that the first to come was granted first.
func (l *crowd) inOrder() {
	l.db.t.Helper()
	l.all.Wait()
	if !slices.Equal(l.granted, l.came) {
		l.db.t.Errorf("granted to %v, who came as %v", l.granted, l.came)
	}
}

func names(n int, prefix string) (all []string) {
	for i := range n {
		all = append(all, prefix+string(rune('a'+i)))
	}
	return all
}

// TestWhoGivesUpLeavesTheQueue proves that a waiter whose context ends lets the next one
// pass, also where it was the first.
func TestWhoGivesUpLeavesTheQueue(t *testing.T) {
	for _, fair := range []bool{false, true} {
		for _, quits := range [][]string{{"a"}, {"b"}, {"a", "b"}, {"d"}} {
			inBubble := func(t *testing.T, db *memory) {
				m, l := db.manager(), crowd{db: db}
				held := acquire(t, m, job)
				cancels := make(map[string]context.CancelFunc)
				for _, name := range names(4, "") {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					cancels[name] = cancel
					l.join(ctx, name, time.Second, func(ctx context.Context) (*lease.Lease, error) {
						if fair {
							return m.Acquire(ctx, job, lease.Fair())
						}
						return m.Acquire(ctx, job)
					})
				}
				time.Sleep(time.Second)
				for _, name := range quits {
					cancels[name]()
					l.came = slices.DeleteFunc(l.came, func(other string) bool { return other == name })
				}
				synctest.Wait()
				release(t, held)
				l.inOrder()
				if l.when[0] != time.Second || len(l.when) != 4-len(quits) {
					t.Errorf("fair %t, %v quit: grants at %v", fair, quits, l.when)
				}
			}
			t.Run("", func(t *testing.T) { inMemory(t, inBubble) })
		}
	}
}

// TestPlacesAreInOrder proves that of one manager those who came first have their places
// first, also where the first one waits for a connection.
func TestPlacesAreInOrder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		m, wire := db.process(lease.Fair(), lease.Observe(seen.observe))
		held := acquire(t, m, job)
		connection := make(chan struct{}, 1)
		connection <- struct{}{}
		wire.fault("Turn", func(ctx context.Context, op string, at store.Row, call func() error) error {
			select {
			case <-connection: // the first one waits for it, while the second one comes
				return slow(1500*time.Millisecond)(ctx, op, at, call)
			default: // on its way to the server nobody overtakes who went before
				return slow(time.Millisecond)(ctx, op, at, call)
			}
		})
		l := crowd{db: db}
		for _, name := range names(3, "") {
			l.join(t.Context(), name, time.Second, func(ctx context.Context) (*lease.Lease, error) { return m.Acquire(ctx, job) })
		}
		time.Sleep(5 * time.Second)
		release(t, held)
		l.inOrder()
		if fair := seen.fair(); !slices.Equal(fair, []bool{true, true, true}) {
			t.Errorf("fair: %v", fair)
		}
	})
}

// TestFairOverProcesses proves that Fair is one queue over all processes, that newcomers
// don't pass it, and that a process whose connection breaks loses its place only.
func TestFairOverProcesses(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		var managers []*lease.Manager
		var wires []*wire
		for range 3 {
			m, w := db.process(lease.Fair())
			managers, wires = append(managers, m), append(wires, w)
		}
		l := crowd{db: db}
		for i, name := range names(12, "") {
			l.join(t.Context(), name, time.Second, func(ctx context.Context) (*lease.Lease, error) { return managers[i*5%3].Acquire(ctx, job) })
		}
		wants(t, "TryAcquire", second(managers[0].TryAcquire(t.Context(), job)), txlock.ErrBusy)
		l.inOrder()
		if time.Since(db.begun) > 12*time.Second+12*20*time.Millisecond {
			t.Errorf("12 holds of a second took %v", time.Since(db.begun))
		}
		for _, w := range wires {
			w.fault("Turn", times(3, fails))
		}
		held := acquire(t, managers[0], job)
		time.AfterFunc(time.Second, func() { release(t, held) })
		release(t, acquire(t, managers[1], job))
	})
}

// TestPlacesAreBounded proves how many of a manager's waiters have a place in the queue of
// all processes, and that the observer is told who had none.
func TestPlacesAreBounded(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		m, wire := db.process(lease.Fair(), lease.Observe(seen.observe))
		l := crowd{db: db}
		for _, name := range names(21, "") { // the first gets it
			l.join(t.Context(), name, time.Second, func(ctx context.Context) (*lease.Lease, error) { return m.Acquire(ctx, job) })
		}
		wire.sends(t, "Turn", 16)
		l.inOrder()
		wire.sends(t, "Turn", 20)
		if fair := seen.fair(); len(fair) != 20 || slices.Contains(fair[:16], false) || slices.Contains(fair[16:], true) {
			t.Errorf("fair: %v", fair)
		}
	})
}

// TestWithoutAPlace proves that a wait goes on by looking where there is no connection for
// a place, and takes one as soon as there is.
func TestWithoutAPlace(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		seen := new(recorder)
		other := db.manager()
		m, wire := db.process(lease.Fair(), lease.Observe(seen.observe))
		held := acquire(t, other, job)
		wire.fault("Turn", func(context.Context, string, store.Row, func() error) error { return store.ErrNoTurn })
		time.AfterFunc(5*time.Second, func() { release(t, held) })
		l := acquire(t, m, job)
		db.within("granted", 5*time.Second, 5500*time.Millisecond)
		if n := len(wire.calls("Turn")); n < 4 || n > 6 { // it asks for a place every second
			t.Errorf("asked for a place %d times", n)
		}
		if fair := seen.fair(); len(fair) != 1 || fair[0] {
			t.Errorf("fair: %v", fair)
		}
		release(t, l)
	})
}

// TestReleaseNeedsNoLook proves that a waiter who is told of a release in its manager takes
// the lease by one statement, without a look before.
func TestReleaseNeedsNoLook(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		for _, options := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
			m, wire := db.process()
			held := acquire(t, m, job)
			l := crowd{db: db}
			l.join(t.Context(), "waiter", 0, func(ctx context.Context) (*lease.Lease, error) { return m.Acquire(ctx, job, options...) })
			looks := len(wire.calls("Look"))
			release(t, held)
			l.all.Wait()
			equal(t, "looks after the release", len(wire.calls("Look"))-looks, 0)
		}
	})
}

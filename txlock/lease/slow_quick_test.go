package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
		if e.Held == nil || *e.Held != want {
			t.Errorf("%s: %s has %+v, want %+v", what, which, e.Held, want)
		}
	}
}

// TestSlowWaitsNameTheHolder proves that the observer is told for whom a wait was: by a look of
// the wait's own, or where there is none and SlowWait asks for it, by one look more.
func TestSlowWaitsNameTheHolder(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager(lease.WithLabel("the nightly report"))
		for name, wait := range map[string]func(b *lease.Manager, key txlock.Key) (*lease.Lease, error){
			"Acquire": acquireNow,
			"Acquire fairly": func(b *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return b.Acquire(t.Context(), key, lease.Fair())
			},
			"Acquire under a limit": func(b *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return b.Acquire(t.Context(), key, lease.WaitAtMost(time.Hour))
			},
			"AcquireShared": func(b *lease.Manager, key txlock.Key) (*lease.Lease, error) { return b.AcquireShared(t.Context(), key) },
			"a permit":      permitNow,
		} {
			hold := acquireNow
			if name == "a permit" {
				hold = permitNow
			}
			for _, asked := range []bool{true, false} {
				told := new(answers)
				options := []lease.ManagerOption{lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(time.Second)}
				if !asked {
					options = options[:2]
				}
				b, wire := db.process(options...)
				key := txlock.Named(name)
				held, err := hold(a, key)
				must(t, err)
				info := infoOf(t, held, a)
				info.Key = key
				looks := len(wire.calls("Inspect"))
				time.AfterFunc(10*time.Second, func() { _ = held.Release(context.Background()) })
				l, err := wait(b, key)
				must(t, err)
				if asked || name != "a permit" { // whose wait sees only that none is free
					told.names(t, name, info)
				}
				want := 0
				if asked {
					want = 1
				}
				if n := len(wire.calls("Inspect")) - looks; n != want {
					t.Errorf("%s, asked=%t: %d looks more, want %d", name, asked, n, want)
				}
				release(t, l)
				told.granted, told.waited = txlock.Event{}, txlock.Event{}
				l, err = wait(b, key)
				must(t, err)
				if told.granted.Held != nil || told.waited.Held != nil {
					t.Errorf("%s: free, but %v had it", name, told.granted.Held)
				}
				release(t, l)
			}
		}
	})
}

// onlyPermit acquires the only permit of a key.
func onlyPermit(t *testing.T, m *lease.Manager, key txlock.Key) *lease.Lease {
	t.Helper()
	return permit(t, semaphore(t, m, key, 1))
}

// TestSlowWaitForReaders proves that a writer that waits for a reader to go is told of it: it
// has the lease itself meanwhile.
func TestSlowWaitForReaders(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, told := db.manager(), new(answers)
		b := db.manager(lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(time.Second))
		reader := share(t, a, job)
		info := infoOf(t, reader, a)
		time.AfterFunc(10*time.Second, func() { _ = reader.Release(context.Background()) })
		l := acquire(t, b, job)
		if held := told.granted.Held; held == nil || held.Owner != info.Owner || !held.Since.Equal(info.Since) {
			t.Errorf("%+v, want %+v", held, info)
		}
		release(t, l)
	})
}

// TestSlowWaitBehindOthers proves that a wait behind others of its manager, which never looks
// itself, names who had the lease when it had become slow.
func TestSlowWaitBehindOthers(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, told := db.manager(), new(answers)
		b, wire := db.process(lease.Observe(told.observe), lease.NameHolders())
		held := acquire(t, a, job)
		info := infoOf(t, held, a)
		first := make(chan *lease.Lease, 1)
		go func() { first <- acquire(t, b, job) }()
		time.Sleep(time.Second)
		time.AfterFunc(10*time.Second, func() {
			_ = held.Release(context.Background())
			_ = (<-first).Release(context.Background())
		})
		looks := len(wire.calls("Inspect"))
		l := acquire(t, b, job, lease.SlowWait(time.Second))
		told.names(t, "behind others", info)
		equal(t, "looks", len(wire.calls("Inspect"))-looks, 1)
		release(t, l)
	})
}

// TestSlowWaitLooksInVain proves that a wait ends as without its look if that fails or
// hangs, and that its end doesn't wait for it. The bubble would say if something of it were
// left.
func TestSlowWaitLooksInVain(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a := db.manager()
		told := new(answers)
		b, wire := db.process(lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(time.Second))
		of := semaphore(t, b, job, 1)
		for name, fault := range map[string]func(context.Context, string, store.Row, func() error) error{"fails": fails, "hangs": hangs} {
			wire.fault("Inspect", fault)
			held := onlyPermit(t, a, job)
			released := make(chan time.Time, 1)
			time.AfterFunc(time.Second+50*time.Millisecond, func() { _ = held.Release(context.Background()); released <- time.Now() })
			l := permit(t, of)
			if late := time.Since(<-released); late > time.Second {
				t.Errorf("a look that %s delays the grant by %v", name, late)
			}
			if told.granted.Held != nil || told.waited.Err != nil {
				t.Errorf("a look that %s: %+v", name, told.granted)
			}
			release(t, l)
			wire.Up()
		}
	})
}

// TestSlowWaitOfARefusal proves that a wait in vain tells the observer who was in the way.
func TestSlowWaitOfARefusal(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		a, told := db.manager(), new(answers)
		b := db.manager(lease.Observe(told.observe), lease.NameHolders(), lease.SlowWait(time.Second))
		held := onlyPermit(t, a, job)
		info := infoOf(t, held, a)
		of := semaphore(t, b, job, 1)
		wants(t, "Acquire", second(of.Acquire(limited(t, 10*time.Second))), context.DeadlineExceeded)
		if told.refused.Held == nil || told.refused.Held.Owner != info.Owner {
			t.Errorf("%+v", told.refused.Held)
		}
		release(t, held)
	})
}

// TestSlowWaitersShareALook proves that waiters of one key look together.
func TestSlowWaitersShareALook(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		told := txlock.SlogObserver(slog.New(slog.DiscardHandler))
		a, b := db.manager(), txlock.Named("shared")
		m, wire := db.process(lease.Observe(told), lease.NameHolders(), lease.SlowWait(time.Second))
		wire.fault("Inspect", slow(50*time.Millisecond))
		held := acquire(t, a, b)
		var all sync.WaitGroup
		for range 300 {
			all.Go(func() {
				l := acquire(t, m, b)
				release(t, l)
			})
		}
		time.Sleep(10 * time.Second)
		release(t, held)
		all.Wait()
		wire.sends(t, "Inspect", 1)
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
		if kept < leases/4 {
			t.Errorf("%d of %d are kept", kept, leases)
		}
	})
}

package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// panicking is an observer that panics when it is told of a grant, or of the end of a wait.
type panicking struct {
	txlock.Observer
	in   string
	past int // how many grants it lets pass
}

func (p *panicking) Granted(context.Context, txlock.Event) {
	if p.past--; p.in == "Granted" && p.past < 0 {
		panic(p.in)
	}
}

func (p *panicking) Waited(context.Context, txlock.Event) {
	if p.in == "Waited" {
		panic(p.in)
	}
}

func (p *panicking) Asked(context.Context, txlock.Event) {
	if p.in == "Asked" {
		panic(p.in)
	}
}
func (p *panicking) Released(context.Context, txlock.Event) {}

// TestObserverPanics proves that nothing stays held if the observer panics before the caller
// has the lease, that the panic goes on, and that the manager can be used afterwards.
func TestObserverPanics(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		key, other := txlock.Named("panics"), txlock.Named("panics too")
		for name, c := range map[string]struct {
			in      string
			past    int
			waits   bool
			acquire func(m *lease.Manager) error
		}{
			"Acquire":          {"Granted", 0, false, func(m *lease.Manager) error { return second(m.Acquire(t.Context(), key)) }},
			"Acquire, waiting": {"Waited", 0, true, func(m *lease.Manager) error { return second(m.Acquire(t.Context(), key)) }},
			"HoldAtLeast": {"Granted", 0, false, func(m *lease.Manager) error {
				return second(m.TryAcquire(t.Context(), key, lease.HoldAtLeast(time.Hour)))
			}},
			"AcquireShared": {"Granted", 0, false, func(m *lease.Manager) error { return second(m.AcquireShared(t.Context(), key)) }},
			"a permit": {"Granted", 0, false, func(m *lease.Manager) error {
				of, err := m.Semaphore(txlock.Named("permits"), 1)
				must(t, err)
				return second(of.TryAcquire(t.Context()))
			}},
			"AcquireAll": {"Granted", 1, false, func(m *lease.Manager) error {
				return second(m.AcquireAll(t.Context(), []txlock.Key{key, other}))
			}},
		} {
			watch := &panicking{Observer: txlock.SlogObserver(nil), in: c.in, past: c.past}
			m := db.manager(lease.Observe(watch))
			if c.waits {
				held := acquire(t, db.manager(), key)
				time.AfterFunc(time.Second, func() { _ = held.Release(context.Background()) })
			}
			func() {
				defer func() {
					if said := recover(); said != c.in {
						t.Errorf("%s: the panic is %v", name, said)
					}
				}()
				_ = c.acquire(m)
			}()
			watch.in = ""
			must(t, c.acquire(db.manager())) // it is free for others
			for _, k := range []txlock.Key{key, other, txlock.Named("permits")} {
				_ = m.ForceRelease(t.Context(), k) // what this case has just taken
			}
			must(t, m.Close(t.Context()))
		}
	})
}

// TestObserverPanicsOfReaders proves that a reader whose observer panics before anything is
// asked keeps no slot: the next one has it.
func TestObserverPanicsOfReaders(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		key := txlock.Named("panics")
		watch := &panicking{Observer: txlock.SlogObserver(nil)}
		m := db.manager(lease.Observe(watch))
		slot := func() int64 {
			l, err := m.AcquireShared(t.Context(), key)
			must(t, err)
			in, err := m.Inspect(t.Context(), key)
			must(t, err)
			must(t, l.Release(t.Context()))
			return in.Others[0].Slot
		}
		before := slot()
		watch.in = "Asked"
		func() {
			defer func() {
				if said := recover(); said != watch.in {
					t.Errorf("the panic is %v", said)
				}
			}()
			_, _ = m.AcquireShared(t.Context(), key)
		}()
		watch.in = ""
		if after := slot(); after != before {
			t.Errorf("the next reader has slot %d, the one before had %d", after, before)
		}
	})
}

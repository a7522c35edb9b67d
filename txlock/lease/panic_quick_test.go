package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// panicking is an observer that panics at events of a kind.
type panicking struct {
	in   txlock.Kind
	past int // how many it lets pass
}

func (p *panicking) observe(_ context.Context, e txlock.Event) {
	if e.Kind != p.in {
		return
	}
	if p.past--; p.past < 0 {
		panic(p.in)
	}
}

// TestObserverPanics proves that nothing stays held if the observer panics before the caller
// has the lease, that the panic goes on, and that the manager can be used afterwards.
func TestObserverPanics(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		key, other := txlock.Named("panics"), txlock.Named("panics too")
		for name, c := range map[string]struct {
			in      txlock.Kind
			past    int
			waits   bool
			acquire func(m *lease.Manager) error
		}{
			"Acquire":          {txlock.Granted, 0, false, func(m *lease.Manager) error { return second(m.Acquire(t.Context(), key)) }},
			"Acquire, waiting": {txlock.Waited, 0, true, func(m *lease.Manager) error { return second(m.Acquire(t.Context(), key)) }},
			"HoldAtLeast": {txlock.Granted, 0, false, func(m *lease.Manager) error {
				return second(m.TryAcquire(t.Context(), key, lease.HoldAtLeast(time.Hour)))
			}},
			"AcquireShared": {txlock.Granted, 0, false, func(m *lease.Manager) error { return second(m.AcquireShared(t.Context(), key)) }},
			"a permit": {txlock.Granted, 0, false, func(m *lease.Manager) error {
				of := semaphore(t, m, txlock.Named("permits"), 1)
				return second(of.TryAcquire(t.Context()))
			}},
			"AcquireAll": {txlock.Granted, 1, false, func(m *lease.Manager) error {
				return second(m.AcquireAll(t.Context(), []txlock.Key{key, other}))
			}},
		} {
			watch := &panicking{in: c.in, past: c.past}
			m := db.manager(lease.Observe(watch.observe))
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
		watch := new(panicking)
		m := db.manager(lease.Observe(watch.observe))
		slot := func() int64 {
			l := share(t, m, key)
			in, err := m.Inspect(t.Context(), key)
			must(t, err)
			must(t, l.Release(t.Context()))
			return in.Others[0].Slot
		}
		before := slot()
		watch.in = txlock.Requested
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

package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
		again, err := m.Acquire(lease.WithOwner(t.Context(), l.Owner()), key)
		must(t, err)
		expects("entered twice", 0, 1)
		granted := make(chan *lease.Lease)
		for range 2 {
			go func() { granted <- acquire(t, m, key) }()
		}
		synctest.Wait()
		expects("two wait", 2, 1)
		release(t, again)
		release(t, l)
		l = <-granted
		expects("one waits", 1, 1)
		release(t, l)
		l = <-granted
		release(t, l)
		expects("nobody", 0, 0)
		if _, err := m.Acquire(t.Context(), txlock.Named("")); err == nil {
			t.Error("a key without a name")
		}
		shared, err := m.AcquireShared(t.Context(), named())
		must(t, err)
		down := acquire(t, m, named())
		if _, err := m.TryAcquire(t.Context(), down.Key()); !errors.Is(err, txlock.ErrBusy) {
			t.Errorf("of what is held: %v", err)
		}
		if down, err = down.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		expects("readers", 0, 2)
		release(t, shared)
		release(t, down)
		must(t, m.ForceRelease(t.Context(), acquire(t, m, key).Key()))
		seen.waitFor(t, "lost")
		expects("a loss", 0, 0)
		acquire(t, m, key)
		acquire(t, m, named())
		w.Down(nil)
		time.Sleep(10 * time.Second)
		expects("cut off for longer than the TTL", 0, 0)
		w.Up()
		acquire(t, m, named())
		acquire(t, m, named())
		expects("before the end", 0, 2)
		ended, end := context.WithCancel(t.Context())
		end()
		if err := m.Close(ended); err == nil {
			t.Error("Close under a context that has ended releases all")
		}
		synctest.Wait()
		expects("closed", 0, 0)
	})
}

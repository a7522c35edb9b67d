package tests

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// waiting is the call that waits, on both sides. There is one at a time, so that it is
// known who is the next.
type waiting struct {
	asked
	size   bool // it is Resize
	cancel context.CancelFunc
	done   [2]chan outcome
}

// wait makes a call that may wait.
func (p *play) wait(a asked, call func(ctx context.Context, m *lease.Manager) (*lease.Lease, error)) {
	ctx, cancel := context.WithCancel(a.context())
	p.waiting = &waiting{asked: a, cancel: cancel}
	for i, s := range p.sides {
		done, m := make(chan outcome, 1), s.managers[a.manager]
		p.waiting.done[i] = done
		go func() {
			l, err := call(ctx, m)
			done <- outcome{l, err}
		}()
	}
}

// compareWaiting compares what has become of the call that waits.
func (p *play) compareWaiting() error {
	w := p.waiting
	if w == nil {
		return nil
	}
	if over := [2]bool{len(w.done[0]) > 0, len(w.done[1]) > 0}; over[0] != over[1] {
		return fmt.Errorf("the call that waits has returned: %v on the server, %v in memory", over[0], over[1])
	} else if !over[0] {
		return nil
	}
	w.cancel()
	p.waiting = nil
	p.acquired(w.asked, [2]outcome{<-w.done[0], <-w.done[1]})
	return nil
}

// giveUp ends the call that waits, and its last statement, which may wait for the row
// without it: on the server no time of the bubble passes then.
func (p *play) giveUp(*rapid.T) {
	if p.waiting != nil && p.step("the call that waits is given up") {
		p.waiting.cancel()
		time.Sleep(settlingRow)
	}
}

// acquireWaiting is Acquire.
func (p *play) acquireWaiting(rt *rapid.T) {
	a := p.ask(rt)
	if p.waiting != nil || p.owes || !p.step("Acquire %+v", a) {
		return // it may re-enter before its owner's lease is released, or get the next
	}
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		return m.Acquire(ctx, playKey(a.key), lease.TTL(a.ttl)) // in the queue of all it would wait for the server
	})
}

// share is TryAcquireShared.
func (p *play) share(rt *rapid.T) {
	a := p.ask(rt)
	if !p.step("TryAcquireShared %+v", a) {
		return
	}
	_ = p.try(a, func(_ int, s *side) (*lease.Lease, error) {
		return s.managers[a.manager].TryAcquireShared(a.context(), playKey(a.key), lease.TTL(a.ttl))
	})
}

// shareWaiting is AcquireShared.
func (p *play) shareWaiting(rt *rapid.T) {
	a := p.ask(rt)
	if p.waiting != nil || p.owes || !p.step("AcquireShared %+v", a) {
		return
	}
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		return m.AcquireShared(ctx, playKey(a.key), lease.TTL(a.ttl))
	})
}

// downgrade is Downgrade.
func (p *play) downgrade(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || p.lockedFor(h) || !p.step("Downgrade %s", h) {
		return // it would wait for the end of a transaction that guards it
	}
	_ = p.try(h.asked, func(i int, _ *side) (*lease.Lease, error) { return h.leases[i].Downgrade(context.Background()) })
}

// misuseShared asks for a permit of a key that was shared.
func (p *play) misuseShared(rt *rapid.T) {
	a := p.ask(rt)
	if use := p.use(a.key); use == int64(store.Shared) && !p.entryLocked(a.key) && p.step("permit of a shared key %+v", a) {
		p.tryPermit(a, 2) // where it is locked it would wait
	}
}

// misusePermits asks for the lease of a key that is a semaphore, in all ways.
func (p *play) misusePermits(rt *rapid.T) {
	a := p.ask(rt)
	if use := p.use(a.key); use >= 0 || p.waiting != nil || !p.step("lease of a semaphore's key %+v", a) {
		return // behind another call it would wait
	}
	for i, s := range p.sides {
		m, key := s.managers[a.manager], playKey(a.key)
		for what, call := range map[string]func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
			"Acquire": m.Acquire, "TryAcquire": m.TryAcquire, "AcquireShared": m.AcquireShared, "TryAcquireShared": m.TryAcquireShared,
		} {
			if _, err := call(a.context(), key); !errors.Is(err, txlock.ErrInvalidKey) {
				p.differ("%s on side %d: %v, want ErrInvalidKey", what, i, err)
			}
		}
	}
}

// permits draws how many permits a semaphore is said to have: in most cases as many as
// it has.
func (p *play) permits(rt *rapid.T, key int) int {
	n := rapid.IntRange(1, 3).Draw(rt, "permits")
	if use := p.use(key); use < 0 && rapid.IntRange(0, 3).Draw(rt, "wrong number") > 0 {
		n = int(-use)
	}
	return n
}

// permit is TryAcquire of a semaphore.
func (p *play) permit(rt *rapid.T) {
	a := p.ask(rt)
	if n := p.permits(rt, a.key); p.step("TryAcquire one of %d permits %+v", n, a) {
		p.tryPermit(a, n)
	}
}

func (p *play) tryPermit(a asked, n int) {
	_ = p.try(a, func(_ int, s *side) (*lease.Lease, error) {
		sem, err := s.managers[a.manager].Semaphore(playKey(a.key), n)
		if err != nil {
			return nil, err
		}
		return sem.TryAcquire(a.context(), a.terms()...)
	})
}

// permitWaiting is Acquire of a semaphore.
func (p *play) permitWaiting(rt *rapid.T) {
	a := p.ask(rt)
	n := p.permits(rt, a.key)
	if p.waiting != nil || p.owes || !p.step("Acquire one of %d permits %+v", n, a) {
		return
	}
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		s, err := m.Semaphore(playKey(a.key), n)
		if err != nil {
			return nil, err
		}
		return s.Acquire(ctx, lease.TTL(a.ttl))
	})
}

// resize is Resize of a semaphore, which waits for the permits that it takes away.
func (p *play) resize(rt *rapid.T) {
	a := p.ask(rt)
	n := rapid.IntRange(1, 3).Draw(rt, "permits")
	if p.waiting != nil || p.owes || !p.step("Resize to %d %+v", n, a) {
		return
	}
	p.wait(a, func(ctx context.Context, m *lease.Manager) (*lease.Lease, error) {
		s, err := m.Semaphore(playKey(a.key), 1)
		if err == nil {
			_, err = s.Resize(ctx, n)
		}
		return nil, err
	})
	p.waiting.size = true
}

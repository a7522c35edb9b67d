package tests

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"github.com/dca00107/lockstep/tests/model"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// waiting is the call that waits, here and in the model.
type waiting struct {
	who    asked
	size   bool // it is Resize
	model  *model.Wait
	cancel context.CancelFunc
	asked  atomic.Int64 // how often it has had a connection, since the clock was set
	done   chan outcome
}

type outcome struct {
	lease *lease.Lease
	err   error
}

// wait makes a call that may wait, and returns when it has asked the server. There is
// one at a time, so that it is known who is the next.
func (p *play) wait(a asked, x *model.Wait, call func(context.Context) (*lease.Lease, error)) {
	ctx, cancel := context.WithCancel(a.context())
	w := &waiting{who: a, model: x, cancel: cancel, done: make(chan outcome, 1)}
	p.waiting = w
	go func() {
		l, err := call(onUse(ctx, func() { w.asked.Add(1) }))
		w.done <- outcome{l, err}
	}()
	p.asks(1)
}

// asks waits until the call that waits has asked the server so often, or returns.
func (p *play) asks(often int64) {
	if w := p.waiting; w != nil && !await(p.patience, func() bool { return w.asked.Load() >= often || len(w.done) > 0 }) {
		p.differ("the call that waits has asked the server %d times, not %d", w.asked.Load(), often)
	}
}

// attempted is how often a call has asked the server that has made an attempt to the
// end, which is fewer statements.
const attempted = 12

// setClock sets the clock of the server. A call that waits has seen what it was set to
// before: in one attempt it looks at the clock again only once.
func (p *play) setClock() {
	p.asks(attempted)
	p.clock.Store(p.world.Now)
	if p.waiting != nil {
		p.waiting.asked.Store(0)
	}
}

// waits tells whether a call of a manager waits.
func (p *play) waits(manager int) bool { return p.waiting != nil && p.waiting.model.Manager == manager }

// awaited compares what has become of the call that waits.
func (p *play) awaited() {
	x := p.waiting
	if x == nil || p.wrong != nil {
		return
	}
	var limit <-chan time.Time
	if x.model.Over {
		limit = time.After(p.patience)
	} else {
		now := make(chan time.Time)
		close(now)
		limit = now
	}
	select {
	case o := <-x.done:
		x.cancel()
		p.waiting = nil
		if !x.model.Over {
			p.differ("the call that waits returned %v %v", o.lease, o.err)
			return
		}
		p.granted(o.lease, o.err, x.model.Handle, x.model.Err)
		p.idle()
	case <-limit:
		if x.model.Over {
			p.differ("the call that waits does not return, the model says %v %v", x.model.Handle, x.model.Err)
		}
	}
}

// idle waits until what a call has left behind has been answered: it has a place until
// then.
func (p *play) idle() {
	open := 0
	if p.tx != nil {
		open = 1
	}
	if !await(p.patience, func() bool { return p.pool.Stats().InUse == open }) {
		p.differ("%d connections are in use, %d by the transaction", p.pool.Stats().InUse, open)
	}
}

// giveUp ends the call that waits.
func (p *play) giveUp(*rapid.T) {
	if p.waiting == nil || !p.step("the call that waits is given up") {
		return
	}
	p.waiting.cancel()
	p.world.GiveUp(context.Canceled)
}

// acquireWaiting is Acquire.
func (p *play) acquireWaiting(rt *rapid.T) {
	a := ask(rt)
	if p.waiting != nil || p.world.Owes() || !p.step("Acquire %+v", a) {
		return // it may enter again before its owner's lease is given back, or get the next
	}
	x, m := p.world.Acquire(a.manager, a.key, a.owner, a.ttl.Microseconds()), p.managers[a.manager]
	p.wait(a, x, func(ctx context.Context) (*lease.Lease, error) {
		return m.Acquire(ctx, modelKey(a.key), lease.TTL(a.ttl))
	})
}

// share is TryAcquireShared.
func (p *play) share(rt *rapid.T) {
	a := ask(rt)
	if p.waiting != nil && p.waiting.who.same(a) || !p.step("TryAcquireShared %+v", a) {
		return // as long as the writer has not read its answer, its owner may still read
	}
	h, want := p.world.TryAcquireShared(a.manager, a.key, a.owner, a.ttl.Microseconds())
	p.try(h, want, func() (*lease.Lease, error) {
		return p.managers[a.manager].TryAcquireShared(a.context(), modelKey(a.key), lease.TTL(a.ttl))
	})
}

// shareWaiting is AcquireShared.
func (p *play) shareWaiting(rt *rapid.T) {
	a := ask(rt)
	at := model.At{Key: a.key}
	if gate := p.world.Rows[at]; p.waiting != nil || gate != nil && gate.Use == 0 && p.world.Locked(at) || !p.step("AcquireShared %+v", a) {
		return // for how long it tries to say that the key is shared is no promise
	}
	x, m := p.world.AcquireShared(a.manager, a.key, a.owner, a.ttl.Microseconds()), p.managers[a.manager]
	p.wait(a, x, func(ctx context.Context) (*lease.Lease, error) {
		return m.AcquireShared(ctx, modelKey(a.key), lease.TTL(a.ttl))
	})
}

// downgrade is Downgrade.
func (p *play) downgrade(rt *rapid.T) {
	h := p.handle(rt)
	if h == nil || p.readsGuarded(h) || !p.step("Downgrade %s", h) {
		return
	}
	reader, want := p.world.Downgrade(h)
	p.try(reader, want, func() (*lease.Lease, error) { return p.leases[h].Downgrade(context.Background()) })
}

// readsGuarded tells whether the owner of a handle reads already, by a row that the
// open transaction guards: Downgrade would wait for its end.
func (p *play) readsGuarded(h *model.Handle) bool {
	return slices.ContainsFunc(p.world.Handles, func(other *model.Handle) bool {
		return other.Shared() && other.Manager == h.Manager && other.Owner == h.Owner && p.world.Locked(other.At())
	})
}

// misuseShared asks for a permit of a key that was shared.
func (p *play) misuseShared(rt *rapid.T) {
	a := ask(rt)
	at := model.At{Key: a.key}
	if gate := p.world.Rows[at]; gate == nil || gate.Use != model.Shared || p.world.Locked(at) || !p.step("permit of a shared key %+v", a) {
		return // where it is locked it would wait
	}
	p.tryPermit(a, 2)
}

// misusePermits asks for the lease of a key that is a semaphore, in all ways.
func (p *play) misusePermits(rt *rapid.T) {
	a := ask(rt)
	gate := p.world.Rows[model.At{Key: a.key}]
	if gate == nil || gate.Use >= 0 || p.waiting != nil || !p.step("lease of a semaphore's key %+v", a) {
		return // behind another call it would wait
	}
	m, key := p.managers[a.manager], modelKey(a.key)
	for what, call := range map[string]func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
		"Acquire": m.Acquire, "TryAcquire": m.TryAcquire, "AcquireShared": m.AcquireShared, "TryAcquireShared": m.TryAcquireShared,
	} {
		_, err := call(a.context(), key)
		p.same(what, err, txlock.ErrInvalidKey)
	}
}

// permits draws how many permits a semaphore is said to have: in most cases as many as
// it has.
func (p *play) permits(rt *rapid.T, key int) int {
	n := rapid.IntRange(1, 3).Draw(rt, "permits")
	if gate := p.world.Rows[model.At{Key: key}]; gate != nil && gate.Use < 0 && rapid.IntRange(0, 3).Draw(rt, "wrong number") > 0 {
		n = -gate.Use
	}
	return n
}

// permit is TryAcquire of a semaphore.
func (p *play) permit(rt *rapid.T) {
	a := ask(rt)
	if n := p.permits(rt, a.key); p.step("TryAcquire one of %d permits %+v", n, a) {
		p.tryPermit(a, n)
	}
}

func (p *play) tryPermit(a asked, n int) {
	h, want := p.world.TryPermit(a.manager, a.key, n, a.owner, a.ttl.Microseconds())
	p.try(h, want, func() (*lease.Lease, error) {
		s, err := p.managers[a.manager].Semaphore(modelKey(a.key), n)
		if err != nil {
			return nil, err
		}
		return s.TryAcquire(a.context(), lease.TTL(a.ttl))
	})
}

// permitWaiting is Acquire of a semaphore.
func (p *play) permitWaiting(rt *rapid.T) {
	a := ask(rt)
	n := p.permits(rt, a.key)
	if p.waiting != nil || !p.step("Acquire one of %d permits %+v", n, a) {
		return
	}
	s, err := p.managers[a.manager].Semaphore(modelKey(a.key), n)
	p.same("Semaphore", err, nil)
	x := p.world.AcquirePermit(a.manager, a.key, n, a.owner, a.ttl.Microseconds())
	p.wait(a, x, func(ctx context.Context) (*lease.Lease, error) { return s.Acquire(ctx, lease.TTL(a.ttl)) })
}

// resize is Resize of a semaphore, which waits for the permits that it takes away.
func (p *play) resize(rt *rapid.T) {
	a := ask(rt)
	n := rapid.IntRange(1, 3).Draw(rt, "permits")
	if p.waiting != nil || !p.step("Resize to %d %+v", n, a) {
		return
	}
	s, err := p.managers[a.manager].Semaphore(modelKey(a.key), 1)
	p.same("Semaphore", err, nil)
	p.wait(a, p.world.Resize(a.manager, a.key, n), func(ctx context.Context) (*lease.Lease, error) {
		_, err := s.Resize(ctx, n)
		return nil, err
	})
	p.waiting.size = true
}

package quorum_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// client tries to get the lease, holds it, and releases it.
func (w *world) client(ctx context.Context, c int, m *quorum.Manager, rounds int) {
	for range rounds {
		w.await(c, "try")
		l, err := m.TryAcquire(ctx, job)
		if err != nil {
			continue
		}
		w.granted(c, l)
		w.await(c, "release")
		w.ends(c, l)
		_ = l.Release(ctx) // it may be lost, and the nodes not answer
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trying--
}

// granted checks that a lease that is granted is held and has the highest token.
func (w *world) granted(c int, l *quorum.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case l.Token() <= w.highest:
		w.wrong = cmp.Or(w.wrong, "a token that is not above all before")
	case !l.Valid():
		w.wrong = cmp.Or(w.wrong, "a grant that is not held")
	}
	w.highest = max(w.highest, l.Token())
	w.grants++
	w.holders[c] = l
}

// ends checks that a lease that is held until now is nobody else's.
func (w *world) ends(c int, l *quorum.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holders, c)
	if !l.Valid() {
		return
	}
	if l.Token() < w.highest {
		w.wrong = cmp.Or(w.wrong, "a lease that is held after the next was granted")
	}
	for _, other := range w.holders {
		if other.Valid() {
			w.wrong = cmp.Or(w.wrong, "two holders")
		}
	}
}

// await waits until a client's next step is decided.
func (w *world) await(client int, op string) {
	w.arrive(&call{client: client, node: -1, op: op}, nil)
}

// decides has the calls of a client to a node wait until they are decided.
func (w *world) decides(client, node int) memstore.Fault {
	return func(ctx context.Context, op string, _ store.Row, send func() error) error {
		cut := func() error { return cmp.Or(ctx.Err(), mysql.ErrInvalidConn) }
		c := &call{client: client, node: node, op: op}
		switch w.arrive(c, ctx.Done()) {
		case lost:
			return cut()
		case delay:
			err := send()
			c.reached = true
			if w.arrive(c, ctx.Done()) == lost {
				return cut()
			}
			return err
		}
		return send()
	}
}

// arrive has a call wait for its decision, or for its context.
func (w *world) arrive(c *call, ended <-chan struct{}) kind {
	w.mu.Lock()
	if w.open {
		w.mu.Unlock()
		return deliver
	}
	c.decided = make(chan kind, 1)
	w.fresh = append(w.fresh, c)
	w.mu.Unlock()
	select {
	case k := <-c.decided:
		return k
	case <-ended:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	is := func(other *call) bool { return other == c }
	w.calls, w.fresh = slices.DeleteFunc(w.calls, is), slices.DeleteFunc(w.fresh, is)
	return lost
}

// decide decides until all clients have come to their end.
func (w *world) decide(choose func(all []decision) int) {
	for range 1000 {
		synctest.Wait()
		w.mu.Lock()
		all := w.possible()
		if w.trying == 0 || w.wrong != "" {
			w.mu.Unlock()
			break
		}
		var next decision
		if len(all) > 0 {
			next = all[choose(all)]
			w.take(next)
		}
		w.mu.Unlock()
		if len(all) == 0 { // a client waits for a moment
			time.Sleep(5 * time.Millisecond)
		}
		if next.kind == pass {
			time.Sleep(next.d)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
	for _, c := range append(w.calls, w.fresh...) {
		c.decided <- deliver
	}
}

// possible returns what may happen next: first the call that has waited for longest. The
// caller holds world.mu.
func (w *world) possible() (all []decision) {
	slices.SortFunc(w.fresh, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.node, b.node), cmp.Compare(a.op, b.op))
	})
	w.calls, w.fresh = append(w.calls, w.fresh...), nil
	if len(w.calls) == 0 {
		return nil
	}
	for _, c := range w.calls {
		all = append(all, decision{kind: deliver, call: c})
	}
	for _, c := range w.calls {
		if c.node >= 0 && w.left[lost] > 0 {
			all = append(all, decision{kind: lost, call: c})
		}
		if c.node >= 0 && w.left[delay] > 0 && !c.reached {
			all = append(all, decision{kind: delay, call: c})
		}
	}
	for _, k := range []kind{pass, stop} {
		for _, d := range passes {
			if w.left[k] > 0 {
				all = append(all, decision{kind: k, d: d})
			}
		}
	}
	for _, k := range []kind{empty, set} {
		for n := range w.nodes {
			if w.left[k] > 0 {
				all = append(all, decision{kind: k, node: n})
			}
		}
	}
	return all
}

// take does what was decided, but for letting time pass. The caller holds world.mu.
func (w *world) take(d decision) {
	w.left[d.kind]--
	switch d.kind {
	case deliver, delay, lost:
		w.calls = slices.DeleteFunc(w.calls, func(c *call) bool { return c == d.call })
		d.call.decided <- d.kind
	case stop:
		for _, node := range w.nodes {
			node.Skip(d.d)
		}
	case empty:
		w.nodes[d.node].Forget()
		if w.countsAtOnce {
			_ = w.nodes[d.node].Store().BeginEpoch(context.Background(), rand.Text(), time.Hour) // nothing fails
		}
	case set:
		w.nodes[d.node].SetClock(w.clock)
	}
}

package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
	"github.com/dca00107/lockstep/txlock/lease"
)

// round is one attempt at a majority. Each node is asked by a goroutine of its own,
// in this order:
//
//  1. The node grants the lease, and its data are old enough to count.
//  2. When a majority has granted, the highest of their tokens is the lease's.
//  3. Each of them raises its token to that and confirms it, so that every later
//     majority has a node that knows of it. The other nodes, whose leases only make
//     the majority larger, stand in for those that fail.
//  4. When a majority has confirmed, and is still held by the clock, the lease is
//     granted.
//
// Validity that is judged before the confirmations, or confirmations that are not
// awaited, let a token go back: see TestExplorer.
type round struct {
	m    *Manager
	r    *record
	stop func() // of what the nodes are asked

	decided  chan struct{} // closed when the token is known
	standIn  chan struct{} // closed when one of those that have decided it has failed
	granted  chan struct{} // closed when a majority has confirmed it
	hopeless chan struct{} // closed when none can
	settled  chan struct{} // closed when all nodes are done with
	asked    atomic.Int64  // nodes that are not done with

	mu        sync.Mutex
	token     uint64
	votes     int
	confirmed int
	failed    int // of which somebody else has busy, and out are not to be had
	busy, out int
	needed    bool // others have to stand in
	errs      []error
	why       error // of a round that has failed
}

// try asks all nodes once.
func (m *Manager) try(ctx context.Context, q *request) (*Lease, error) {
	if l := m.local(q); l != nil {
		return l, nil
	}
	n, limit := len(m.nodes), m.options.timeout(q.ttl)
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	unhook := context.AfterFunc(m.closing, cancel)
	stop := func() {
		unhook()
		cancel()
	}
	a := &round{
		m: m, r: m.newRecord(q), stop: stop, errs: make([]error, n),
		decided: make(chan struct{}), standIn: make(chan struct{}), granted: make(chan struct{}), hopeless: make(chan struct{}), settled: make(chan struct{}),
	}
	a.r.asked = a.settled
	a.asked.Store(int64(n))
	// Those that answer after the call go on, until Close.
	defer context.AfterFunc(ctx, stop)()
	for i := range n {
		if !m.errands.Go(func() { a.node(asking, i) }) {
			a.fail(i, ErrClosed)
			a.done()
		}
	}
	select {
	case <-a.granted:
		l := a.r.start(a.token)
		if l == nil {
			break
		}
		if err := m.keep(a.r); err != nil {
			return nil, errors.Join(err, l.Release(ctx))
		}
		return l, nil
	case <-a.hopeless:
	}
	stop()
	m.giveBack(ctx, a.r.abandon(), q.ttl)
	late := time.NewTimer(limit)
	defer late.Stop()
	select { // of those that have granted it, for whoever else tries
	case <-a.settled:
	case <-late.C:
	case <-ctx.Done():
	}
	return nil, a.err(ctx)
}

// node asks one node. What it grants is given back if it is not wanted any more.
func (a *round) node(ctx context.Context, node int) {
	defer a.done()
	l, err := a.ask(ctx, node)
	if err != nil {
		a.fail(node, err)
		return
	}
	raises := a.decided
	if !a.vote(l.Token()) {
		raises = a.standIn
	}
	select {
	case <-raises:
		err = nodes.RaiseToken(ctx, l, a.token)
	case <-a.granted:
	case <-a.hopeless:
		err = errOver
	}
	if err == nil {
		err = a.r.join(node, l)
	}
	if err != nil {
		a.m.drop(l, a.r.ttl)
		a.fail(node, err)
		return
	}
	a.confirm(l.Token())
}

// ask asks a node for its lease. A round that has ended doesn't wait for the answer, but
// Close does: what is granted then is given back.
func (a *round) ask(ctx context.Context, node int) (*lease.Lease, error) {
	type answer struct {
		lease *lease.Lease
		err   error
	}
	answers := make(chan answer)
	if !a.m.errands.Go(func() {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.m.options.timeout(a.r.ttl))
		defer cancel()
		defer context.AfterFunc(a.m.ending, cancel)()
		l, err := a.m.ask(asking, node, a.r.request)
		select {
		case answers <- answer{l, err}:
		case <-ctx.Done():
			if err == nil {
				a.m.drop(l, a.r.ttl)
			}
		}
	}) {
		return nil, ErrClosed
	}
	select {
	case o := <-answers:
		return o.lease, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// vote counts a node that has granted the lease with a token, and tells whether it is
// one of those that decide.
func (a *round) vote(token uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.votes++; a.votes > a.m.majority {
		return false
	}
	a.token = max(a.token, token)
	if a.votes == a.m.majority {
		close(a.decided)
	}
	a.giveUp()
	return true
}

// confirm counts a node that has the token of the lease, or a higher one.
func (a *round) confirm(token uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.token {
		return
	}
	if a.confirmed++; a.confirmed == a.m.majority {
		close(a.granted)
	}
}

// fail notes why a node doesn't count.
func (a *round) fail(node int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errs[node] = err
	a.failed++
	if a.votes >= a.m.majority && !a.needed {
		a.needed = true
		close(a.standIn)
	}
	switch {
	case errors.Is(err, txlock.ErrBusy):
		a.busy++
	case !errors.Is(err, errOver):
		a.out++
	}
	a.r.explain(node, err)
	a.giveUp()
}

// giveUp ends a round that can't have a majority any more, once it is known why: there
// is none to be reached, or else somebody has the lease.
func (a *round) giveUp() {
	minority := len(a.errs) - a.m.majority
	if a.why != nil || a.failed <= minority {
		return
	}
	switch {
	case a.out > minority:
		a.why = txlock.ErrNoQuorum
	case a.votes+a.busy >= a.m.majority:
		a.why = txlock.ErrBusy
	default:
		return
	}
	close(a.hopeless)
}

// done counts a node that nothing is asked of any more.
func (a *round) done() {
	if a.asked.Add(-1) == 0 {
		close(a.settled)
		a.stop()
	}
}

// err says why the round has failed.
func (a *round) err(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.m.open(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.why == nil {
		return fmt.Errorf("%w: the databases have answered too late for a majority to be held for certain: the TTL of %v is too short for them", txlock.ErrNoQuorum, a.r.ttl)
	}
	nodes := slices.Clone(a.errs)
	for i, err := range nodes {
		if errors.Is(err, errOver) || errors.Is(err, context.Canceled) {
			nodes[i] = nil // ours, or not known any more
		}
	}
	return &majorityError{a.why, a.m.majority, nodes}
}

// ask acquires the lease of one node, where the node counts.
func (m *Manager) ask(ctx context.Context, node int, q *request) (*lease.Lease, error) {
	l, err := m.nodes[node].TryAcquire(lease.WithOwner(ctx, q.id), q.key, q.opts...)
	if err != nil {
		return nil, err
	}
	// After the grant: data that are lost later are told by the next who looks.
	if err := m.counts(ctx, node); err != nil {
		m.drop(l, q.ttl)
		return nil, err
	}
	return l, nil
}

// drop gives back the lease of one node that nobody has.
func (m *Manager) drop(l *lease.Lease, ttl time.Duration) {
	m.giveBack(context.Background(), []*lease.Lease{l}, ttl)
}

// grace is how long nodes may answer after the majority, beside as long again.
const grace = 5 * time.Millisecond

// giveBack releases the leases of nodes, at once. It waits for a majority, or
// the first where there is none, and for the others for as long again: those are released
// behind the call. Only what the lease
// of a node says, which tries on until it has expired, is told.
func (m *Manager) giveBack(ctx context.Context, nodes []*lease.Lease, ttl time.Duration) []error {
	type answer struct {
		node int
		err  error
	}
	errs := make([]error, len(nodes))
	answers := make(chan answer, len(nodes))
	waiting, began := 0, time.Now()
	for i, l := range nodes {
		if l == nil {
			continue
		}
		waiting++
		errs[i] = errNoAnswer
		release := func() {
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.options.timeout(ttl))
			defer cancel()
			defer context.AfterFunc(m.ending, cancel)()
			err := l.Release(limited)
			if errors.Is(err, txlock.ErrNotHeld) { // it was lost there, or is gone
				err = nil
			}
			answers <- answer{i, err}
		}
		if !m.errands.Go(release) {
			release()
		}
	}
	ended := ctx.Done()
	if ctx.Err() != nil { // before: the release is all that is left to do
		ended = nil
	}
	var late <-chan time.Time
	enough := max(waiting-(len(nodes)-m.majority), 1)
	for held := waiting; waiting > 0; waiting-- {
		if late == nil && held-waiting >= enough {
			late = time.After(time.Since(began) + grace)
		}
		select {
		case a := <-answers:
			errs[a.node] = a.err
		case <-late:
			return errs
		case <-ended:
			return errs
		}
	}
	return errs
}

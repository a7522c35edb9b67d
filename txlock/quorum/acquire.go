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
	"github.com/dca00107/lockstep/txlock/lease"
)

// round is one attempt at a majority. Each node has a goroutine of its own, and the steps
// are these:
//
//  1. The node grants the lease, and its data are old enough to count.
//  2. When a majority has granted, the highest of their tokens becomes the lease's.
//  3. Each of these nodes raises its token to that and confirms it, so that every later
//     majority includes a node that knows the token. The other nodes only make the
//     majority larger. They stand in for those that fail, but for a node whose token is
//     higher: somebody may have had the lease after the token was decided.
//  4. When a majority has confirmed, and is still held by the clock, the lease is
//     granted.
//
// If the clock were checked before the confirmations, or the confirmations were not
// awaited, a token could go back: see TestExplorer. So the last node that confirms starts
// the lease, before a node can join it whose token nobody has compared.
type round struct {
	m    *Manager
	r    *record
	stop func() // cancels what the nodes are asked

	decided  chan struct{} // closed when the token is known
	standIn  chan struct{} // closed when one of the nodes that have decided it has failed
	granted  chan struct{} // closed when a majority has confirmed it; lease is set
	hopeless chan struct{} // closed when no majority is possible any more
	settled  chan struct{} // closed when no node is asked any more
	asked    atomic.Int64  // how many nodes are still asked

	mu        sync.Mutex
	token     uint64
	lease     *Lease // nil if its time is over
	votes     int
	confirmed int
	failed    int  // nodes that don't count
	busy, out int  // of these: held by somebody else, and not reached
	needed    bool // others must stand in
	errs      []error
	why       error // why the round has failed
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
	// Nodes that answer later go on in the background, until Close.
	defer context.AfterFunc(ctx, stop)()
	for i := range n {
		if !m.tasks.Go(func() { a.node(asking, i) }) {
			a.fail(i, ErrClosed)
			a.done(i)
		}
	}
	select {
	case <-a.granted:
		l := a.lease
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
	m.releaseNodes(ctx, a.r.abandon(), q.ttl)
	late := time.NewTimer(limit)
	defer late.Stop()
	select { // let the nodes that have granted it release it, for others who try
	case <-a.settled:
	case <-late.C:
	case <-ctx.Done():
	}
	return nil, a.err(ctx)
}

// node asks one node. What the node grants is released if it is not needed any more.
func (a *round) node(ctx context.Context, node int) {
	defer a.done(node)
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
		if err = errAhead; l.Token() <= a.token {
			err = inner.RaiseToken(ctx, l, a.token)
		}
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

// ask asks a node for its lease. When the round has ended, it doesn't wait for the
// answer, but Close does: what is granted then is released.
func (a *round) ask(ctx context.Context, node int) (*lease.Lease, error) {
	type answer struct {
		lease *lease.Lease
		err   error
	}
	answers := make(chan answer)
	if !a.m.tasks.Go(func() {
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

var errAhead = errors.New("its token is higher than that of the quorum, of which a node has failed; retry")

// vote counts a node that has granted the lease with a token, and reports whether the node
// is one of the majority that decides the lease's token.
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
		a.lease = a.r.start(a.token)
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

// giveUp ends a round that can't get a majority any more, when the reason is known: a
// majority can't be reached, or somebody else has the lease. The caller holds round.mu.
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

// done counts a node that is not asked any more.
func (a *round) done(node int) {
	a.r.answered(node)
	if a.asked.Add(-1) == 0 {
		close(a.settled)
		a.stop()
	}
}

// err returns why the round has failed.
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
		return fmt.Errorf("%w: the databases answered too late for a certain quorum; the TTL of %v is too short for them", txlock.ErrNoQuorum, a.r.ttl)
	}
	nodes := slices.Clone(a.errs)
	for i, err := range nodes {
		if errors.Is(err, errOver) || errors.Is(err, context.Canceled) {
			nodes[i] = nil // we have cancelled it, so its answer is not known
		}
	}
	return &majorityError{a.why, a.m.majority, nodes}
}

// ask acquires the lease of one node, if the node counts.
func (m *Manager) ask(ctx context.Context, node int, q *request) (*lease.Lease, error) {
	l, err := m.nodes[node].TryAcquire(lease.WithOwner(ctx, q.id), q.key, q.opts...)
	if err != nil {
		return nil, err
	}
	// After the grant: if the data are lost later, the next look finds out.
	if err := m.counts(ctx, node); err != nil {
		m.drop(l, q.ttl)
		return nil, err
	}
	return l, nil
}

// drop releases the lease of one node that is not part of a lease here.
func (m *Manager) drop(l *lease.Lease, ttl time.Duration) {
	m.releaseNodes(context.Background(), []*lease.Lease{l}, ttl)
}

// grace is how long the other nodes may answer after the majority, in addition to the
// time that the majority has taken.
const grace = 5 * time.Millisecond

// releaseNodes releases the leases of nodes, all at once, and returns their errors. It
// waits for a majority, or for one node if there is no majority, and then for the others
// for the same time again; those that are left are released in the background. The lease
// of a node itself tries again until it is released or has expired.
func (m *Manager) releaseNodes(ctx context.Context, nodes []*lease.Lease, ttl time.Duration) []error {
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
			if errors.Is(err, txlock.ErrNotHeld) { // it was lost there, or has ended
				err = nil
			}
			answers <- answer{i, err}
		}
		if !m.tasks.Go(release) {
			release()
		}
	}
	ended := ctx.Done()
	if ctx.Err() != nil { // it had ended before the release was asked for
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

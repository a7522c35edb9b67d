package quorum

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// record is a lease that a manager holds for an owner. All handles of the owner share it.
type record struct {
	m *Manager
	*request
	token uint64 // set before the first handle
	until time.Time
	asked <-chan struct{} // closed when all nodes have answered the round of the grant

	mu      sync.Mutex          // guards the fields below; locked before Manager.mu, never after
	nodes   []*lease.Lease      // by node; nil if not held there
	why     []error             // why it is not held there
	asking  []bool              // by node: the round of the grant or mend asks it
	handles map[*Lease]struct{} // nil before the grant
	over    bool                // lost, or all handles are released
	lost    error
	timer   *time.Timer
}

func (m *Manager) newRecord(q *request) *record {
	n := len(m.nodes)
	r := &record{m: m, request: q, nodes: make([]*lease.Lease, n), why: make([]error, n), asking: slices.Repeat([]bool{true}, n)}
	if q.terms.MaxLifetime > 0 {
		r.until = time.Now().Add(q.terms.MaxLifetime)
	}
	return r
}

// start makes the first handle of a lease whose token a majority has confirmed. It checks
// the clock last, and returns nil if the lease's time is over.
func (r *record) start(token uint64) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.valid() < r.m.majority {
		return nil
	}
	r.token, r.handles = token, make(map[*Lease]struct{}, 1)
	r.timer = time.AfterFunc(r.pause(), r.tend)
	return r.handle()
}

// enter makes another handle, if the lease still counts and the manager is open.
func (r *record) enter() *Lease {
	r.check()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.m.open() != nil {
		return nil
	}
	return r.handle()
}

func (r *record) handle() *Lease {
	l := &Lease{r: r}
	l.life, l.end = context.WithCancelCause(context.Background())
	r.handles[l] = struct{}{}
	return l
}

// join adds the lease of a node. Nothing can be added after the lease has fallen below a
// majority: somebody else may have had it since.
func (r *record) join(node int, l *lease.Lease) error {
	r.check()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return errOver
	}
	r.nodes[node], r.why[node] = l, nil
	return nil
}

// answered notes that the round of the grant asks a node no more, so that it may be mended.
func (r *record) answered(node int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking[node] = false
}

// explain notes why a node is not held.
func (r *record) explain(node int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why[node] = err
}

var errOver = errors.New("it is no longer wanted")

// valid counts the nodes whose leases are certainly held. The caller holds record.mu.
func (r *record) valid() (n int) {
	for _, l := range r.nodes {
		if l != nil && l.Valid() {
			n++
		}
	}
	return n
}

// check ends the lease when fewer than a majority of the nodes are left. A node's lease
// that is over doesn't come back, so nothing is missed between two calls.
func (r *record) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handles == nil || r.over || r.valid() >= r.m.majority {
		return
	}
	errs := make([]error, len(r.nodes))
	for i := range r.nodes {
		_, errs[i] = r.at(i)
	}
	r.lost = fmt.Errorf("quorum lease %q, token %d: %w", r.key, r.token, &majorityError{txlock.ErrLost, r.m.majority, errs})
	for l := range r.handles {
		l.end(r.lost)
	}
	nodes := r.finish()
	r.m.tasks.Go(func() { r.m.releaseNodes(context.Background(), nodes, r.ttl) })
}

// finish ends the record, and returns the leases of the nodes for release. The caller
// holds record.mu.
func (r *record) finish() []*lease.Lease {
	nodes := r.nodes
	r.over, r.nodes = true, make([]*lease.Lease, len(nodes))
	if r.timer != nil {
		r.timer.Stop()
		r.m.forget(r)
	}
	return nodes
}

// abandon ends a record that was not granted, and returns the leases of the nodes for
// release.
func (r *record) abandon() []*lease.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finish()
}

// leave removes a handle. After the last one, the caller releases the nodes.
func (r *record) leave(l *Lease) (nodes []*lease.Lease, last bool, lost error) {
	r.check()
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.released {
		return nil, false, nil
	}
	l.released = true
	if r.lost != nil {
		return nil, false, r.lost
	}
	l.end(fmt.Errorf("quorum lease %q, token %d: %w: it was released", r.key, r.token, txlock.ErrNotHeld))
	delete(r.handles, l)
	if len(r.handles) > 0 {
		return nil, false, nil
	}
	return r.finish(), true, nil
}

// node returns the lease of a node, or why there is none.
func (r *record) node(index int) (*lease.Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at(index)
}

// at does what node does. The caller holds record.mu.
func (r *record) at(index int) (*lease.Lease, error) {
	l, why := r.nodes[index], r.why[index]
	if l != nil {
		if why = l.Err(); why == nil {
			return l, nil
		}
	}
	if why == nil {
		why = errNoAnswer
	}
	return nil, why
}

var errNoAnswer = errors.New("it has not answered yet")

// left returns for how much longer a majority is held.
func (r *record) left() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stays()
}

// stays does what left does. The caller holds record.mu.
func (r *record) stays() time.Duration {
	left := make([]time.Duration, len(r.nodes))
	for i, l := range r.nodes {
		if l != nil {
			left[i] = l.Remaining()
		}
	}
	slices.Sort(left)
	return left[len(left)-r.m.majority]
}

// pause is how long to wait until the next look at the lease. The caller holds record.mu.
func (r *record) pause() time.Duration {
	return max(min(r.ttl/4, r.stays()), time.Millisecond)
}

// tend ends a lease that has lost its majority, and acquires missing nodes again; the
// timer calls it.
func (r *record) tend() {
	r.check()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	for i, l := range r.nodes {
		// A node where it was released by force is not acquired again.
		if (l == nil || !l.Valid() && !errors.Is(l.Err(), lease.ErrReplaced)) && !r.asking[i] {
			r.asking[i] = r.m.tasks.Go(func() { r.mend(i, l) })
		}
	}
	r.timer.Reset(r.pause())
}

// mend acquires the lease of a node that is missing. It first releases what is left of
// one that was lost.
func (r *record) mend(node int, old *lease.Lease) {
	if old != nil {
		r.m.drop(old, r.ttl)
	}
	err := r.acquireNode(node)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking[node] = false
	if err != nil {
		r.nodes[node], r.why[node] = nil, err
	}
}

// acquireNode acquires the lease of one node, for a lease that a majority holds.
func (r *record) acquireNode(node int) error {
	q := *r.request
	if !r.until.IsZero() {
		left := time.Until(r.until)
		if left < r.ttl {
			return fmt.Errorf("%w: its maximum lifetime has nearly ended", txlock.ErrNotHeld)
		}
		q.opts = append(slices.Clone(q.opts), lease.MaxLifetime(left))
	}
	ctx, cancel := context.WithTimeout(r.m.ending, r.m.options.timeout(r.ttl))
	defer cancel()
	l, err := r.m.ask(ctx, node, &q)
	if err != nil {
		return err
	}
	if err = inner.RaiseToken(ctx, l, r.token); err == nil {
		err = r.join(node, l)
	}
	if err != nil {
		r.m.drop(l, r.ttl)
	}
	return err
}

// all returns the handles of the record.
func (r *record) all() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.handles))
}

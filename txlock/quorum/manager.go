package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ErrClosed is returned by a Manager that was closed.
var ErrClosed = errors.New("quorum: the manager is closed")

// inner is what package lease does for lockstep's own packages.
var inner = lease.Internal(bridge.Pass{})

// Manager acquires leases over several databases. Any number of managers and programs may
// share the databases, if all use the same ones. Its methods may be called from any
// goroutine.
type Manager struct {
	nodes    []*lease.Manager
	majority int
	options  options

	closing context.Context // of the waiters: ends when Close is called
	close   context.CancelFunc
	ending  context.Context // of what the nodes are asked: ends with Close
	end     context.CancelFunc
	tasks   *leaseutil.Tasks

	mu      sync.Mutex
	closed  bool // Close was called
	records map[recordKey]*record
	turns   map[string]*turn
	epochs  []string // of the nodes, as last seen
}

// recordKey identifies a record of a manager.
type recordKey struct{ key, owner string }

// New returns a manager of leases over the databases of the given managers, which stay
// open when it is closed, and are needed until then. There are 3, 5, 7 or 9 of them. Each
// is of a database of its own that shares no server, no replication and no storage with
// the others: what makes two of them fail at once counts as two failures. The terms of a
// lease (TTL, MaxLifetime, WaitAtMost) are those of the managers, which must be the same.
// New sends nothing. Close the manager when it isn't needed any more, which ends its
// goroutines.
//
// New databases count when MaxTTL and ClockSkew have passed since their first use: see
// Install.
//
// It returns txlock.ErrInvalidOption for another number of managers, the same manager or
// pool twice, different terms, and an option out of its range; and lease.ErrClosed for a
// manager that is closed.
func New(managers []*lease.Manager, opts ...Option) (*Manager, error) {
	n := len(managers)
	if err := checkNumber(n); err != nil {
		return nil, err
	}
	o := optionsOf(opts)
	var terms leaseutil.Terms
	pools := make(map[any]int, n)
	for i, m := range managers {
		if m == nil {
			return nil, fmt.Errorf("%w: manager %d is nil", txlock.ErrInvalidOption, i)
		}
		if first, again := pools[inner.Identity(m)]; again {
			return nil, fmt.Errorf("%w: managers %d and %d have the same pool: each needs a database of its own", txlock.ErrInvalidOption, first, i)
		}
		pools[inner.Identity(m)] = i
		t, err := inner.Terms(m)
		if err != nil {
			return nil, fmt.Errorf("manager %d: %w", i, err)
		}
		if i > 0 && t != terms {
			return nil, fmt.Errorf("%w: managers 0 and %d have other terms, %+v and %+v: give them the same options", txlock.ErrInvalidOption, i, terms, t)
		}
		terms = t
	}
	if err := o.check(terms); err != nil {
		return nil, err
	}
	m := &Manager{
		nodes: append([]*lease.Manager(nil), managers...), majority: n/2 + 1, options: o,
		tasks:   leaseutil.NewTasks(),
		records: make(map[recordKey]*record), turns: make(map[string]*turn), epochs: make([]string, n),
	}
	m.closing, m.close = context.WithCancel(context.Background())
	m.ending, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Acquire takes the lease of a key in a majority of the databases, and waits until it is
// free, by trying again after random pauses. It asks all databases at once, and waits for
// none of them longer than NodeTimeout; a database that answers later, or was down, joins
// the lease in the background. An owner that holds the lease already re-enters it in the
// same manager, with the same token and without a statement. The owner is that of the
// context of Do or Lease.Context for this key, or the one that lease.WithOwner names.
//
// It may return txlock.ErrNoQuorum with the errors of the nodes if a majority was missing three
// times in a row; ErrWaitTimeout (see lease.WaitAtMost), ErrInvalidKey, ErrInvalidOption,
// ErrClosed, lease.ErrClosed and the context's error. If it returns an error, the lease is not
// held: what the databases have granted, or may have, is released in the background, until its
// TTL has passed.
func (m *Manager) Acquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	l, err := m.wait(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("acquire quorum lease %q: %w", key, err)
	}
	return l, nil
}

// TryAcquire acquires the lease without waiting: it asks once, and returns txlock.ErrBusy
// if a majority can be reached but is not free. If several try at the same time, it may
// be that none gets a majority.
func (m *Manager) TryAcquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	l, err := m.try(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("try to acquire quorum lease %q: %w", key, err)
	}
	return l, nil
}

// Do acquires the lease, calls fn and releases the lease, also if fn panics or the
// context has ended. The context of fn ends when the lease is lost, with txlock.ErrLost
// as its cause, and carries the lease: Do and Acquire of the same key under it re-enter
// the lease, and those of other keys exclude each other. It is the Do of a lease.Manager
// for several databases.
//
// It returns the error of fn, joined by txlock.ErrLost if the lease was lost before fn
// returned, and the errors of Acquire and Release. If fn has guarded transactions that
// are still open, the lease is released when they end, without an error.
func (m *Manager) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...lease.AcquireOption) error {
	if fn == nil {
		return errors.New("quorum: Do needs a function, got nil")
	}
	l, err := m.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return leaseutil.Do(ctx, l, lease.ErrGuarded, fn)
}

// Close releases all leases of the manager, whose handles are released. It waits until
// the databases have answered all that they were asked, for each as long as NodeTimeout
// says, or until the context ends: what was not released then ends after its TTL. Calls
// that wait return ErrClosed, and so do all later calls. Closing again does nothing. The
// managers of the databases stay open.
func (m *Manager) Close(ctx context.Context) error {
	if ctx == nil {
		return errors.New("quorum: Close needs a context, got nil")
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	records := m.records
	m.records = make(map[recordKey]*record)
	m.mu.Unlock()
	m.close()
	finished := make(chan error, 1)
	go func() {
		err := releaseAll(ctx, records)
		m.tasks.End()
		m.tasks.Wait()
		finished <- err
	}()
	defer m.end()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return fmt.Errorf("quorum: close: its work in the background has not ended: %w", ctx.Err())
	}
}

// releaseAll releases all handles of the records at once.
func releaseAll(ctx context.Context, records map[recordKey]*record) error {
	var handles []*Lease
	for _, r := range records {
		handles = append(handles, r.all()...)
	}
	return errors.Join(each(len(handles), func(i int) error {
		if err := handles[i].Release(ctx); !errors.Is(err, txlock.ErrNotHeld) {
			return err
		}
		return nil
	})...)
}

// request is one call of Acquire, TryAcquire or Do.
type request struct {
	key   txlock.Key
	owner string
	named bool             // the owner may hold the lease already
	from  *leaseutil.Owner // the innermost owner of the context
	id    string           // the owner for the nodes, of this call alone
	terms leaseutil.Terms
	ttl   time.Duration
	opts  []lease.AcquireOption
	seen  error // of the last try
}

// request checks a call before anything is sent.
func (m *Manager) request(ctx context.Context, key txlock.Key, opts []lease.AcquireOption) (*request, error) {
	if err := m.open(); err != nil {
		return nil, err
	}
	if err := key.Validate(); err != nil {
		return nil, err
	}
	q := &request{key: key, opts: opts, from: leaseutil.Owners(ctx)}
	for i, node := range m.nodes {
		t, err := inner.Terms(node, opts...)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		q.terms, q.ttl = t, t.TTL
	}
	if err := m.options.checkTerms(q.terms); err != nil {
		return nil, err
	}
	var err error
	if q.owner, q.named, err = inner.OwnerOf(ctx); err != nil {
		return nil, err
	}
	q.id = q.owner
	if q.named { // two calls of an owner must not re-enter each other's leases of nodes
		id := "/" + uuid.NewString()
		q.id = q.owner[:min(len(q.owner), 255-len(id))] + id
	}
	return q, nil
}

// open returns ErrClosed for a manager that was closed.
func (m *Manager) open() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	return nil
}

// local re-enters what this manager holds for the owner of the request: the holder of a
// lease of this key that the context carries, or the owner that the context names. It
// returns nil if there is nothing.
func (m *Manager) local(q *request) *Lease {
	for o := leaseutil.For[*Lease](q.from, q.key); o != nil && o.Lease != nil; o = leaseutil.For[*Lease](o.Outer, q.key) {
		if r := o.Lease.(*Lease).r; r.m == m {
			if l := r.enter(); l != nil {
				return l
			}
		}
	}
	if !q.named {
		return nil
	}
	m.mu.Lock()
	r := m.records[recordKey{q.key.String(), q.owner}]
	m.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.enter()
}

// keep adds a record to the manager, unless that is closed.
func (m *Manager) keep(r *record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.records[recordKey{r.key.String(), r.owner}] = r
	return nil
}

// forget removes a record that has ended from the manager.
func (m *Manager) forget(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := (recordKey{r.key.String(), r.owner}); m.records[at] == r {
		delete(m.records, at)
	}
}

// each calls f for 0 to n-1 at once, and returns the errors.
func each(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errs
}

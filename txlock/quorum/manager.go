package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ErrClosed is returned by a Manager that was closed.
var ErrClosed = errors.New("quorum: the manager is closed")

// Manager acquires leases over several databases. Any number of managers and
// programs may share them, if all have the same databases. Its methods may be called
// from any goroutine.
type Manager struct {
	nodes    []*lease.Manager
	majority int
	options  options

	closing context.Context // of waits, until Close is called
	close   context.CancelFunc
	ending  context.Context // of what is asked of the nodes, until the end of Close
	end     context.CancelFunc
	errands *underlease.Errands

	mu      sync.Mutex
	closed  bool // no new requests
	records map[recordKey]*record
	turns   map[string]*turn
	epochs  []string // of the nodes, as they were seen last
}

// recordKey is what a record is found by.
type recordKey struct{ key, owner string }

// New returns a manager of leases over the databases of the managers, which stay the
// caller's and are needed until Close. There are 3, 5, 7 or 9, each of a database of
// its own that shares no server, no replication and no storage with the others: what
// takes two of them down at once counts as two failures. The terms of a lease (TTL,
// MaxLifetime, WaitAtMost) are those of the managers, which have the same. Nothing is
// sent yet; close the manager when it isn't needed any more, which ends its goroutines.
//
// New databases count when MaxTTL and ClockSkew have passed since they were first
// used: see Install.
//
// It returns txlock.ErrInvalidOption for another number of managers, the same manager
// or pool twice, terms that differ, and an option out of its range; lease.ErrClosed for
// a manager that is closed.
func New(managers []*lease.Manager, opts ...Option) (*Manager, error) {
	n := len(managers)
	if err := checkNumber(n); err != nil {
		return nil, err
	}
	o := optionsOf(opts)
	var terms nodes.Terms
	pools := make(map[any]int, n)
	for i, m := range managers {
		if m == nil {
			return nil, fmt.Errorf("%w: manager %d is nil", txlock.ErrInvalidOption, i)
		}
		if first, again := pools[nodes.Of(m).Identity()]; again {
			return nil, fmt.Errorf("%w: managers %d and %d have the same pool: each needs a database of its own", txlock.ErrInvalidOption, first, i)
		}
		pools[nodes.Of(m).Identity()] = i
		t, err := nodes.Of(m).Terms([]lease.AcquireOption(nil))
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
		errands: underlease.NewErrands(),
		records: make(map[recordKey]*record), turns: make(map[string]*turn), epochs: make([]string, n),
	}
	m.closing, m.close = context.WithCancel(context.Background())
	m.ending, m.end = context.WithCancel(context.Background())
	return m, nil
}

// Acquire takes the lease of a key in a majority of the databases and waits until it
// is free, by trying again after random pauses. All databases are asked at once, and
// none is waited for longer than NodeTimeout; one that answers later, or was down,
// joins the lease behind the call. Who holds the lease already, by the context of Do or
// Lease.Context for its key, or by lease.WithOwner, enters it again in the same manager,
// with the same token and without a statement.
//
// It may return txlock.ErrNoQuorum with the errors of the nodes where a majority
// couldn't be had three times in a row; ErrWaitTimeout (see lease.WaitAtMost),
// ErrInvalidKey, ErrInvalidOption, ErrClosed, lease.ErrClosed and the context's error.
// Where it returns an error the lease is not held: what the databases have granted, or
// may have, is given back behind the call until its time to live is over.
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

// TryAcquire is Acquire that doesn't wait: it asks once, and returns txlock.ErrBusy
// where a majority is not free, though it could be reached. Of several that try at the
// same time it may be that none gets a majority.
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

// Do acquires the lease, calls fn and releases it, also when fn panics or the
// context has ended. The context of fn ends when the lease is lost, with ErrLost as
// its cause, and carries the lease: Do and Acquire of the same key under it enter
// again, and those of other keys exclude each other.
//
// It returns the error of fn, joined by txlock.ErrLost where the lease was lost
// before fn returned, and what Acquire and Release return. Where fn has guarded
// transactions that are still open, the lease is given back after their end.
func (m *Manager) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...lease.AcquireOption) error {
	if fn == nil {
		return errors.New("quorum: Do needs a function, got nil")
	}
	l, err := m.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return underlease.Do(ctx, l, lease.ErrGuarded, fn)
}

// Close gives back all leases of the manager, whose holders find them released, and
// waits until the databases have answered all that was asked of them, for each as long
// as NodeTimeout says, or until the context ends: then what was not given back ends with
// its time to live. Calls that wait return ErrClosed, as all later ones do. Closing again
// does nothing. The managers of the databases stay open.
func (m *Manager) Close(ctx context.Context) error {
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
		m.errands.End()
		m.errands.Wait()
		finished <- err
	}()
	defer m.end()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return fmt.Errorf("quorum: close: what goes on behind the calls has not ended: %w", ctx.Err())
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

// request is one call of Acquire or its likes.
type request struct {
	key   txlock.Key
	owner string
	named bool              // the owner may hold the lease already
	from  *underlease.Owner // with the leases that the context carries
	id    string            // the owner that the nodes know: of this call alone
	terms nodes.Terms
	ttl   time.Duration
	opts  []lease.AcquireOption
	seen  error // what the last try has met
}

// request checks a call before anything is sent.
func (m *Manager) request(ctx context.Context, key txlock.Key, opts []lease.AcquireOption) (*request, error) {
	if err := m.open(); err != nil {
		return nil, err
	}
	if err := key.Validate(); err != nil {
		return nil, err
	}
	q := &request{key: key, opts: opts, from: underlease.Owners(ctx)}
	for i, node := range m.nodes {
		t, err := nodes.Of(node).Terms(opts)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		q.terms, q.ttl = t, t.TTL
	}
	if err := m.options.checkTerms(q.terms); err != nil {
		return nil, err
	}
	var err error
	if q.owner, q.named, err = lease.OwnerOf(ctx); err != nil {
		return nil, err
	}
	q.id = q.owner
	if q.named { // two calls of an owner must not enter each other's nodes
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

// local returns a handle of what this manager holds for the holder of a lease of this
// key that the context carries, or for the owner that it names, or nil.
func (m *Manager) local(q *request) *Lease {
	for o := underlease.For[*Lease](q.from, q.key); o != nil && o.Lease != nil; o = underlease.For[*Lease](o.Outer, q.key) {
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

// keep makes a record one that is found, unless the manager is closed.
func (m *Manager) keep(r *record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.records[recordKey{r.key.String(), r.owner}] = r
	return nil
}

// forget takes a record that has ended out of the manager.
func (m *Manager) forget(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := (recordKey{r.key.String(), r.owner}); m.records[at] == r {
		delete(m.records, at)
	}
}

// each calls f for 0 to n-1 at once, and returns its errors.
func each(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errs
}

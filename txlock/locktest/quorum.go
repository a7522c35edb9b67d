package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// Quorum stands in for quorum.Manager. The Memory is all of its databases, of which a
// test lets some fail; it has no use besides then.
type Quorum struct {
	leases    *Manager
	databases int
	options   []quorum.Option

	failed map[int]error // of the databases, by number: under Memory.mu
}

// Quorum returns a manager of leases over so many databases, in place of quorum.New:
// the terms are the options of its lease.Managers. It returns txlock.ErrInvalidOption
// as that does.
func (m *Memory) Quorum(databases int, terms []lease.Option, options ...quorum.Option) (*Quorum, error) {
	leases, err := m.Manager(terms...)
	if err != nil {
		return nil, err
	}
	q := &Quorum{leases: leases, databases: databases, options: options, failed: make(map[int]error)}
	leases.quorum = q
	t, err := lease.TermsOf(leases.options...)
	if err == nil {
		err = q.check(t)
	}
	return q, err
}

// Fail makes databases answer with an error, such as that of a connection that is lost,
// or with nil again. Only this manager sees it. Where a majority fails nothing is granted,
// renewed or given back, and who waits is told; what is held is lost when its time is over.
func (q *Quorum) Fail(err error, databases ...int) {
	memory := q.leases.memory
	memory.mu.Lock()
	defer memory.mu.Unlock()
	for _, i := range databases {
		if i < 0 || i >= q.databases {
			panic(fmt.Sprintf("locktest: Fail(%d): the databases are numbered from 0 to %d", i, q.databases-1))
		}
		q.failed[i] = err
	}
	if err := q.majority(); err != nil {
		for _, row := range memory.leases {
			for _, w := range slices.Clone(row.queue) {
				if w.m == q.leases {
					row.leave(w, leaseOutcome{err: err})
				}
			}
		}
	}
}

// majority returns txlock.ErrNoQuorum where a majority fails, under Memory.mu.
func (q *Quorum) majority() error {
	needed := q.databases/2 + 1
	var failed []error
	for i := range q.databases {
		if err := q.failed[i]; err != nil {
			failed = append(failed, fmt.Errorf("node %d: %w", i, err))
		}
	}
	if q.databases-len(failed) >= needed {
		return nil
	}
	return fmt.Errorf("%w: %d of %d databases are needed: %w", txlock.ErrNoQuorum, needed, q.databases, errors.Join(failed...))
}

// answers is majority for who has not locked the memory.
func (q *Quorum) answers() error {
	q.leases.memory.mu.Lock()
	defer q.leases.memory.mu.Unlock()
	return q.majority()
}

func (q *Quorum) check(terms nodes.Terms) error {
	return quorum.Check(q.databases, terms, q.options...)
}

// Install is that of quorum.Manager, and does nothing where all databases answer.
func (q *Quorum) Install(context.Context) error {
	memory := q.leases.memory
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if q.leases.closed {
		return quorum.ErrClosed
	}
	for i := range q.databases {
		if err := q.failed[i]; err != nil {
			return fmt.Errorf("install quorum: %w: %d of %d databases are needed: node %d: %w", txlock.ErrNoQuorum, q.databases, q.databases, i, err)
		}
	}
	return nil
}

// Acquire is that of quorum.Manager. Who waits is served first come, first served.
func (q *Quorum) Acquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*QuorumLease, error) {
	return q.acquire(ctx, "acquire quorum", key, opts, true)
}

// TryAcquire is that of quorum.Manager.
func (q *Quorum) TryAcquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*QuorumLease, error) {
	return q.acquire(ctx, "try to acquire quorum", key, opts, false)
}

// Do is that of quorum.Manager.
func (q *Quorum) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *QuorumLease) error, opts ...lease.AcquireOption) error {
	return do(ctx, fn, func() (*QuorumLease, error) { return q.Acquire(ctx, key, opts...) })
}

// Close is that of quorum.Manager.
func (q *Quorum) Close(ctx context.Context) error { return q.leases.Close(ctx) }

func (q *Quorum) acquire(ctx context.Context, verb string, key txlock.Key, opts []lease.AcquireOption, wait bool) (*QuorumLease, error) {
	l, err := q.leases.acquire(ctx, verb, key, exclusive, opts, wait)
	if err != nil {
		return nil, err
	}
	return &QuorumLease{handle: l, lease: l, by: q}, nil
}

// handle is what a lease over one database and over several have in common.
type handle interface {
	Key() txlock.Key
	Token() uint64
	Owner() string
	Err() error
	Valid() bool
	Done() <-chan struct{}
	Left() time.Duration
	Context(ctx context.Context) (context.Context, context.CancelFunc)
}

// QuorumLease stands in for quorum.Lease.
type QuorumLease struct {
	handle
	lease *Lease
	by    *Quorum
}

// Node is that of quorum.Lease: it returns the lease in the database of that number, to
// guard a transaction.
func (l *QuorumLease) Node(index int) (*Lease, error) {
	if index < 0 || index >= l.by.databases {
		return nil, fmt.Errorf("%w: Node(%d): the databases are numbered from 0 to %d", txlock.ErrInvalidOption, index, l.by.databases-1)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	l.lease.memory().mu.Lock()
	defer l.lease.memory().mu.Unlock()
	if err := l.by.failed[index]; err != nil {
		return nil, fmt.Errorf("quorum lease %q, node %d: %w there at the moment: %w", l.Key(), index, txlock.ErrNotHeld, err)
	}
	return l.lease, nil
}

// Renew is that of quorum.Lease.
func (l *QuorumLease) Renew(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.by.answers(); err != nil {
		return fmt.Errorf("renew quorum lease %q: %w", l.Key(), err)
	}
	return l.lease.Renew(ctx)
}

// Release is that of quorum.Lease.
func (l *QuorumLease) Release(context.Context) error {
	memory := l.lease.memory()
	memory.mu.Lock()
	defer memory.mu.Unlock()
	h := l.lease.holding
	h.check()
	before, failed := len(h.handles), l.by.majority()
	err := l.lease.release(failed == nil)
	if last := before == 1 && len(h.handles) == 0; last && err == nil && failed != nil {
		err = fmt.Errorf("release quorum lease %q: %w", h.key, failed)
	}
	return err
}

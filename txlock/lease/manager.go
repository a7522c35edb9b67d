package lease

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/sqlstore"
	"github.com/dca00107/lockstep/txlock/internal/store"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
)

// ErrClosed is returned by a Manager that was closed.
var ErrClosed = errors.New("lease: the manager is closed")

// instant is a moment by this machine's clock.
type instant = store.Instant

// Manager acquires leases on one database, renews those that it holds and cleans
// up. Any number of managers and processes may share the database. Its methods may
// be called from any goroutine.
type Manager struct {
	store   store.Store
	options options

	closing life // of the waits, until Close is called
	ending  life // of the loops, until Close has released what is held
	undoing life // of what gives back behind the calls, until the end of Close
	errands *underlease.Errands
	start   sync.Once
	nudge   chan struct{} // wakes the loop of renewals
	// granting counts the requests under way that may be granted.
	granting atomic.Int64
	// sleepsUntil is when the loop wakes up by itself, or awake.
	sleepsUntil atomic.Int64

	mu      sync.Mutex
	closed  bool // no new requests
	records map[recordKey]*record
	queues  map[string]*queue
	slots   map[slotOf]struct{} // of readers
	waits   map[place]struct{}

	firstSlot int64       // of readers
	sweeping  atomic.Bool // idle rows of readers are being removed
	oneNode   atomic.Bool // the database is no multi-primary cluster, as far as was asked
}

// life is the context of what a manager does behind the calls.
type life struct {
	context.Context
	end context.CancelFunc
}

func newLife() (l life) {
	l.Context, l.end = context.WithCancel(context.Background())
	return l
}

// recordKey is what a record is found by.
type recordKey struct {
	key, owner string
	shared     bool
	slot       int64 // of a permit, else 0
}

// NewManager returns a manager of leases on the pool, which stays the caller's.
// Nothing is sent yet; close the manager when it isn't needed any more, which ends its
// goroutines. While leases are held it has one connection for renewals: over a guarded
// pool one more, which the pool's connector makes and MaxOpenConns doesn't count, over a
// plain pool one of the pool's. While open transactions guard leases that are to be renewed
// it has up to four more of them, of a plain pool no more than half of all. A plain pool of a single connection lends that for each
// renewal, which then has to wait for a transaction that has it: one that lasts longer
// than the TTL loses the lease.
//
// It returns txlock.ErrInvalidOption for an option out of its range.
func NewManager(db *sql.DB, opts ...ManagerOption) (*Manager, error) {
	if db == nil {
		return nil, errors.New("lease: NewManager needs a *sql.DB, got nil")
	}
	o := defaults
	for _, option := range opts {
		option.toManager(&o)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	s := store.Of(db)
	if s == nil {
		s = sqlstore.New(db)
	}
	m := &Manager{
		store:   s,
		options: o,
		errands: underlease.NewErrands(),
		nudge:   make(chan struct{}, 1),
		records: make(map[recordKey]*record),
		queues:  make(map[string]*queue),
		slots:   make(map[slotOf]struct{}),
		waits:   make(map[place]struct{}),
		// Far from the permits, and from the slots of other managers.
		firstSlot: 1<<32 + rand.Int64N(1<<62),
	}
	m.closing, m.ending, m.undoing = newLife(), newLife(), newLife()
	m.sleepsUntil.Store(awake)
	return m, nil
}

// observe calls the observer, where there is one.
func (m *Manager) observe(tell func(txlock.Observer)) {
	if m.options.observer != nil {
		tell(m.options.observer)
	}
}

// recordOf returns the record that what was granted to a request would be entered in
// again, or nil.
func (m *Manager) recordOf(q *request, slot int64) *record {
	at := recordKey{key: q.key.String(), owner: q.owner, shared: q.shared}
	if !q.shared {
		at.slot = slot
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[at]
}

// local returns a handle of what this manager holds for the owner, or nil, and
// refuses to make a reader a writer. For an owner who waits for readers in another call
// it returns errReading: that call may give up.
func (m *Manager) local(q *request) (*Lease, error) {
	switch {
	case !q.named:
		return nil, nil
	case q.under != nil:
		return m.again(q)
	}
	own := recordKey{key: q.key.String(), owner: q.owner}
	m.mu.Lock()
	writer := m.records[own]
	own.shared = true
	reader := m.records[own]
	m.mu.Unlock()
	if writer != nil {
		if writer.isDraining() && writer.err() == nil {
			return nil, errReading
		}
		if l := writer.enter(false); l != nil {
			return l, nil
		}
	}
	if reader == nil || reader.err() != nil {
		return nil, nil
	}
	if !q.shared {
		return nil, upgrade(q.owner)
	}
	return reader.enter(false), nil
}

// keep makes the handle of what was granted.
func (m *Manager) keep(q *request, a store.Answer, since instant, pending bool) (*Lease, error) {
	r, l := m.newRecord(q, a, since, pending)
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errors.Join(ErrClosed, l.Release(context.Background()))
	}
	m.records[r.at()] = r
	m.mu.Unlock()
	m.start.Do(m.startLoops)
	m.expect(since.Add(r.every()))
	if pending {
		m.errands.Go(func() { m.reserveBehind(r) })
	}
	return l, nil
}

// reserveBehind opens the lane for a lease whose transaction has had the last connection.
func (m *Manager) reserveBehind(r *record) {
	ctx, cancel := context.WithTimeout(m.ending, max(r.left(), 0))
	defer cancel()
	_ = m.store.Reserve(ctx) // the renewals try again, and say so
}

// forget takes a record that has ended out of the manager.
func (m *Manager) forget(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.at()] == r {
		delete(m.records, r.at())
	}
}

// startLoops starts what goes on behind the calls.
func (m *Manager) startLoops() {
	m.errands.Go(m.renewals)
	if m.options.janitor > 0 {
		m.errands.Go(m.janitor)
	}
}

// sleep waits for a time, or until the context or the manager ends.
func (m *Manager) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-m.ending.Done():
		return ErrClosed
	}
}

// untilClosed returns a context that Close ends, with ErrClosed as its cause.
func (m *Manager) untilClosed(ctx context.Context) (context.Context, func()) {
	open, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.closing, func() { end(ErrClosed) })
	return open, func() { stop(); end(nil) }
}

// unlessClosed returns the error of a call, which is ErrClosed where Close has ended it.
func unlessClosed(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return err
}

// ready is open, and refuses a database whose sessions are unfit, which is asked once.
func (m *Manager) ready(ctx context.Context) error {
	if err := m.open(); err != nil {
		return err
	}
	return m.store.Ready(ctx)
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

package lease

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/holderlookup"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/sqlstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// ErrClosed is returned by a Manager that was closed.
var ErrClosed = errors.New("lease: the manager is closed")

// instant is a moment by this machine's clock.
type instant = store.Instant

// A Manager acquires leases on one database, renews those that it holds, and deletes unused rows.
// Any number of managers and processes may share the database. Its methods may be called from any
// goroutine.
type Manager struct {
	store   store.Store
	options options

	closing life // of the waiters: ends when Close is called
	ending  life // of the loops: ends when Close has released what is held
	undoing life // of releases in the background: ends with Close
	tasks   *leaseutil.Tasks
	start   sync.Once
	nudge   chan struct{} // wakes the loop of renewals
	chunk   int           // how many leases that renews at most by the next statement: see pace
	fit     atomic.Bool   // the database has been found fit for leases
	// granting counts the requests that may be granted at the moment, and holding what is held: for
	// Settle, which can't wait for mu.
	granting, holding atomic.Int64
	// looks are those under way for NameHolders and SlowWait.
	looks holderlookup.Shared[txlock.Key, []store.Info]
	// sleepsUntil is when the loop of renewals wakes up by itself, or awake.
	sleepsUntil atomic.Int64

	mu        sync.Mutex
	closed    bool // no new requests
	functions functions
	records   map[recordKey]*record
	queues    map[string]*queue
	slots     map[slotOf]struct{} // of readers
	waits     map[place]struct{}

	firstSlot int64       // of readers
	sweeping  atomic.Bool // idle rows of readers are being removed
	oneNode   atomic.Bool // we have asked: the database is no multi-primary cluster
	dropped   atomic.Bool // a handle was dropped
}

// life is the context of work in the background.
type life struct {
	context.Context
	end context.CancelFunc
}

func newLife() (l life) {
	l.Context, l.end = context.WithCancel(context.Background())
	return l
}

// recordKey identifies a record of a manager.
type recordKey struct {
	key, owner string
	shared     bool
	slot       int64 // of a permit, else 0
}

// NewManager returns a manager of leases on the pool. It sends nothing to the server. Close the
// manager when it is no longer needed, which ends its goroutines; the pool stays open.
//
// While the manager holds leases it keeps one connection for renewals. On a guarded pool this is an
// additional connection, which MaxOpenConns doesn't count; on an unguarded pool it is one of the
// pool's. While open transactions guard leases that must be renewed, it uses up to four more
// connections; of an unguarded pool, at most half of all. On an unguarded pool with a single
// connection, the manager borrows it for each renewal, and the renewal waits while a transaction
// uses it: a transaction that takes longer than the TTL loses the lease.
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
		tasks:   leaseutil.NewTasks(),
		nudge:   make(chan struct{}, 1),
		chunk:   renewalChunk,
		records: make(map[recordKey]*record),
		queues:  make(map[string]*queue),
		slots:   make(map[slotOf]struct{}),
		waits:   make(map[place]struct{}),
		// Far above the permits' slots; random, to differ from other managers' slots.
		firstSlot: 1<<32 + rand.Int64N(1<<62),
	}
	m.closing, m.ending, m.undoing = newLife(), newLife(), newLife()
	m.sleepsUntil.Store(awake)
	return m, nil
}

// observe calls the observer, if there is one.
func (m *Manager) observe(ctx context.Context, e txlock.Event) {
	if m.options.observer != nil {
		m.options.observer(ctx, e)
	}
}

// troubled tells the observer of work in the background that has failed.
func (m *Manager) troubled(key txlock.Key, what string, err error) {
	if err == nil || m.ending.Err() != nil {
		return
	}
	e := txlock.Event{Kind: txlock.Requested, Lease: true, Key: key}
	m.observe(m.ending, e)
	e.Kind, e.Err = txlock.Refused, fault.Explain(what, err)
	m.observe(m.ending, e)
}

// recordOf returns the record that this manager has already of what was granted to a
// request, or nil.
func (m *Manager) recordOf(q *request, slot int64) *record {
	at := recordKey{key: q.key.String(), owner: q.owner, shared: q.shared}
	if !q.shared {
		at.slot = slot
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[at]
}

// local re-enters what this manager holds for the owner of the request, without a
// statement. It returns nil if it holds nothing, txlock.ErrUpgrade if a reader asks for
// the exclusive lease, and errReading if the owner waits for readers in another call:
// that call may fail.
func (m *Manager) local(q *request) (*Lease, error) {
	switch {
	case !q.named:
		return nil, nil
	case q.under != nil:
		return m.reenter(q)
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

// keep makes the handle of a lease that was granted, and starts its renewals.
func (m *Manager) keep(q *request, a store.Answer, since instant, pending bool) (*Lease, error) {
	r, l := m.newRecord(q, a, since, pending)
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errors.Join(ErrClosed, l.Release(context.Background()))
	}
	m.records[r.at()] = r
	m.holding.Store(int64(len(m.records)))
	m.mu.Unlock()
	m.start.Do(m.startLoops)
	m.expect(since.Add(r.every()))
	if pending {
		m.tasks.Go(func() { m.reserveLater(r) })
	}
	return l, nil
}

// reserveLater gets the connection for renewals in the background, for a lease whose
// transaction may have taken the last connection of the pool.
func (m *Manager) reserveLater(r *record) {
	ctx, cancel := context.WithTimeout(m.ending, max(r.left(), 0))
	defer cancel()
	_ = m.store.Reserve(ctx) // the renewals try again, and report the error
}

// forget removes a record that has ended from the manager.
func (m *Manager) forget(r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.at()] == r {
		delete(m.records, r.at())
		m.holding.Store(int64(len(m.records)))
	}
}

// startLoops starts the loops that run in the background.
func (m *Manager) startLoops() {
	m.tasks.Go(m.renewals)
	if m.options.cleanupEvery > 0 {
		m.tasks.Go(m.cleanup)
	}
}

// sleep waits for a time, or until the context or the manager ends.
func (m *Manager) sleep(ctx context.Context, d time.Duration) error {
	err := leaseutil.Pause(ctx, d, m.ending.Done())
	if m.ending.Err() != nil {
		return ErrClosed
	}
	return err
}

// untilClosed returns a context that Close ends, with ErrClosed as its cause.
func (m *Manager) untilClosed(ctx context.Context) (context.Context, func()) {
	open, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.closing, func() { end(ErrClosed) })
	return open, func() { stop(); end(nil) }
}

// unlessClosed returns ErrClosed if Close has ended the call, and else the error.
func unlessClosed(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return err
}

// ready returns ErrClosed for a manager that was closed, and the error of a database that
// is unfit for leases.
func (m *Manager) ready(ctx context.Context) error {
	if ctx == nil {
		return errors.New("lease: the call needs a context, got nil")
	}
	if err := m.open(); err != nil || m.fit.Load() {
		return err
	}
	err := m.store.Ready(ctx)
	m.fit.Store(err == nil)
	return err
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

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dca00107/lockstep/internal/underlease"
	"github.com/dca00107/lockstep/txlock"
)

// ErrClosed is returned by a Manager that was closed.
var ErrClosed = errors.New("lease: the manager is closed")

// Manager acquires leases on one database, renews those that it holds and cleans
// up. Any number of managers and processes may share the database. Its methods may
// be called from any goroutine.
type Manager struct {
	db      *prepared
	lane    *lane // to renew on
	options options
	clock   serverClock

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
	records map[hold]*record
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

// hold is what a record is found by.
type hold struct {
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
	m := &Manager{
		lane:    &lane{program: db},
		options: o,
		errands: underlease.NewErrands(),
		nudge:   make(chan struct{}, 1),
		records: make(map[hold]*record),
		queues:  make(map[string]*queue),
		slots:   make(map[slotOf]struct{}),
		waits:   make(map[place]struct{}),
		// Far from the permits, and from the slots of other managers.
		firstSlot: 1<<32 + rand.Int64N(1<<62),
	}
	m.db = &prepared{DB: db, lane: m.lane, inline: txlock.TakesText(db), stmts: make(map[string]*sql.Stmt)}
	m.closing, m.ending, m.undoing = newLife(), newLife(), newLife()
	m.sleepsUntil.Store(awake)
	return m, nil
}

// Acquire takes the lease of a key and waits until it is free: in the order of
// arrival among the goroutines of this manager, by looking again and again among
// processes. It sends one statement where the lease is free; a key that was never
// leased takes three more. Who holds the lease already, by the context of Do or
// Lease.Context for its key, or by WithOwner, enters it again, with the same token
// and, in the same manager, without a statement; the TTL stays that of the first.
//
// It may return txlock.ErrWaitTimeout (see WaitAtMost), ErrTooManyHolds,
// ErrInvalidKey, ErrInvalidOption, ErrSchema, ErrReadOnly, ErrClosed, the errors of
// the driver and the context's, whose end it doesn't outlast. Where it returns an error
// the lease is not held: the server refuses what reaches it past the context's deadline,
// by its own clock, and what it has granted until then is given back behind the call,
// when it has answered, which takes as long as the network does.
func (m *Manager) Acquire(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, "acquire", key, opts)
	if err != nil {
		return nil, err
	}
	return m.finish(ctx, q, m.wait)
}

// TryAcquire is Acquire that doesn't wait: where somebody else holds the lease it
// returns txlock.ErrBusy at once, also while the holder guards it. It may say so for
// a lease that is just being given back. An owner that enters again where the row is
// locked, by others' attempts or by a guard, waits for it for a quarter of a second.
func (m *Manager) TryAcquire(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	q, err := m.request(ctx, "try to acquire", key, opts)
	if err != nil {
		return nil, err
	}
	return m.finish(ctx, q, m.tryOnce)
}

// Do acquires the lease, calls fn and releases it, also when fn panics or the
// context has ended. The context of fn ends when the lease is lost, with ErrLost as
// its cause, and carries the lease: Do and Acquire of the same key under it enter
// again, and those of other keys exclude each other.
//
// It returns the error of fn, joined by txlock.ErrLost where the lease was lost
// before fn returned, and what Acquire and Release return. Where fn has guarded a
// transaction that is still open, the lease is given back after its end.
func (m *Manager) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return m.do(ctx, fn, func() (*Lease, error) { return m.Acquire(ctx, key, opts...) })
}

// do is Do for any way to acquire.
func (m *Manager) do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, acquire func() (*Lease, error)) error {
	if fn == nil {
		return errors.New("lease: Do needs a function, got nil")
	}
	l, err := acquire()
	if err != nil {
		return err
	}
	return underlease.Do(ctx, l, ErrGuarded, fn)
}

// finish calls one way to acquire, says what went wrong and tells the observer.
func (m *Manager) finish(ctx context.Context, q *request, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	l, err := acquire(ctx, q)
	if err != nil {
		m.lane.settle(m.idle())
		err = txlock.Explain(fmt.Sprintf("%s lease %q", q.verb, q.key), err)
	}
	m.observe(func(o txlock.Observer) {
		e := txlock.Event{Lease: true, Key: q.key, Owner: q.owner, Shared: q.shared, Took: q.asked.until(now()), Err: err}
		if err != nil {
			o.Refused(ctx, e)
			return
		}
		e.Token, e.Again = l.Token(), l.again
		o.Granted(ctx, e)
	})
	return l, err
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
	at := hold{key: q.key.String(), owner: q.owner, shared: q.shared}
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
	own := hold{key: q.key.String(), owner: q.owner}
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
func (m *Manager) keep(q *request, token uint64, slot int64, since instant, pending bool) (*Lease, error) {
	r, l := m.newRecord(q, token, slot, since, pending)
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errors.Join(ErrClosed, l.Release(context.Background()))
	}
	m.records[r.at()] = r
	m.mu.Unlock()
	m.start.Do(m.startLoops)
	m.expect(since.add(r.every()))
	if pending {
		m.errands.Go(func() { m.reserveBehind(r) })
	}
	return l, nil
}

// reserveBehind opens the lane for a lease whose transaction has had the last connection.
func (m *Manager) reserveBehind(r *record) {
	ctx, cancel := context.WithTimeout(m.ending, max(r.left(), 0))
	defer cancel()
	_ = m.lane.reserve(ctx) // the renewals try again, and say so
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

package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/underlease"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Manager stands in for lease.Manager: its methods do and return what those do, by the
// clock of the Memory. Nothing renews a lease but Renew: to advance the clock by its TTL
// is to pause its holder for so long. Shared leases, semaphores and AcquireTx it has not.
type Manager struct {
	memory  *Memory
	options []lease.AcquireOption

	closed chan struct{} // under Memory.mu
}

// memoryLease is the row of a lease.
type memoryLease struct {
	token  uint64
	holder *holding
	queue  []*leaseWait
}

// leaseWait is a call that asks for a lease, and may wait for it.
type leaseWait struct {
	m     *Manager
	key   txlock.Key
	terms lease.Terms
	owner string
	named bool
	done  chan leaseOutcome // of one place
}

type leaseOutcome struct {
	lease *Lease
	err   error
}

// Manager returns a manager of the leases in this memory, whose calls have these
// options before their own. It returns txlock.ErrInvalidOption for one out of its range.
func (m *Memory) Manager(options ...lease.Option) (*Manager, error) {
	manager := &Manager{memory: m, closed: make(chan struct{})}
	for _, option := range options {
		manager.options = append(manager.options, option)
	}
	_, err := lease.TermsOf(manager.options...)
	return manager, err
}

// Acquire is that of lease.Manager. Who waits is served first come, first served among
// all managers of the Memory.
func (m *Manager) Acquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	return m.acquire(ctx, "acquire", key, opts, true)
}

// TryAcquire is that of lease.Manager.
func (m *Manager) TryAcquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	return m.acquire(ctx, "try to acquire", key, opts, false)
}

// Do is that of lease.Manager.
func (m *Manager) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...lease.AcquireOption) error {
	if fn == nil {
		return errors.New("locktest: Do needs a function, got nil")
	}
	l, err := m.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return underlease.Do(ctx, l, lease.ErrGuarded, fn)
}

// ForceRelease is that of lease.Manager, but its holder is told at once: so a test takes
// a lease away.
func (m *Manager) ForceRelease(_ context.Context, key txlock.Key) error {
	if err := key.Validate(); err != nil {
		return err
	}
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if m.isClosed() {
		return fmt.Errorf("force the release of lease %q: %w", key, lease.ErrClosed)
	}
	h := m.memory.leaseOf(key).current()
	if h == nil {
		return fmt.Errorf("force the release of lease %q: %w", key, txlock.ErrNotHeld)
	}
	h.lose(errReplaced)
	return nil
}

// Close is that of lease.Manager: it gives back what was acquired by this manager.
func (m *Manager) Close(context.Context) error {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if m.isClosed() {
		return nil
	}
	close(m.closed)
	var err error
	for _, row := range m.memory.leases {
		for _, w := range slices.Clone(row.queue) {
			if w.m == m {
				row.leave(w, leaseOutcome{err: lease.ErrClosed})
			}
		}
		if h := row.current(); h != nil && h.by == m {
			for _, l := range slices.Clone(h.handles) {
				err = errors.Join(err, l.release())
			}
		}
	}
	return err
}

func (m *Manager) isClosed() bool {
	select {
	case <-m.closed:
		return true
	default:
		return false
	}
}

func (m *Manager) acquire(ctx context.Context, verb string, key txlock.Key, opts []lease.AcquireOption, wait bool) (*Lease, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	terms, err := lease.TermsOf(slices.Concat(m.options, opts)...)
	if err != nil {
		return nil, err
	}
	w := &leaseWait{m: m, key: key, terms: terms, done: make(chan leaseOutcome, 1)}
	if w.owner, w.named, err = lease.OwnerOf(ctx); err != nil {
		return nil, err
	}
	l, waits, err := w.ask(ctx, wait)
	if waits {
		l, err = w.await(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s lease %q: %w", verb, key, err)
	}
	return l, nil
}

// ask gives the lease, or a place among those who wait.
func (w *leaseWait) ask(ctx context.Context, wait bool) (l *Lease, waits bool, err error) {
	memory := w.m.memory
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if w.m.isClosed() {
		return nil, false, lease.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	row := memory.leaseOf(w.key)
	switch h := row.current(); {
	case h != nil && w.named && h.owner == w.owner:
		return h.enter(), false, nil
	case h == nil && len(row.queue) == 0:
		return row.give(w), false, nil
	case !wait:
		return nil, false, txlock.ErrBusy
	}
	row.queue = append(row.queue, w)
	memory.wait(w.key, 1)
	return nil, true, nil
}

// await waits for the lease, until the limit or the end of the context.
func (w *leaseWait) await(ctx context.Context) (*Lease, error) {
	memory := w.m.memory
	leave := func(err error) {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		memory.leaseOf(w.key).leave(w, leaseOutcome{err: err})
	}
	if limit := w.terms.WaitAtMost; limit > 0 {
		defer memory.clock.after(limit, func() {
			leave(fmt.Errorf("%w: somebody else has held it for %v", txlock.ErrWaitTimeout, limit))
		})()
	}
	defer context.AfterFunc(ctx, func() { leave(ctx.Err()) })()
	o := <-w.done
	return o.lease, o.err
}

// leaseOf returns the row of a lease, under Memory.mu as all below.
func (m *Memory) leaseOf(key txlock.Key) *memoryLease {
	row := m.leases[key.String()]
	if row == nil {
		row = new(memoryLease)
		m.leases[key.String()] = row
	}
	return row
}

// current returns who holds the lease, whose time is not over.
func (row *memoryLease) current() *holding {
	if row.holder != nil {
		row.holder.check()
	}
	return row.holder
}

// give makes the lease that of an owner.
func (row *memoryLease) give(w *leaseWait) *Lease {
	memory := w.m.memory
	row.token = memory.nextToken(row.token)
	h := &holding{by: w.m, row: row, key: w.key, owner: w.owner, token: row.token, terms: w.terms}
	if w.terms.MaxLifetime > 0 {
		h.ends = memory.clock.now().Add(w.terms.MaxLifetime)
	}
	row.holder = h
	h.extend()
	return h.enter()
}

// serve gives the lease to the first who waits, and to those of the same owner.
func (row *memoryLease) serve() {
	for _, w := range slices.Clone(row.queue) {
		var l *Lease
		switch h := row.holder; {
		case h == nil:
			l = row.give(w)
		case w.named && h.owner == w.owner:
			l = h.enter()
		default:
			continue
		}
		row.leave(w, leaseOutcome{lease: l})
	}
}

// leave takes a call out of the queue with its outcome, unless it has one.
func (row *memoryLease) leave(w *leaseWait, o leaseOutcome) {
	i := slices.Index(row.queue, w)
	if i < 0 {
		return
	}
	row.queue = slices.Delete(row.queue, i, i+1)
	w.m.memory.wait(w.key, -1)
	w.done <- o
}

// errReplaced and errExpired are the causes of a loss.
var (
	errReplaced = errors.New("it was taken over or released by force")
	errExpired  = errors.New("its time is over and it was not renewed")
	errLifetime = errors.New("its maximum lifetime is over")
)

// holding is a lease that an owner holds.
type holding struct {
	by      *Manager
	row     *memoryLease
	key     txlock.Key
	owner   string
	token   uint64
	terms   lease.Terms
	ends    time.Time // of MaxLifetime
	until   time.Time // when it expires
	stop    func()    // the alarm for that
	lost    error
	handles []*Lease
}

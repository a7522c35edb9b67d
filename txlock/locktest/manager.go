package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// Manager stands in for lease.Manager: its methods do and return what those do, by the
// clock of the Memory. Nothing renews a lease but Renew: to advance the clock by its TTL
// is to pause its holder for so long. AcquireTx it has not.
type Manager struct {
	memory  *Memory
	options []lease.AcquireOption
	quorum  *Quorum // that it is a part of, or nil

	closed bool // under Memory.mu
}

// Manager returns a manager of the leases in this memory, whose calls have these
// options before their own. It returns txlock.ErrInvalidOption for one out of its range.
func (m *Memory) Manager(options ...lease.Option) (*Manager, error) {
	manager := &Manager{memory: m}
	for _, option := range options {
		manager.options = append(manager.options, option)
	}
	_, err := lease.TermsOf(manager.options...)
	return manager, err
}

// Acquire is that of lease.Manager. Who waits is served first come, first served among
// all managers of the Memory.
func (m *Manager) Acquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	return m.acquire(ctx, "acquire", key, exclusive, opts, true)
}

// TryAcquire is that of lease.Manager.
func (m *Manager) TryAcquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	return m.acquire(ctx, "try to acquire", key, exclusive, opts, false)
}

// Do is that of lease.Manager.
func (m *Manager) Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...lease.AcquireOption) error {
	return do(ctx, fn, func() (*Lease, error) { return m.Acquire(ctx, key, opts...) })
}

// do is Do for any way to acquire.
func do[L underlease.Lease](ctx context.Context, fn func(ctx context.Context, l L) error, acquire func() (L, error)) error {
	if fn == nil {
		return errors.New("locktest: Do needs a function, got nil")
	}
	l, err := acquire()
	if err != nil {
		return err
	}
	return underlease.Do(ctx, l, lease.ErrGuarded, fn)
}

// AcquireShared is that of lease.Manager. A writer that waits keeps new readers out for
// as long as it waits.
func (m *Manager) AcquireShared(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	return m.acquire(ctx, "acquire shared", key, shared, opts, true)
}

// TryAcquireShared is that of lease.Manager.
func (m *Manager) TryAcquireShared(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (*Lease, error) {
	return m.acquire(ctx, "try to acquire shared", key, shared, opts, false)
}

// DoShared is that of lease.Manager.
func (m *Manager) DoShared(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...lease.AcquireOption) error {
	return do(ctx, fn, func() (*Lease, error) { return m.AcquireShared(ctx, key, opts...) })
}

// ForceRelease is that of lease.Manager, but the holders are told at once: so a test takes
// a lease away, and readers and permits. The slots of readers are 0 as that of the lease.
func (m *Manager) ForceRelease(_ context.Context, key txlock.Key, slots ...int64) error {
	if err := key.Validate(); err != nil {
		return err
	}
	if slices.ContainsFunc(slots, func(slot int64) bool { return slot < 0 }) {
		return fmt.Errorf("%w: ForceRelease(%q, %v): nothing is held in a slot below 0", txlock.ErrInvalidOption, key, slots)
	}
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if m.closed {
		return fmt.Errorf("force the release of lease %q: %w", key, lease.ErrClosed)
	}
	row := m.memory.leaseOf(key)
	row.expire()
	released := false
	for _, h := range row.held() { // those that are held now, not those that follow
		if len(slots) == 0 || slices.Contains(slots, int64(h.slot)) {
			h.lose(errReplaced)
			released = true
		}
	}
	if !released {
		return fmt.Errorf("force the release of lease %q: %w", key, txlock.ErrNotHeld)
	}
	return nil
}

// Close is that of lease.Manager: it gives back what was acquired by this manager.
func (m *Manager) Close(context.Context) error {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	var err error
	for _, row := range m.memory.leases {
		for _, w := range slices.Clone(row.queue) {
			if w.m == m {
				row.leave(w, leaseOutcome{err: m.errClosed()})
			}
		}
		row.expire()
		for _, h := range row.held() {
			if h.by != m {
				continue
			}
			for _, l := range slices.Clone(h.handles) {
				err = errors.Join(err, l.release(true))
			}
		}
	}
	return err
}

// errClosed is the error of calls after Close.
func (m *Manager) errClosed() error {
	if m.quorum != nil {
		return quorum.ErrClosed
	}
	return lease.ErrClosed
}

// acquire asks for what is wanted, and waits for it.
func (m *Manager) acquire(ctx context.Context, verb string, key txlock.Key, what wanted, opts []lease.AcquireOption, wait bool) (*Lease, error) {
	w, err := m.request(ctx, key, what, opts)
	if err != nil {
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

// request checks a call.
func (m *Manager) request(ctx context.Context, key txlock.Key, what wanted, opts []lease.AcquireOption) (*leaseWait, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	terms, err := lease.TermsOf(slices.Concat(m.options, opts)...)
	if err != nil {
		return nil, err
	}
	if m.quorum != nil {
		if err := m.quorum.check(terms); err != nil {
			return nil, err
		}
	}
	w := &leaseWait{m: m, key: key, wanted: what, terms: terms, done: make(chan leaseOutcome, 1)}
	w.owner, w.named, err = lease.OwnerOf(ctx)
	for o := underlease.For[*Lease](underlease.Owners(ctx), key); o != nil && o.Lease != nil && w.under == nil; o = underlease.For[*Lease](o.Outer, key) {
		if h := o.Lease.(*Lease).holding; h.by.memory == m.memory && h.by.quorum == m.quorum { // of this database, or these
			w.under = h
		}
	}
	return w, err
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// AcquireShared takes the lease of a key shared: with any number of other readers,
// but with nobody who has acquired it by Acquire. It waits and returns as Acquire does,
// txlock.ErrInvalidKey for the key of a semaphore, and schema.ErrMultiPrimary on a
// cluster with several primaries, where readers don't exclude writers on other nodes. A reader that is dead delays a
// writer until its own TTL is over. A writer that waits keeps new readers out, for as
// long as its own TTL at a time.
//
// An owner that reads already enters again. One that holds the lease exclusively gets
// another handle of that in the same manager, and a reader's place beside it in another.
// The token of a reader is its own, and orders nothing.
func (m *Manager) AcquireShared(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	return m.share(ctx, "acquire shared", key, opts, m.waitShared)
}

// TryAcquireShared is AcquireShared that doesn't wait: where somebody holds the lease
// exclusively, or waits to, it returns txlock.ErrBusy.
func (m *Manager) TryAcquireShared(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	return m.share(ctx, "try to acquire shared", key, opts, m.tryShared)
}

// DoShared is Do with the lease taken shared.
func (m *Manager) DoShared(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return m.do(ctx, fn, func() (*Lease, error) { return m.AcquireShared(ctx, key, opts...) })
}

func (m *Manager) share(ctx context.Context, verb string, key txlock.Key, opts []AcquireOption, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	q, err := m.request(ctx, verb, key, opts)
	if err != nil {
		return nil, err
	}
	return m.takePlace(ctx, q, acquire)
}

// takePlace asks for a reader's place, in a slot that is free here.
func (m *Manager) takePlace(ctx context.Context, q *request, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	q.shared = true
	q.target = reader{m.takeSlot(q.key)}
	l, err := m.finish(ctx, q, acquire)
	if slot := q.target.(reader).slot; l == nil || l.record.slot != slot {
		m.freeSlot(q.key, slot)
	}
	return l, err
}

// waitShared is wait for a reader, and tryShared is tryOnce.
func (m *Manager) waitShared(ctx context.Context, q *request) (*Lease, error) {
	if err := m.sharesHere(ctx); err != nil {
		return nil, err
	}
	return m.wait(ctx, q)
}

func (m *Manager) tryShared(ctx context.Context, q *request) (*Lease, error) {
	if err := m.sharesHere(ctx); err != nil {
		return nil, err
	}
	return m.tryOnce(ctx, q)
}

// sharesHere refuses readers on a multi-primary cluster: they write nothing that a
// writer on another node would collide with.
func (m *Manager) sharesHere(ctx context.Context) error {
	if m.oneNode.Load() {
		return nil
	}
	if err := m.store.SharesLeases(ctx); err != nil {
		return fmt.Errorf("acquire the lease exclusively instead: %w", err)
	}
	m.oneNode.Store(true)
	return nil
}

// slotOf is a reader's slot that is in use in this manager.
type slotOf struct {
	key  string
	slot int64
}

// takeSlot returns the lowest slot that no reader of the key in this manager uses.
// The slots of a manager begin at a random number.
func (m *Manager) takeSlot(key txlock.Key) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for slot := m.firstSlot; ; slot++ {
		at := slotOf{key.String(), slot}
		if _, taken := m.slots[at]; !taken {
			m.slots[at] = struct{}{}
			return slot
		}
	}
}

func (m *Manager) freeSlot(key txlock.Key, slot int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.slots, slotOf{key.String(), slot})
}

// Shared tells whether the lease is a reader's.
func (l *Lease) Shared() bool { return l.record.shared }

var (
	// errDrained is returned by a writer that has kept the readers out for long enough.
	errDrained = fmt.Errorf("%w: readers", txlock.ErrBusy)
	// errReading is returned to an owner who waits for readers in another call.
	errReading = fmt.Errorf("%w: the owner waits for readers to go", txlock.ErrBusy)
)

// drain waits until no reader is left, while the writer's lease keeps new ones out.
// Where that takes longer than its TTL, or it is not to wait, it gives the lease back,
// so that readers go on, and returns ErrBusy.
func (m *Manager) drain(ctx context.Context, q *request, l *Lease, wait bool) (*Lease, time.Duration, error) {
	begun, reaped := m.store.Now(), false
	for d := leastLook; ; d = min(d*3/2, mostLook) {
		row, err := m.readersOf(ctx, l.Key())
		if err == nil && row.Held == 0 {
			if err = l.Err(); err == nil {
				l.record.drained()
				return l, 0, nil
			}
		}
		if err == nil && row.Held > 0 {
			err = m.passReaders(ctx, q, row, reaped)
		}
		switch {
		case err != nil:
		case !wait && (row.Held > row.Expired || reaped): // or a transaction guards one that is over
			err = txlock.ErrBusy
		case begun.Until(m.store.Now()) > l.record.ttl:
			err = errDrained
		default:
			reaped = row.Expired > 0
			err = m.sleep(ctx, d)
		}
		if err != nil {
			return nil, row.Left, errors.Join(err, m.letGo(ctx, l))
		}
	}
}

// passReaders ends the readers whose time is over, and refuses to wait for one of its own.
// Those that were reaped before and are still there guard transactions.
func (m *Manager) passReaders(ctx context.Context, q *request, row store.Readers, reaped bool) error {
	q.asksAlone = false // it may have come to read meanwhile
	if err := m.notReading(ctx, q); err != nil || row.Expired == 0 {
		return err
	}
	if err := m.store.Reap(ctx, q.key.String()); err != nil || !reaped {
		return err
	}
	if err := m.unblock(ctx, q, store.ErrLocked); !errors.Is(err, store.ErrLocked) {
		return err
	}
	return nil
}

// manyIdle is how many idle rows of readers a key may have.
const manyIdle = 100

// readersOf reads who reads. Where more rows of readers are idle than should be, which
// every writer has to pass over, it removes them behind the call.
func (m *Manager) readersOf(ctx context.Context, key txlock.Key) (store.Readers, error) {
	row, err := m.store.Readers(ctx, key.String())
	if err == nil && row.Idle > manyIdle && m.sweeping.CompareAndSwap(false, true) {
		if !m.errands.Go(func() {
			defer m.sweeping.Store(false)
			err := m.store.Sweep(m.ending, key.String())
			m.observe(func(o txlock.Observer) {
				if err != nil && m.ending.Err() == nil {
					o.Refused(m.ending, txlock.Event{Lease: true, Key: key, Err: txlock.Explain("remove idle readers", err)})
				}
			})
		}) {
			m.sweeping.Store(false)
		}
	}
	return row, err
}

// Downgrade turns a writer's lease into a reader's, without a gap in which another
// writer could come, and returns the new handle; the old one is released. It is meant
// for an owner's only handle: other handles of it keep the lease exclusive until they
// are released. Where the owner reads already, the handle is another of that; if a
// transaction guards it, Downgrade waits for its end.
//
// It returns txlock.ErrLost and ErrNotHeld for a lease that isn't held, and the errors
// of TryAcquireShared, after which it is held exclusively as before; and the errors of
// Release, after which neither is held: another writer may have come between.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	if l.Shared() {
		return nil, fmt.Errorf("%w: Downgrade of a lease that is shared already", txlock.ErrInvalidOption)
	}
	r := l.record
	q, err := r.m.request(WithOwner(ctx, r.owner), "downgrade", r.key, []AcquireOption{TTL(r.ttl)})
	if err != nil {
		return nil, err
	}
	q.named = false // by a statement, also where the owner holds the lease
	shared, err := r.m.takePlace(ctx, q, r.m.tryShared)
	if err != nil {
		return nil, err
	}
	if err := l.Release(ctx); err != nil {
		return nil, errors.Join(err, shared.Release(ctx))
	}
	return shared, nil
}

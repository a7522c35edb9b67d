package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// AcquireShared acquires the lease of a key shared: any number of readers can hold it at the same
// time, but not together with a writer, which holds it by Acquire. It waits and returns as Acquire
// does. It also returns txlock.ErrInvalidKey for the key of a semaphore, and
// schema.ErrMultiPrimary on a multi-primary cluster, where readers don't exclude writers on other
// nodes. A reader that has crashed delays a writer until the reader's TTL has expired. A waiting
// writer keeps new readers out, for as long as its own TTL at a time.
//
// An owner that is already a reader re-enters its lease. An owner that holds the lease exclusively
// gets another handle of that in the same manager, and an additional reader's lease in another
// manager. Each reader has a token of its own, which says nothing about the order.
func (m *Manager) AcquireShared(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	return m.share(ctx, "acquire shared", key, opts, m.wait)
}

// TryAcquireShared acquires the lease shared without waiting: if a writer holds it or waits for
// it, it returns txlock.ErrBusy.
func (m *Manager) TryAcquireShared(ctx context.Context, key txlock.Key, opts ...AcquireOption) (*Lease, error) {
	return m.share(ctx, "try to acquire shared", key, opts, m.tryOnce)
}

// DoShared acquires the lease shared, calls fn and releases the lease, as Do does.
func (m *Manager) DoShared(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return m.do(ctx, fn, func() (*Lease, error) { return m.AcquireShared(ctx, key, opts...) })
}

// share acquires a lease shared in the given way.
func (m *Manager) share(ctx context.Context, verb string, key txlock.Key, opts []AcquireOption, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	q, err := m.request(ctx, verb, key, opts)
	if err == nil && q.atLeast > 0 {
		err = fmt.Errorf("%w: HoldAtLeast of a reader: use it with the exclusive lease or a permit", txlock.ErrInvalidOption)
	}
	if err != nil {
		return nil, err
	}
	return m.takePlace(ctx, q, acquire)
}

// takePlace acquires a reader's place, in a slot that no other reader of this manager
// has. An observer that panics before finds no slot taken.
func (m *Manager) takePlace(ctx context.Context, q *request, acquire func(context.Context, *request) (*Lease, error)) (*Lease, error) {
	q.shared = true
	return m.finish(ctx, q, func(ctx context.Context, q *request) (*Lease, error) {
		q.target = reader{m.takeSlot(q.key)}
		l, err := acquire(ctx, q)
		if slot := q.target.(reader).slot; l == nil || l.record.slot != slot {
			m.freeSlot(q.key, slot)
		}
		return l, err
	})
}

// sharesHere returns an error on a multi-primary cluster: readers write nothing that
// would conflict with a writer on another node.
func (m *Manager) sharesHere(ctx context.Context) error {
	if m.oneNode.Load() {
		return nil
	}
	err := m.store.SharesLeases(ctx)
	if errors.Is(err, schema.ErrMultiPrimary) {
		return fmt.Errorf("acquire the lease exclusively instead: %w", err)
	}
	if err != nil { // nobody knows
		return err
	}
	m.oneNode.Store(true)
	return nil
}

// slotOf is a reader's slot that this manager uses.
type slotOf struct {
	key  string
	slot int64
}

// takeSlot returns the lowest slot that no reader of the key in this manager uses. The
// slots of a manager begin at a random number.
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

// freeSlot ends the use of a slot.
func (m *Manager) freeSlot(key txlock.Key, slot int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.slots, slotOf{key.String(), slot})
}

// Shared reports whether the lease is held shared, by a reader.
func (l *Lease) Shared() bool { return l.record.shared }

var (
	// errDrained is returned to a writer that has kept the readers out for its whole TTL.
	errDrained = fmt.Errorf("%w: readers", txlock.ErrBusy)
	// errTaken is returned to a writer whose row was released by force while it waited for readers.
	errTaken = fmt.Errorf("%w: it was released by force", txlock.ErrBusy)
	// errReading is returned to an owner that waits for readers in another call.
	errReading = fmt.Errorf("%w: the owner waits for readers to release it", txlock.ErrBusy)
)

// drain waits until no reader is left, while the writer's lease keeps new readers out.
// After the writer's TTL, or at once without wait, it releases the lease so that readers
// can go on, and returns txlock.ErrBusy.
func (m *Manager) drain(ctx context.Context, q *request, l *Lease, wait bool) (*Lease, time.Duration, error) {
	begun, reaped, waited := m.store.Now(), false, false
	for d := leastLook; ; d = min(d*3/2, mostLook) {
		row, err := m.readersLeft(ctx, q)
		if err == nil && row.Held == 0 {
			if err = m.stillHas(ctx, q, l, waited); err == nil {
				l.record.drained(q.lifetime)
				return l, 0, nil
			}
		}
		if err == nil && row.Held > 0 {
			err = m.passReaders(ctx, q, row, reaped)
		}
		switch {
		case err != nil:
		case !wait && (row.Held > row.Expired || reaped): // if reaped, a transaction guards a reader's lease that is over
			err = txlock.ErrBusy
		case begun.Until(m.store.Now()) > l.record.ttl:
			err = errDrained
		default:
			reaped, waited = row.Expired > 0, true
			err = m.sleep(ctx, d)
		}
		if err != nil {
			return nil, row.Left, m.undrained(ctx, l, err)
		}
	}
}

// readersLeft looks by the request's place in the queue of Fair, if it has one: else the server would end that,
// as of a process that is stopped. A place that is lost doesn't end the wait for readers.
func (m *Manager) readersLeft(ctx context.Context, q *request) (store.Readers, error) {
	look := func(s store.Session) (store.Readers, error) {
		return answer(ctx, m, q, func(ctx context.Context) (store.Readers, error) { return m.readersOf(ctx, s, q.key) })
	}
	if q.turn != nil {
		if row, err := look(q.turn); err == nil || ctx.Err() != nil {
			return row, err
		}
		q.turn = nil
	}
	return look(m.store)
}

// undrained releases a writer's lease for whose readers it waits no longer. Where it was taken there is
// nothing left.
func (m *Manager) undrained(ctx context.Context, l *Lease, why error) error {
	released := m.releaseUnwanted(ctx, l)
	if errors.Is(why, errTaken) && (errors.Is(released, txlock.ErrLost) || errors.Is(released, txlock.ErrNotHeld)) {
		return why
	}
	return errors.Join(why, released)
}

// stillHas returns the error of a writer's lease that was lost, or errTaken if a ForceRelease has taken its
// row while it waited for readers.
func (m *Manager) stillHas(ctx context.Context, q *request, l *Lease, waited bool) error {
	if err := l.Err(); err != nil || !waited {
		return err
	}
	row, err := answer(ctx, m, q, func(ctx context.Context) (store.Glance, error) { return m.store.Look(ctx, l.record.claim().Row) })
	if err == nil && (row.Token != l.Token() || row.Left <= 0) {
		err = errTaken
	}
	return err
}

// passReaders ends the readers whose time is over, and returns txlock.ErrUpgrade if the
// writer's own owner reads. A reader that is still there after it was reaped guards a
// transaction.
func (m *Manager) passReaders(ctx context.Context, q *request, row store.Readers, reaped bool) error {
	q.asksAlone = false // its owner may have become a reader meanwhile
	if err := m.notReading(ctx, m.store, q); err != nil || row.Expired == 0 {
		return err
	}
	if err := m.between(ctx, q, func(ctx context.Context) error { return m.store.Reap(ctx, q.key.String()) }); err != nil || !reaped {
		return err
	}
	if err := m.unblock(ctx, q, store.ErrLocked); !errors.Is(err, store.ErrLocked) {
		return err
	}
	return nil
}

// manyIdle is how many idle rows of readers a key may have before they are removed.
const manyIdle = 100

// readersOf counts the readers of a key. Every writer reads the idle rows of readers too:
// if there are too many, they are removed in the background.
func (m *Manager) readersOf(ctx context.Context, s store.Session, key txlock.Key) (store.Readers, error) {
	row, err := s.Readers(ctx, key.String())
	if err == nil && row.Idle > manyIdle && m.sweeping.CompareAndSwap(false, true) {
		if !m.tasks.Go(func() {
			defer m.sweeping.Store(false)
			m.troubled(key, "remove idle readers", m.store.Sweep(m.ending, key.String()))
		}) {
			m.sweeping.Store(false)
		}
	}
	return row, err
}

// Downgrade turns a writer's lease into a reader's, without letting another writer in between. It
// returns the new handle and releases the old one. Use it with an owner's only handle: as long as
// other handles are held, the lease stays exclusive. If the owner is already a reader, the new
// handle is another one of that lease; if a transaction guards it, Downgrade waits for its end. A
// request to release the lease also applies to the reader: see Manager.RequestRelease.
//
// It returns txlock.ErrLost and ErrNotHeld for a lease that isn't held; the errors of
// TryAcquireShared, after which the lease is still held exclusively; and the errors of Release,
// after which neither lease is held, and another writer may have come in between.
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
	q.named = false // a statement must be sent, though the owner holds the lease
	q.fair = false  // who holds the lease passes nobody
	shared, err := r.m.takePlace(ctx, q, r.m.tryOnce)
	if err != nil {
		return nil, err
	}
	question, err := r.m.store.Question(ctx, r.claim()) // who asks from now on asks the reader
	if err != nil {
		return nil, errors.Join(fault.Explain(fmt.Sprintf("downgrade lease %q", r.key), err), r.m.releaseUnwanted(ctx, shared))
	}
	if question.At > 0 {
		shared.record.ask(store.Question{Why: question.Why}) // its own row was asked nothing yet
	}
	if err := l.Release(ctx); err != nil {
		return nil, errors.Join(err, shared.Release(ctx))
	}
	return shared, nil
}

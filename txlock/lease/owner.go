package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
)

// identify finds out whose the request is: the holder's of the innermost lease of this
// key which the context carries and which is not over, the one's whom WithOwner names,
// or its own.
func (q *request) identify() error {
	id, err := q.newHold()
	if err != nil {
		return err
	}
	q.asksAlone = false
	q.from = underlease.For[*Lease](q.from, q.key)
	switch {
	case q.from == nil:
		q.owner, q.named, q.under = process+id.String(), false, nil
	case q.from.Lease == nil:
		q.owner, q.named, q.under = q.from.Name, true, nil
		return checkOwner(q.owner)
	default:
		q.under = q.from.Lease.(*Lease)
		q.owner, q.named = q.under.Owner(), true
	}
	return nil
}

// disown makes a request that of whoever is outside of the lease that it was under.
func (q *request) disown() error {
	q.from = q.from.Outer
	return q.identify()
}

// again enters the lease that the context of a request carries. Where only the server
// knows whether it is held here, by another manager or in a transaction that may not have
// committed, it returns nil, and what is granted then must be that lease: see missed. A
// request whose lease is over goes on as whoever is outside of that.
func (m *Manager) again(q *request) (*Lease, error) {
	r := q.under.record
	pending := r.isPending() // before it may be known to have committed
	switch {
	case q.under.Err() != nil:
	case r.shared && !q.shared && r.m.store.Identity() == m.store.Identity():
		return nil, upgrade(r.owner)
	case r.m != m && r.shared: // a reader has a place in each manager
		q.reads = append(q.reads, r.owner) // and perhaps in this database
	case r.m != m:
		mine := m.recordOf(q, store.LeaseSlot)
		if mine != nil && (q.shared || mine.token.Load() == r.token.Load()) {
			return mine.enter(false), nil
		}
		return nil, nil
	default:
		if l := r.enter(false); l != nil || pending {
			return l, nil
		}
	}
	if err := q.disown(); err != nil {
		return nil, err
	}
	return m.local(q)
}

// upgrade refuses to make a reader a writer.
func upgrade(owner string) error {
	return fmt.Errorf("%w: owner %q reads under this lease: release that first, or acquire it exclusively from the beginning", txlock.ErrUpgrade, owner)
}

// notReading refuses to make a reader a writer who reads by another manager of this
// process, over another pool perhaps: it would wait for itself. Only the readers' rows
// tell, which are asked once.
func (m *Manager) notReading(ctx context.Context, q *request) error {
	owners := q.readsAs()
	if len(owners) == 0 || q.asksAlone {
		return nil
	}
	owner, err := m.store.ReaderAmong(ctx, q.key.String(), owners, q.hold[:store.HoldBegins])
	if err == nil && owner != "" {
		err = upgrade(owner)
	}
	q.asksAlone = err == nil
	return err
}

// unlessReading returns the error of an attempt, which has found somebody else there.
func (m *Manager) unlessReading(ctx context.Context, q *request, err error) error {
	if !errors.Is(err, txlock.ErrBusy) {
		return err
	}
	return cmp.Or(m.notReading(ctx, q), err)
}

// readsAs returns the owners as whom whoever asks for the lease exclusively may read
// already, by another manager.
func (q *request) readsAs() []string {
	if _, lease := q.target.(exclusive); !lease {
		return nil
	}
	if q.named {
		return append(slices.Clip(q.reads), q.owner)
	}
	return q.reads
}

// elsewhere tells whether the lease that the context carries, of another manager, is not
// held here: of another database. The request goes on as whoever is outside of it then; it
// would be granted another lease in its place.
func (m *Manager) elsewhere(ctx context.Context, q *request) (bool, error) {
	if !q.named || q.under == nil || q.under.record.m == m {
		return false, nil
	}
	seen, err := m.store.Look(ctx, leaseRow(q.key))
	if err != nil || seen.Left > 0 && seen.Owner == q.owner {
		return false, err
	}
	return true, q.disown()
}

// missed tells whether what was granted is not the lease that the context carries: that
// is over meanwhile, or of another database. Nobody else under the context may find its
// owner there.
func (q *request) missed(token uint64) bool {
	return q.named && q.under != nil && !q.shared && token != q.under.Token()
}

// miss gives back what was granted in place of the lease that the context carries, and
// lets the request go on as whoever is outside of that.
func (m *Manager) miss(q *request, giveBack func() error) error {
	if r := q.under.record; r.m == m { // its transaction was rolled back
		r.lose(ErrReplaced)
	}
	return errors.Join(giveBack(), q.disown())
}

// confirm tells whether the hold of a record is in the row still, which may be locked
// for long, by a transaction that it guards.
func (m *Manager) confirm(ctx context.Context, r *record) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.left(), 0))
	defer cancel()
	defer context.AfterFunc(m.undoing, cancel)()
	for {
		reply, err := m.store.Renew(ctx, r.claim())
		if err != nil || reply != store.Absent {
			return reply == store.Done, r.unlessOver(err)
		}
		seen, err := m.store.Look(ctx, r.row())
		if err == nil && seen.Exists {
			err = m.sleep(ctx, retryPause)
		}
		if err != nil || !seen.Exists {
			return false, r.unlessOver(err)
		}
	}
}

// unlessOver returns the error, which says nothing where the time of the lease is over.
func (r *record) unlessOver(err error) error {
	if r.left() <= 0 {
		return nil
	}
	return err
}

// granted makes the handle. An owner may find its own lease, in a transaction that
// has committed meanwhile; then the row has the new hold beside the old one.
func (m *Manager) granted(ctx context.Context, q *request, a store.Answer, since instant) (*Lease, error) {
	defer m.granting.Add(-1)
	r := m.recordOf(q, a.Slot)
	if r != nil && (r.token.Load() == a.Token || q.shared) {
		held, err := m.confirm(ctx, r)
		if err != nil {
			return nil, errors.Join(err, m.undo(ctx, q, a.Slot))
		}
		if held {
			r.committed()
			if l := r.enter(false); l != nil {
				if err := m.undo(ctx, q, a.Slot); err != nil {
					return nil, errors.Join(err, m.letGo(ctx, l))
				}
				return l, nil
			}
		}
	}
	if r != nil {
		r.lose(ErrReplaced)
	}
	return m.keep(q, a, since, false)
}

// undo takes back what was granted to an owner that had it already: behind the call where
// the row is locked for long.
func (m *Manager) undo(ctx context.Context, q *request, slot int64) error {
	ctx, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	defer context.AfterFunc(m.undoing, cancel)()
	r, granted := remains{key: q.key, slot: slot, hold: q.hold}, m.store.Now()
	reply, err := m.release(ctx, r.row(), r.hold) // which others may look at
	if err != nil || reply == store.Absent {
		m.errands.Go(func() { m.giveBackUntil(r, granted, granted.Add(q.ttl)) })
		return errors.Join(err, m.reissue(q))
	}
	return nil
}

// letGo gives back what was granted to a call that fails: behind that where its context
// is over, which would not wait for it.
func (m *Manager) letGo(ctx context.Context, l *Lease) error {
	release := func() { _ = l.Release(m.undoing) } // of which the observer is told
	if ctx.Err() != nil && m.errands.Go(release) {
		return nil
	}
	return l.Release(ctx)
}

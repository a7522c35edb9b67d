package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// identify sets the owner of the request: the holder of the innermost lease of this key
// that the context carries and that isn't over, else the owner that WithOwner names, else
// a new one.
func (q *request) identify() error {
	q.asksAlone, q.hold = false, ""
	q.from = leaseutil.For[*Lease](q.from, q.key)
	switch {
	case q.from == nil:
		id, err := q.newHold()
		if err != nil {
			return err
		}
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

// disown moves the request to the next owner outside of the lease that its context
// carries.
func (q *request) disown() error {
	q.from = q.from.Outer
	return q.identify()
}

// reenter re-enters the lease that the context of a request carries. If only the server
// knows whether it is still held (by another manager, or by a transaction that may not be
// committed), it returns nil, and what is granted then must be that lease: see missed. If
// the lease is over, the request goes on as the next owner outside of it.
func (m *Manager) reenter(q *request) (*Lease, error) {
	r := q.under.record
	pending := r.isPending() // read before enter: it may commit in between
	switch {
	case q.under.Err() != nil:
	case r.shared && !q.shared && r.m.store.Identity() == m.store.Identity():
		return nil, upgrade(r.owner)
	case r.m != m && r.shared: // a reader's place counts in one manager only
		q.reads = append(q.reads, r.owner) // but it may be in this database
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

// upgrade returns the error for a reader that asks for the exclusive lease.
func upgrade(owner string) error {
	return fmt.Errorf("%w: owner %q holds this lease shared: release that first, or acquire it exclusively from the start", txlock.ErrUpgrade, owner)
}

// notReading returns txlock.ErrUpgrade if the owner of an exclusive request reads by
// another manager of this process: it would wait for itself. The rows of the readers are
// asked once, as the other manager may have another pool.
func (m *Manager) notReading(ctx context.Context, s store.Session, q *request) error {
	owners := q.readsAs()
	if len(owners) == 0 || q.asksAlone {
		return nil
	}
	owner, err := answer(ctx, m, q, func(ctx context.Context) (string, error) {
		return s.ReaderAmong(ctx, q.key.String(), owners, holdBegins)
	})
	if err == nil && owner != "" {
		err = upgrade(owner)
	}
	q.asksAlone = err == nil
	return err
}

// unlessReading returns the error of an attempt, or txlock.ErrUpgrade if the attempt was
// busy because its own owner reads.
func (m *Manager) unlessReading(ctx context.Context, s store.Session, q *request, err error) error {
	if !errors.Is(err, txlock.ErrBusy) {
		return err
	}
	return cmp.Or(q.unlessSilent(ctx, m.notReading(ctx, s, q)), err)
}

// readsAs returns the owners under which an exclusive request may already read, by
// another manager.
func (q *request) readsAs() []string {
	if _, lease := q.target.(exclusive); !lease {
		return nil
	}
	if q.named {
		return append(slices.Clip(q.reads), q.owner)
	}
	return q.reads
}

// elsewhere reports whether the context carries a lease of another manager that this
// database doesn't have. Then the request goes on as the next owner outside of it.
func (m *Manager) elsewhere(ctx context.Context, q *request) (bool, error) {
	if !q.named || q.under == nil || q.under.record.m == m {
		return false, nil
	}
	seen, err := m.lookAtLease(ctx, q)
	if err != nil || seen.Left > 0 && seen.Owner == q.owner {
		return false, err
	}
	return true, q.disown()
}

// lookAtLease reads the row of the lease.
func (m *Manager) lookAtLease(ctx context.Context, q *request) (store.Glance, error) {
	return answer(ctx, m, q, func(ctx context.Context) (store.Glance, error) { return m.store.Look(ctx, leaseRow(q.key)) })
}

// missed reports whether the lease that was granted is not the lease that the context
// carries: that is over by now, or of another database. Nobody else under the context may
// find its owner there.
func (q *request) missed(token uint64) bool {
	return q.named && q.under != nil && !q.shared && token != q.under.Token()
}

// miss releases what was granted instead of the lease that the context carries, and lets
// the request go on as the next owner outside of that.
func (m *Manager) miss(q *request, release func() error) error {
	if r := q.under.record; r.m == m { // its transaction was rolled back
		r.lose(ErrReplaced)
	}
	return errors.Join(release(), q.disown())
}

// confirm reports whether the hold of a record is still in its row. It waits while the row
// is locked, by a transaction that guards the lease for example.
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

// unlessOver returns the error, or nil if the lease has expired, which is reason enough.
func (r *record) unlessOver(err error) error {
	if r.left() <= 0 {
		return nil
	}
	return err
}

// granted makes the handle of what was granted. If the owner has the lease already, in a
// transaction that has committed meanwhile for example, it re-enters that and removes the
// second hold from the row.
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
					return nil, errors.Join(err, m.releaseUnwanted(ctx, l))
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

// undo removes a hold that was granted to an owner that has the lease already. If the row
// stays locked, that goes on in the background.
func (m *Manager) undo(ctx context.Context, q *request, slot int64) error {
	ctx, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	defer context.AfterFunc(m.undoing, cancel)()
	r, granted := remains{key: q.key, slot: slot, hold: q.hold}, m.store.Now()
	reply, err := m.sendRelease(ctx, r) // others may have the row locked for a moment
	if err != nil || reply == store.Absent {
		m.tasks.Go(func() { m.releaseUntil(r, granted, granted.Add(q.ttl)) })
		return errors.Join(err, m.reissue(q))
	}
	return nil
}

// releaseUnwanted releases what was granted to a call that fails: in the background if
// the context of the call has ended.
func (m *Manager) releaseUnwanted(ctx context.Context, l *Lease) error {
	release := func() { _ = l.Release(m.undoing) } // the observer gets the error
	if ctx.Err() != nil && m.tasks.Go(release) {
		return nil
	}
	return l.Release(ctx)
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// retryPause is the time between two attempts at a row that is locked.
const retryPause = 5 * time.Millisecond

// A Kind is the kind of what is held under a key.
type Kind string

// The kinds.
const (
	Exclusive Kind = "exclusive" // the lease itself, by Acquire
	Reader    Kind = "reader"    // the lease shared, by AcquireShared
	Permit    Kind = "permit"    // of a semaphore
	Waiter    Kind = "waiter"    // the first in the queue of Fair, or a writer that waits for readers; nothing is held yet
)

// An Info is the state in the database of a lease, or of a reader, a permit or a waiter of its
// key.
type Info struct {
	Key       txlock.Key
	Kind      Kind
	Slot      int64         // which row of the key, see ForceRelease
	Owner     string        // of the last grant; see WithOwner
	Label     string        // see WithLabel
	Token     uint64        // of the last grant
	Since     time.Time     // when that was, by the server's clock
	Held      bool          // it is held
	Remaining time.Duration // how much longer it is held if it isn't renewed
	TTL       time.Duration
	// ReleaseReason is the reason of the last request to release it, and ReleaseRequestedAt
	// its time by the server's clock; both are zero if there is none: see
	// Manager.RequestRelease.
	ReleaseReason      string
	ReleaseRequestedAt time.Time
	Holders            int // how many managers hold it under this owner

	// Permits is the number of permits of a semaphore, 0 for other keys. Only
	// Inspect sets it.
	Permits int
	// Others are the readers and permits that are held under the key, and the first
	// waiter, ordered by slot. Only Inspect sets it.
	Others []Info
	// Session is a waiter's session on the server.
	Session uint64
}

// List returns all leases, readers and permits that any process holds, and the first waiter of
// each queue of Fair, in the order of their keys and slots. It doesn't wait. It returns
// txlock.ErrSchema, ErrClosed and the errors of the driver.
func (m *Manager) List(ctx context.Context) ([]Info, error) {
	err := m.ready(ctx)
	var found []store.Info
	if err == nil {
		found, err = m.store.List(ctx)
	}
	if err != nil {
		return nil, fault.Explain("list leases", err)
	}
	slices.SortStableFunc(found, func(a, b store.Info) int { // a waiter has the lowest slot of its key
		return a.Compare(b.Row)
	})
	return infosOf(found), nil
}

// Inspect returns the state of the lease of a key, and in Others the readers, the permits and the
// first waiter of the key. A lease that was never acquired is not held. It returns the errors of
// List, and txlock.ErrInvalidKey.
func (m *Manager) Inspect(ctx context.Context, key txlock.Key) (Info, error) {
	if err := key.Validate(); err != nil {
		return Info{}, err
	}
	what := fmt.Sprintf("inspect lease %q", key)
	if err := m.ready(ctx); err != nil {
		return Info{}, fault.Explain(what, err)
	}
	info := Info{Key: key, Kind: Exclusive}
	found, err := m.store.Inspect(ctx, key.String())
	if err != nil {
		return Info{}, fault.Explain(what, err)
	}
	var others []Info
	all := infosOf(found)
	for i, row := range found {
		if row.Slot != store.LeaseSlot {
			others = append(others, all[i])
			continue
		}
		info = all[i]
		info.Permits = int(max(0, -row.Use))
	}
	info.Key, info.Others = key, others
	return info, nil
}

// infosOf returns the Infos of rows, among which are all of a key that are held. A writer has its row
// before its readers have released theirs: until then it waits.
func infosOf(rows []store.Info) []Info {
	all := make([]Info, len(rows))
	read := make(map[string]string) // the owners of readers by key
	for i, row := range rows {
		all[i] = infoOf(row)
		if all[i].Kind == Reader && all[i].Held {
			read[row.Key] = row.Owner
		}
	}
	for i := range all {
		if reader, is := read[rows[i].Key]; is && all[i].Kind == Exclusive && all[i].Held && store.WaitsFor(all[i].Owner, reader) {
			all[i].Kind, all[i].Held = Waiter, false
		}
	}
	return all
}

// infoOf returns the Info of a row.
func infoOf(row store.Info) Info {
	info := Info{
		Key: txlock.ParseKey(row.Key), Kind: Exclusive, Slot: row.Slot, Owner: row.Owner, Label: row.Label, Token: row.Token, ReleaseReason: row.Asked, ReleaseRequestedAt: row.AskedAt,
		Since: row.Since, Held: row.Left > 0 && row.Holders > 0, Remaining: row.Left, TTL: row.TTL, Holders: row.Holders, Session: row.Session,
	}
	if row.Token > 0 {
		info.Since = grantedAt(row.Token)
	}
	switch {
	case row.Slot > MaxPermits:
		info.Kind = Reader
	case row.Slot > store.LeaseSlot:
		info.Kind = Permit
	case row.Slot == store.QueueSlot:
		info.Kind = Waiter
	}
	return info
}

// ForceRelease takes a lease away from its holder, for an operator who knows that the holder is
// gone. It releases the exclusive lease and all readers and permits of the key, or only those in
// the given slots (see Info). The next holder's token is higher. The old holder gets
// txlock.ErrLost from its next renewal or Guard. Until then it may believe that it holds the
// lease, and an Acquire may re-enter it in the same manager; what the old holder has guarded can't
// be committed. A writer that waits for the readers isn't a holder, and gets the lease next.
//
// If transactions have guarded the lease, or one has acquired it, ForceRelease queues for the row
// behind them. If one of them stays open for 5 seconds meanwhile, ForceRelease ends its session
// with KILL, which rolls it back. That needs the same database user or the privilege; without it
// the error names the session.
//
// It returns txlock.ErrNotHeld if the lease isn't held, ErrBusy if a row stays locked for 10
// seconds by transactions that can't be found, ErrInvalidKey, ErrInvalidOption for a slot below 0,
// ErrSchema, schema.ErrAutocommit and schema.ErrCharset, ErrClosed, and the errors of the driver
// and of the context.
func (m *Manager) ForceRelease(ctx context.Context, key txlock.Key, slots ...int64) (err error) {
	if err := key.Validate(); err != nil {
		return err
	}
	if slices.ContainsFunc(slots, func(slot int64) bool { return slot < store.LeaseSlot }) {
		return fmt.Errorf("%w: ForceRelease(%q, %v): nothing is held in a slot below 0; to end a waiter, KILL its session", txlock.ErrInvalidOption, key, slots)
	}
	_, err = m.force(ctx, key, slots, nil)
	return err
}

// force releases what is held in the slots of a key, all for none. Of a slot that has a token it
// releases that grant only. It returns the slots that it has released.
func (m *Manager) force(ctx context.Context, key txlock.Key, slots []int64, tokens map[int64]uint64) (released []int64, err error) {
	ctx, end := m.untilClosed(ctx)
	defer end()
	defer func() { err = unlessClosed(ctx, err) }()
	what := fmt.Sprintf("release lease %q by force", key)
	if err := m.ready(ctx); err != nil {
		return nil, fault.Explain(what, err)
	}
	if tokens == nil {
		if slots, err = m.heldSlots(ctx, key, slots); err != nil {
			return nil, fault.Explain(what, err)
		}
	}
	for _, slot := range slots {
		held, err := m.forceRelease(ctx, key, store.Row{Key: key.String(), Slot: slot}, tokens[slot])
		if err != nil {
			return released, fault.Explain(what, err)
		}
		if held {
			released = append(released, slot)
		}
	}
	if len(released) == 0 {
		return nil, fmt.Errorf("%s: %w", what, txlock.ErrNotHeld)
	}
	m.freed(key)
	return released, nil
}

// heldSlots returns the given slots of a key, or all for none, but for that of a writer that waits for
// readers.
func (m *Manager) heldSlots(ctx context.Context, key txlock.Key, slots []int64) ([]int64, error) {
	rows, err := m.store.Inspect(ctx, key.String())
	if err != nil {
		return nil, err
	}
	slots = slices.Clone(slots)
	if len(slots) == 0 {
		slots = append(slots, store.LeaseSlot) // first, so that no reader follows
		for _, row := range rows {
			if row.Slot > store.LeaseSlot {
				slots = append(slots, row.Slot)
			}
		}
	}
	if slices.ContainsFunc(infosOf(rows), func(i Info) bool { return i.Slot == store.LeaseSlot && i.Kind == Waiter }) {
		slots = slices.DeleteFunc(slots, func(slot int64) bool { return slot == store.LeaseSlot })
	}
	return slots, nil
}

// forceRelease releases one row, or only one grant of it, and reports whether that was held. If the
// row is locked it waits in the server's queue, behind the transactions that guard the lease: by
// looking from time to time it might find the row locked each time.
func (m *Manager) forceRelease(ctx context.Context, key txlock.Key, at store.Row, only uint64) (bool, error) {
	reply, err := m.store.Force(ctx, at, only)
	ended := false
	var who error        // names the transaction that locks the row
	var by store.Written // that transaction, which has locked it since
	since, unknown := m.store.Now(), m.store.Now()
	for err == nil && reply == store.Absent {
		var b *store.Blocker
		var missing bool
		if b, missing, err = m.lockedBy(ctx, at); err != nil || missing {
			break
		}
		limit, now := guardGrace, m.store.Now()
		switch {
		case b == nil:
			who = errUnknownBlocker
			if unknown.Until(now) > 2*guardGrace {
				err = txlock.ErrBusy
			}
		case only != 0 && b.Token != only:
			return false, nil // another grant's
		case b.Written != by:
			who, by, since, unknown = blocking(key, *b), b.Written, now, now
		case since.Until(now) >= guardGrace: // one transaction, all the time
			who, ended, unknown = nil, true, now
			err = m.endBlocker(ctx, key, *b)
		default:
			limit, unknown = guardGrace-since.Until(now), now
		}
		if err == nil {
			reply, err = m.forceQueued(ctx, at, only, limit)
		}
	}
	if err != nil && who != nil {
		err = fmt.Errorf("%w: %w", err, who)
	}
	return err == nil && (ended || reply == store.Done), err
}

// lockedBy returns the open transaction that has written a row, or nil. It also tells
// whether there is neither a row nor such a transaction.
func (m *Manager) lockedBy(ctx context.Context, at store.Row) (b *store.Blocker, missing bool, err error) {
	if err := m.open(); err != nil {
		return nil, false, err
	}
	if b, err = m.blockerOf(ctx, at); err != nil {
		return nil, false, err
	}
	seen, err := m.store.Look(ctx, at)
	return b, !seen.Exists && b == nil, err
}

// forceQueued waits in the server's queue for the row's lock, at most until the limit,
// and then sends the release.
func (m *Manager) forceQueued(ctx context.Context, at store.Row, only uint64, limit time.Duration) (reply store.Reply, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)) // nobody waits any longer
	}
	err = m.store.Queued(ctx, at, max(limit, leastLook), func(s store.Session) error {
		reply, err = s.Force(ctx, at, only)
		return err
	})
	if errors.Is(err, store.ErrLocked) || conflicted(err) {
		return store.Absent, nil
	}
	return reply, err
}

var errUnknownBlocker = errors.New("its row is locked by a transaction that has not written to it")

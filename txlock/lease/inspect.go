package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// retryPause is the time between two attempts at a row that is locked.
const retryPause = 5 * time.Millisecond

// Kind is what is held under a key.
type Kind string

// The kinds.
const (
	Exclusive Kind = "exclusive" // the lease itself, by Acquire
	Reader    Kind = "reader"    // the lease shared, by AcquireShared
	Permit    Kind = "permit"    // of a semaphore
	Waiter    Kind = "waiter"    // the first in the queue of Fair; nothing is held yet
)

// Info is what the database knows of a lease, or of one of the readers, permits and
// waiters of its key.
type Info struct {
	Key   txlock.Key
	Kind  Kind
	Slot  int64         // tells apart what is held under one key, see ForceRelease
	Owner string        // who holds it, or held it last; see WithOwner
	Token uint64        // of the last grant
	Since time.Time     // when that was, by the server's clock
	Held  bool          // somebody holds it
	Left  time.Duration // for how much longer, if it isn't renewed
	TTL   time.Duration
	Holds int // how often the owner has entered it, counting one for each manager

	// Permits is how many permits the key has as a semaphore, 0 where it is none. Only
	// Inspect tells it.
	Permits int
	// Others are the readers and permits that are held under the key, and the first
	// waiter, in the order of their slots. Only Inspect tells them.
	Others []Info
	// Session is that of a waiter on the server.
	Session uint64
}

// List returns all that is held by anybody, leases, readers and permits, and the first
// waiter of each queue of Fair, in the order of their keys and slots. It waits for
// nobody. It returns txlock.ErrSchema, ErrClosed and the errors of the driver.
func (m *Manager) List(ctx context.Context) ([]Info, error) {
	err := m.ready(ctx)
	var found []store.Info
	if err == nil {
		found, err = m.store.List(ctx)
	}
	if err != nil {
		return nil, txlock.Explain("list leases", err)
	}
	slices.SortStableFunc(found, func(a, b store.Info) int { // a waiter has the lowest slot of its key
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot))
	})
	all := make([]Info, len(found))
	for i, row := range found {
		all[i] = infoOf(row)
	}
	return all, nil
}

// Inspect returns what is known of the lease of a key, and in Others of its readers,
// permits and first waiter. One that was never acquired is simply not held. The errors
// are those of List, and txlock.ErrInvalidKey.
func (m *Manager) Inspect(ctx context.Context, key txlock.Key) (Info, error) {
	if err := key.Validate(); err != nil {
		return Info{}, err
	}
	what := fmt.Sprintf("inspect lease %q", key)
	if err := m.ready(ctx); err != nil {
		return Info{}, txlock.Explain(what, err)
	}
	info := Info{Key: key, Kind: Exclusive}
	found, err := m.store.Inspect(ctx, key.String())
	if err != nil {
		return Info{}, txlock.Explain(what, err)
	}
	var others []Info
	for _, row := range found {
		if row.Slot != store.LeaseSlot {
			others = append(others, infoOf(row))
			continue
		}
		info = infoOf(row)
		info.Permits = int(max(0, -row.Use))
	}
	info.Key, info.Others = key, others
	return info, nil
}

// infoOf tells of a row. A token is the server's clock at the grant in microseconds, but
// for one that was raised past an earlier one.
func infoOf(row store.Info) Info {
	info := Info{
		Key: txlock.Named(row.Key), Kind: Exclusive, Slot: row.Slot, Owner: row.Owner, Token: row.Token,
		Since: row.Since, Held: row.Left > 0 && row.Holds > 0, Left: row.Left, TTL: row.TTL, Holds: row.Holds, Session: row.Session,
	}
	if row.Token > 0 {
		info.Since = time.UnixMicro(int64(row.Token))
	}
	switch {
	case row.Slot > MaxPermits:
		info.Kind = Reader
	case row.Slot > store.LeaseSlot:
		info.Kind = Permit
	case row.Slot == store.TurnstileSlot:
		info.Kind = Waiter
	}
	return info
}

// ForceRelease takes a lease away from whoever holds it, for an operator who knows
// that the holder is gone: from the one who holds it exclusively, and from all readers
// and permits of the key, or where slots are given (see Info) from those only. The next
// holder's token is higher. The old holder is told ErrLost by its next renewal or Guard,
// and may believe until then that it holds the lease, an Acquire that enters it again in
// the same manager included; what it has guarded can't be committed.
//
// Where transactions guard the lease, or one has acquired it, ForceRelease waits for its
// turn behind those that came before. One that stays open for 5 seconds meanwhile has its
// session ended by KILL, which rolls it back. ForceRelease needs the same user for that, or
// the privilege to; else the error names the session.
//
// It returns txlock.ErrNotHeld where nobody holds the lease, ErrBusy where a row stays
// locked for 10 seconds by transactions that can't be found, ErrInvalidKey, ErrInvalidOption
// for a slot below 0, ErrSchema, schema.ErrAutocommit and schema.ErrCharset, ErrClosed, the
// errors of the driver and the context's.
func (m *Manager) ForceRelease(ctx context.Context, key txlock.Key, slots ...int64) (err error) {
	if err := key.Validate(); err != nil {
		return err
	}
	if slices.ContainsFunc(slots, func(slot int64) bool { return slot < store.LeaseSlot }) {
		return fmt.Errorf("%w: ForceRelease(%q, %v): nothing is held in a slot below 0; who waits is ended by KILL of its session", txlock.ErrInvalidOption, key, slots)
	}
	ctx, end := m.untilClosed(ctx)
	defer end()
	defer func() { err = unlessClosed(ctx, err) }()
	what := fmt.Sprintf("release lease %q by force", key)
	if err := m.ready(ctx); err != nil {
		return txlock.Explain(what, err)
	}
	if len(slots) == 0 {
		rows, err := m.store.Inspect(ctx, key.String())
		if err != nil {
			return txlock.Explain(what, err)
		}
		slots = append(slots, store.LeaseSlot) // first, so that no reader follows
		for _, row := range rows {
			if row.Slot > store.LeaseSlot {
				slots = append(slots, row.Slot)
			}
		}
	}
	released := false
	for _, slot := range slots {
		held, err := m.forceRelease(ctx, key, store.Row{Key: key.String(), Slot: slot})
		if err != nil {
			return txlock.Explain(what, err)
		}
		released = released || held
	}
	if !released {
		return fmt.Errorf("%s: %w", what, txlock.ErrNotHeld)
	}
	m.freed(key)
	return nil
}

// forceRelease releases one row, and tells whether it was held. It waits for one that is
// locked in the server's queue, where those that guard the lease again and again stand
// too: else it would find it locked each time that it looks.
func (m *Manager) forceRelease(ctx context.Context, key txlock.Key, at store.Row) (bool, error) {
	reply, err := m.store.Force(ctx, at)
	ended := false
	var who error        // has it locked
	var by store.Written // that it was found locked by, since
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
		case b.Written != by:
			who, by, since, unknown = errors.New(b.String()), b.Written, now, now
		case since.Until(now) >= guardGrace: // one transaction, all the time
			who, ended, unknown = nil, true, now
			err = m.endBlocker(ctx, key, *b)
		default:
			limit, unknown = guardGrace-since.Until(now), now
		}
		if err == nil {
			reply, err = m.forceQueued(ctx, at, limit)
		}
	}
	if err != nil && who != nil {
		err = fmt.Errorf("%w: %w", err, who)
	}
	return err == nil && (ended || reply == store.Done), err
}

// lockedBy returns the open transaction that has written a row, or nil; missing tells that
// there is neither.
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

// forceQueued sends the release when the row is free, and waits for that in its queue
// until the limit.
func (m *Manager) forceQueued(ctx context.Context, at store.Row, limit time.Duration) (reply store.Reply, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)) // nobody waits on then
	}
	err = m.store.Queued(ctx, at, max(limit, leastLook), func(s store.Session) error {
		reply, err = s.Force(ctx, at)
		return err
	})
	if errors.Is(err, store.ErrLocked) || conflicted(err) {
		return store.Absent, nil
	}
	return reply, err
}

var errUnknownBlocker = errors.New("a transaction that has not written it has its row locked")

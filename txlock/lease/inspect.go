package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
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
	var all []Info
	if err == nil {
		all, err = m.listHeld(ctx)
	}
	if err == nil {
		err = uncommitted(ctx, m.db, func(tx gen.DBTX) error {
			waiters, err := listWaiters(ctx, tx)
			all = append(all, waiters...)
			return err
		})
	}
	if err != nil {
		return nil, txlock.Explain("list leases", err)
	}
	slices.SortStableFunc(all, func(a, b Info) int { // a waiter has the lowest slot of its key
		if c := strings.Compare(a.Key.String(), b.Key.String()); c != 0 {
			return c
		}
		return int(min(1, max(-1, a.Slot-b.Slot)))
	})
	return all, nil
}

// listPage is how many rows one statement reads.
const listPage = 1000

func (m *Manager) listHeld(ctx context.Context) (all []Info, err error) {
	page := gen.ListLeasesParams{After: []byte{}, AfterSlot: math.MinInt64, Limit: listPage}
	for {
		rows, err := queries.ListLeases(ctx, m.db, page)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			all = append(all, infoOf(gen.InspectLeaseRow(row)))
		}
		if len(rows) < listPage {
			return all, nil
		}
		page.After, page.AfterSlot = rows[listPage-1].Name, rows[listPage-1].Slot
	}
}

func listWaiters(ctx context.Context, tx gen.DBTX) (all []Info, err error) {
	page := gen.ListTurnstilesParams{After: []byte{}, Limit: listPage}
	for {
		rows, err := queries.ListTurnstiles(ctx, tx, page)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			all = append(all, waiterOf(gen.InspectTurnstileRow(row)))
		}
		if len(rows) < listPage {
			return all, nil
		}
		page.After = rows[listPage-1].Name
	}
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
	rows, err := queries.InspectLease(ctx, m.db, []byte(key.String()))
	var others []Info
	for _, row := range rows {
		switch row.Slot {
		case turnstileSlot:
			others, err = m.firstWaiter(ctx, key)
		case leaseSlot:
			info = infoOf(row)
			info.Permits = int(max(0, -row.IntentUs))
		default:
			others = append(others, infoOf(row))
		}
	}
	if err != nil {
		return Info{}, txlock.Explain(what, err)
	}
	info.Key, info.Others = key, others
	return info, nil
}

// firstWaiter returns who has the turnstile of a key, if anybody has.
func (m *Manager) firstWaiter(ctx context.Context, key txlock.Key) (first []Info, err error) {
	err = uncommitted(ctx, m.db, func(tx gen.DBTX) error {
		row, err := queries.InspectTurnstile(ctx, tx, []byte(key.String()))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		first = []Info{waiterOf(row)}
		return err
	})
	return first, err
}

// infoOf tells of a row. A token is the server's clock at the grant in microseconds, but
// for one that was raised past an earlier one.
func infoOf(row gen.InspectLeaseRow) Info {
	info := Info{
		Key: txlock.Named(string(row.Name)), Kind: Exclusive, Slot: row.Slot, Owner: string(row.Owner),
		Token: row.Token,
		Held:  row.LeftUs > 0 && row.HoldsLength > 0, Left: micros(row.LeftUs), TTL: micros(row.TtlUs),
		Holds: int(row.HoldsLength / holdLength),
	}
	if row.Token > 0 {
		info.Since = time.UnixMicro(int64(row.Token))
	}
	switch {
	case row.Slot > MaxPermits:
		info.Kind = Reader
	case row.Slot > leaseSlot:
		info.Kind = Permit
	}
	return info
}

func waiterOf(row gen.InspectTurnstileRow) Info {
	return Info{
		Key: txlock.Named(string(row.Name)), Kind: Waiter, Slot: turnstileSlot, Owner: string(row.Owner),
		Since: time.UnixMicro(row.SinceUs), Session: row.ConnID,
	}
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
	if slices.ContainsFunc(slots, func(slot int64) bool { return slot < leaseSlot }) {
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
		rows, err := queries.InspectLease(ctx, m.db, []byte(key.String()))
		if err != nil {
			return txlock.Explain(what, err)
		}
		slots = append(slots, leaseSlot) // first, so that no reader follows
		for _, row := range rows {
			if row.Slot > leaseSlot {
				slots = append(slots, row.Slot)
			}
		}
	}
	released := false
	for _, slot := range slots {
		held, err := m.forceRelease(ctx, key, slot)
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
func (m *Manager) forceRelease(ctx context.Context, key txlock.Key, slot int64) (bool, error) {
	row := gen.ForceReleaseParams{Name: []byte(key.String()), Slot: slot}
	reply, err := queries.ForceRelease(ctx, m.db, row)
	ended := false
	var who error  // has it locked
	var by written // that it was found locked by, since
	since, unknown := now(), now()
	for err == nil && reply == replyAbsent {
		if err = m.open(); err != nil {
			break
		}
		var b *blocker
		if b, err = m.blockerOf(ctx, key, slot); err != nil {
			break
		}
		var seen glance
		if seen, err = lookAt(ctx, m.db, key, slot); err != nil || !seen.exists && b == nil {
			break // missing
		}
		limit := guardGrace
		switch {
		case b == nil:
			who = errUnknownBlocker
			if unknown.until(now()) > 2*guardGrace {
				err = txlock.ErrBusy
			}
		case b.written != by:
			who, by, since, unknown = errors.New(b.String()), b.written, now(), now()
		case since.until(now()) >= guardGrace: // one transaction, all the time
			who, ended, unknown = nil, true, now()
			err = b.end(ctx, m, key)
		default:
			limit, unknown = guardGrace-since.until(now()), now()
		}
		if err == nil {
			reply, err = m.forceQueued(ctx, row, limit)
		}
	}
	if err != nil && who != nil {
		err = fmt.Errorf("%w: %w", err, who)
	}
	return err == nil && (ended || reply >= firstToken), err
}

// forceQueued sends the release when the row is free, and waits for that in its queue
// until the limit.
func (m *Manager) forceQueued(ctx context.Context, of gen.ForceReleaseParams, limit time.Duration) (reply int64, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)) // nobody waits on then
	}
	err = m.withRow(ctx, m.db, row{string(of.Name), of.Slot}, max(limit, leastLook), func(tx gen.DBTX) error {
		reply, err = queries.ForceRelease(ctx, tx, of)
		return err
	})
	if errors.Is(txlock.Explain("", err), txlock.ErrWaitTimeout) || conflicted(err) {
		return replyAbsent, nil
	}
	return reply, err
}

var errUnknownBlocker = errors.New("a transaction that has not written it has its row locked")

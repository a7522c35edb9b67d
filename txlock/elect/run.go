package elect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	// standbySlots is how many processes lead or wait in the server's queue, each by a
	// connection. It is the same for all processes: the semaphore says so.
	standbySlots = 5
	// lookEvery is how often a process without a standby slot looks for one, on average: as often as
	// a thousand of them may, whenever they were started. The pauses are from half of it to
	// one and a half.
	lookEvery = 7 * time.Second
	// leastPause and mostPause bound the time after which what has failed is tried again.
	leastPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
	// afterResign is how long one that has resigned leaves to others to follow it.
	afterResign = time.Second
	// goodbye bounds how long Run waits for the release of a term or of a standby slot, which goes
	// on in the background.
	goodbye = time.Second
	// patience bounds a question that has no other limit: the server, or the network, may
	// have hung up without a word.
	patience = 10 * time.Second
)

// A Func does the leader's work. It must return soon after its context has ended.
type Func func(ctx context.Context, term *Term) error

// Run takes part in the election, and calls fn when this process leads. Run it in all processes.
// The context of fn ends, with the reason as its cause (context.Cause),
//
//   - with txlock.ErrLost, when the term could not be renewed and only the grace period is left;
//   - with txlock.ErrLost, when the term was lost otherwise, for example by
//     lease.Manager.ForceRelease: another process may lead already;
//   - with ErrResigned by Resign, with ErrHung by a Watchdog, and with the context of Run;
//   - with lease.ErrClosed by the Close of the manager, which waits for fn as Run does.
//
// Then Run waits for fn to return, and is a candidate again unless its own context has ended. If
// fn returns while it leads, Run releases the leadership and returns the error of fn, or nil: the
// process no longer takes part, and another one leads. If fn panics, Run releases the leadership
// and propagates the panic.
//
// An fn that has not returned at the end of the grace period, also after a resignation, runs
// beside its successor. Run reports it to the observer as Overdue and waits for it. Meanwhile the
// process is not on standby.
//
// If the server can't be reached, Run reports that to the observer and retries. It returns the
// context's error, joined with that of fn; ErrRunning; lease.ErrClosed, and the error of a pool
// that was closed; schema.ErrEngine if the server is neither MySQL, MariaDB, TiDB nor Vitess;
// txlock.ErrInvalidKey and ErrInvalidOption. If the first reply of the server shows a permanent
// problem, Run returns it: txlock.ErrSchema, ErrReadOnly, ErrPrivilege, schema.ErrSession, or a
// wrong user or database.
func (e *Election) Run(ctx context.Context, fn Func) error {
	if ctx == nil || fn == nil {
		return errors.New("elect: Run needs a context and a function, got nil")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	running := e.running
	e.running = true
	e.mu.Unlock()
	if running {
		return fmt.Errorf("%w: %q", ErrRunning, e.key)
	}
	c := &candidate{Election: e}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running = false
	}()
	defer c.releaseSlot(ctx)
	for {
		l, err := c.campaign(ctx)
		if err != nil {
			return err
		}
		why, err := c.lead(ctx, l, fn)
		switch {
		case why == nil:
			return err
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return err
		case ctx.Err() != nil:
			return errors.Join(ctx.Err(), err)
		case errors.Is(why, ErrResigned):
			_ = leaseutil.Pause(ctx, afterResign, nil) // campaign returns the error
		}
	}
}

// candidate is a Run.
type candidate struct {
	*Election
	slot     *lease.Lease // its standby slot
	hadSlot  bool         // it has had one when it looked last
	answered bool         // the server has served it once
}

// campaign waits until this process leads.
func (c *candidate) campaign(ctx context.Context) (*lease.Lease, error) {
	for wait := leastPause; ; {
		l, err := c.standBy(ctx)
		d := wait/2 + rand.N(wait)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case leaseutil.Permanent(err, c.answered) || errors.Is(err, lease.ErrClosed):
			return nil, err
		case errors.Is(err, errFull):
			d, wait = lookEvery/2+rand.N(lookEvery), leastPause
		case errors.Is(err, txlock.ErrBusy): // others were faster, and there may be more standby slots
			wait = min(2*wait, mostPause)
		default:
			c.tell(ctx, Event{Kind: RunError, Err: err})
			most := lookEvery // there may be many others
			if c.hadSlot {
				most = mostPause
			}
			wait = min(2*wait, most)
		}
		if err := leaseutil.Pause(ctx, d, nil); err != nil {
			return nil, err
		}
	}
}

// standBy takes a standby slot, and waits for the lease as long as it has that. Each time it has
// another owner, whatever the context says, so that it re-enters nobody's lease, not even
// one of its own that is still to be released.
func (c *candidate) standBy(ctx context.Context) (*lease.Lease, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("elect: make an identifier: %w", err)
	}
	owned, note := lease.WithOwner(ctx, id.String()), lease.WithLabel(c.by)
	c.mu.Lock()
	c.owner = id.String()
	c.mu.Unlock()
	// Who leads has had the grace to commit: its transactions end with its term.
	waiting, options := owned, []lease.AcquireOption{lease.TTL(c.ttl), lease.GuardGrace(0), note}
	switch err := c.takeSlot(owned, note); {
	case errors.Is(err, schema.ErrEngine): // it has no slots, or no leases at all, as Acquire says then
	case err != nil:
		return nil, err
	default:
		var stop func()
		waiting, stop = c.slot.Context(owned)
		defer stop()
		options = append(options, lease.Fair())
	}
	l, err := c.leases.Acquire(waiting, c.key, options...)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		err = fmt.Errorf("wait for the lease: %w", context.Cause(waiting))
	}
	return l, err
}

// errFull is returned while all standby slots are taken.
var errFull = errors.New("all standby slots are taken")

// takeSlot takes a standby slot, unless the candidate has one. It only looks first: a try writes.
func (c *candidate) takeSlot(ctx context.Context, note lease.Option) error {
	if c.slot != nil && c.slot.Valid() {
		return nil
	}
	c.slot = nil
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	info, err := c.leases.Inspect(ctx, c.slotKey)
	if err != nil {
		return err
	}
	taken := 0
	for _, other := range info.Others {
		if other.Kind == lease.Permit && other.Held {
			taken++
		}
	}
	if taken >= standbySlots {
		c.hadSlot, c.answered = false, true
		return errFull
	}
	if c.slot, err = c.slots.TryAcquire(ctx, lease.TTL(c.ttl), note); err == nil {
		c.hadSlot, c.answered = true, true
	}
	return err
}

// releaseSlot gives the standby slot back, if it wasn't lost.
func (c *candidate) releaseSlot(ctx context.Context) {
	if c.slot == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	if err := c.slot.Release(ctx); err != nil && !errors.Is(err, txlock.ErrNotHeld) {
		c.tell(ctx, Event{Kind: RunError, Err: err})
	}
}

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
)

// ErrGuarded is returned by Release where an open transaction guards the lease, so
// that its row can't be written. The lease is given back behind the call as soon as
// that transaction has ended, and expires at the latest if it doesn't.
var ErrGuarded = errors.New("lease: an open transaction guards it: it is given back when that ends")

// How long Release tries on.
const (
	guardPatience = 250 * time.Millisecond // while a transaction guards the row
	releaseLimit  = 5 * time.Second        // until the server has answered
	giveBackLimit = 30 * time.Second       // the same behind the call, a new connection included
)

// Release ends this hold; the last of an owner gives the lease back, by one
// statement. Releasing again does nothing. It is sent even where the context has
// ended already, so that it may be deferred; a context that ends meanwhile ends the
// call, and the release goes on behind it.
//
// It returns txlock.ErrNotHeld, with the reason, for a lease that had been lost,
// whose new holder is not touched; ErrGuarded; and the errors of the driver, after
// which the lease ends with its time to live.
func (l *Lease) Release(ctx context.Context) error {
	last, lost := l.record.leave(l)
	if !last {
		return notHeld(lost)
	}
	if ctx.Err() != nil { // it had ended before: the release is all that is left to do
		ctx = context.WithoutCancel(ctx)
	}
	return l.record.end(ctx, lost)
}

// end gives back a record that its last handle has left, and tells the observer.
func (r *record) end(ctx context.Context, lost error) error {
	err := notHeld(r.giveBack(ctx, lost))
	r.m.observe(func(o txlock.Observer) {
		e := r.event()
		e.Took, e.Err = r.granted.until(now()), err
		o.Released(ctx, e)
	})
	return err
}

// notHeld makes the loss of a lease the error of its release.
func notHeld(err error) error {
	if err == nil || !errors.Is(err, txlock.ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", txlock.ErrNotHeld, err)
}

// giveBack removes the hold from the row, after the last renewal. A record that
// was lost has its hold removed too, if it is still there.
func (r *record) giveBack(ctx context.Context, lost error) error {
	m := r.m
	m.forget(r)
	limited, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	err := r.joinRenewal(limited)
	if err == nil {
		err = r.remove(limited)
	}
	final := err == nil || errors.Is(err, txlock.ErrNotHeld)
	if final && r.shared {
		m.freeSlot(r.key, r.slot)
	}
	m.freed(r.key)
	if final && lost != nil {
		return lost
	}
	if !final {
		until, pending := now().add(r.left()), r.isPending()
		m.errands.Go(func() {
			_ = r.joinRenewal(m.undoing) // or the manager is closed
			m.giveBackUntil(remains{r.key, r.slot, r.hold, pending}, now(), until)
			m.freeSlot(r.key, r.slot)
		})
	}
	return err
}

// remove sends the release until the server has answered.
func (r *record) remove(ctx context.Context) error {
	what := fmt.Sprintf("release lease %q", r.key)
	uncertain := false // an attempt without an answer may have removed it
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		reply, err := r.m.sendRelease(ctx, r.m.db, r.key, r.slot, r.hold)
		if err == nil && reply == replyAbsent {
			reply, err = r.m.releaseQueued(ctx, r.key, r.slot, r.hold)
		}
		switch {
		case err != nil && ctx.Err() == nil && !errors.Is(err, errPoolClosed) && (txlock.Unknown(err) || txlock.Retryable(err)):
			uncertain = true
		case err != nil:
			return txlock.Explain(what, err)
		case reply >= firstToken || reply == replyRefused && uncertain:
			return nil
		case reply == replyExpired:
			return fmt.Errorf("%s: %w: it had expired", what, txlock.ErrNotHeld)
		case reply == replyRefused:
			return fmt.Errorf("%s: %w: it was taken over or released by force", what, txlock.ErrNotHeld)
		default: // locked, or missing
			seen, err := lookAt(ctx, r.m.db, r.key, r.slot)
			if err == nil && !seen.exists {
				return fmt.Errorf("%s: %w: its row is gone", what, txlock.ErrNotHeld)
			}
			return fmt.Errorf("%s: %w", what, ErrGuarded)
		}
		if err := r.m.sleep(ctx, pause); err != nil {
			return fmt.Errorf("%s: no answer from the server: %w", what, err)
		}
	}
}

// releaseQueued sends the release when the row is free, and waits for that in its
// queue for a while: readers may lock it one after the other.
func (m *Manager) releaseQueued(ctx context.Context, key txlock.Key, slot int64, hold string) (reply int64, err error) {
	err = m.withRow(ctx, m.db, row{key.String(), slot}, guardPatience, func(tx gen.DBTX) error {
		reply, err = m.sendRelease(ctx, tx, key, slot, hold)
		return err
	})
	if errors.Is(txlock.Explain("", err), txlock.ErrWaitTimeout) {
		return replyAbsent, nil
	}
	return reply, err
}

// sendRelease sends the statement once.
func (m *Manager) sendRelease(ctx context.Context, db gen.DBTX, key txlock.Key, slot int64, hold string) (int64, error) {
	if slot == unknownSlot {
		var err error
		slot, err = queries.SlotOfHold(ctx, db, gen.SlotOfHoldParams{Name: []byte(key.String()), Hold: hold})
		if errors.Is(err, sql.ErrNoRows) {
			return replyRefused, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return queries.ReleaseLease(ctx, db, gen.ReleaseLeaseParams{Hold: hold, Name: []byte(key.String()), Slot: slot})
}

// settling is how long after its deadline a statement may still take the row that
// the server has begun to execute before.
const settling = time.Second

// remains are a hold that is given back behind the calls.
type remains struct {
	key     txlock.Key
	slot    int64
	hold    string
	pending bool // its transaction may be open, so that a plain read doesn't show it
}

// giveBackUntil removes a hold, and tries on until the server's answer is final, or
// the lease has expired. The statement that may have taken it is refused by the server
// from a moment on: what is found then, or isn't, is final.
func (m *Manager) giveBackUntil(r remains, from, until instant) {
	for pause := 10 * time.Millisecond; now() < until; pause = min(2*pause, time.Second) {
		sent := now()
		removed, found, err := m.giveBackOnce(r)
		if removed {
			m.freed(r.key)
		}
		hopeless := errors.Is(txlock.Explain("", err), txlock.ErrSchema) // then nothing was granted either
		if removed || errors.Is(err, errPoolClosed) || sent > from.add(settling) && (!found || hopeless) {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-m.undoing.Done():
			timer.Stop()
			return
		}
	}
}

// giveBackOnce tells whether it has removed the hold, and else whether it may have
// been there: it can't be told of a row that is locked.
func (m *Manager) giveBackOnce(r remains) (removed, found bool, err error) {
	ctx, cancel := context.WithTimeout(m.undoing, giveBackLimit)
	defer cancel()
	if r.slot != unknownSlot && !r.pending {
		// Many that give up at once must not keep the row locked.
		row, err := queries.LeaseInSnapshot(ctx, m.db, gen.LeaseInSnapshotParams{Name: []byte(r.key.String()), Slot: r.slot})
		if errors.Is(err, sql.ErrNoRows) || err == nil && !strings.Contains(row.Holds, r.hold) {
			return false, false, nil
		}
	}
	reply, err := m.sendRelease(ctx, m.db, r.key, r.slot, r.hold)
	if err == nil && reply == replyAbsent && r.slot != unknownSlot {
		reply, err = m.releaseQueued(ctx, r.key, r.slot, r.hold)
	}
	switch {
	case err != nil:
		return false, true, err
	case reply == replyRefused:
		return false, false, nil
	case reply != replyAbsent:
		return true, true, nil
	}
	seen, err := lookAt(ctx, m.db, r.key, r.slot)
	return false, seen.exists || err != nil, err
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
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
		e.Took, e.Err = r.granted.Until(r.m.store.Now()), err
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
		until, pending := r.m.store.Now().Add(r.left()), r.isPending()
		m.errands.Go(func() {
			_ = r.joinRenewal(m.undoing) // or the manager is closed
			m.giveBackUntil(remains{r.key, r.slot, r.hold, pending}, r.m.store.Now(), until)
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
		reply, err := r.m.release(ctx, r.row(), r.hold)
		switch {
		case err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrPoolClosed) && (txlock.Unknown(err) || txlock.Retryable(err)):
			uncertain = true
		case err != nil:
			return txlock.Explain(what, err)
		case reply == store.Done || reply == store.Refused && uncertain:
			return nil
		case reply == store.Expired:
			return fmt.Errorf("%s: %w: it had expired", what, txlock.ErrNotHeld)
		case reply == store.Refused:
			return fmt.Errorf("%s: %w: it was taken over or released by force", what, txlock.ErrNotHeld)
		default: // locked, or missing
			seen, err := r.m.store.Look(ctx, r.row())
			if err == nil && !seen.Exists {
				return fmt.Errorf("%s: %w: its row is gone", what, txlock.ErrNotHeld)
			}
			return fmt.Errorf("%s: %w", what, ErrGuarded)
		}
		if err := r.m.sleep(ctx, pause); err != nil {
			return fmt.Errorf("%s: no answer from the server: %w", what, err)
		}
	}
}

// release sends a release. Where the row is locked it waits for it in its queue for a while:
// readers may lock it one after the other.
func (m *Manager) release(ctx context.Context, at store.Row, hold string) (reply store.Reply, err error) {
	if reply, err = m.store.Release(ctx, at, hold); err != nil || reply != store.Absent || at.Slot == store.UnknownSlot {
		return reply, err
	}
	err = m.store.Queued(ctx, at, guardPatience, func(s store.Session) error {
		reply, err = s.Release(ctx, at, hold)
		return err
	})
	if errors.Is(err, store.ErrLocked) {
		return store.Absent, nil
	}
	return reply, err
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

func (r remains) row() store.Row { return store.Row{Key: r.key.String(), Slot: r.slot} }

// giveBackUntil removes a hold, and tries on until the server's answer is final, or
// the lease has expired. The statement that may have taken it is refused by the server
// from a moment on: what is found then, or isn't, is final.
func (m *Manager) giveBackUntil(r remains, from, until instant) {
	for pause := 10 * time.Millisecond; m.store.Now() < until; pause = min(2*pause, time.Second) {
		sent := m.store.Now()
		removed, found, err := m.giveBackOnce(r)
		if removed {
			m.freed(r.key)
		}
		hopeless := errors.Is(txlock.Explain("", err), txlock.ErrSchema) // then nothing was granted either
		if removed || errors.Is(err, store.ErrPoolClosed) || sent > from.Add(settling) && (!found || hopeless) {
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
	if r.slot != store.UnknownSlot && !r.pending {
		// Many that give up at once must not keep the row locked.
		row, err := m.store.Stored(ctx, r.row())
		if err == nil && !strings.Contains(row.Holds, r.hold) {
			return false, false, nil
		}
	}
	reply, err := m.release(ctx, r.row(), r.hold)
	switch {
	case err != nil:
		return false, true, err
	case reply == store.Refused:
		return false, false, nil
	case reply != store.Absent:
		return true, true, nil
	}
	seen, err := m.store.Look(ctx, r.row())
	return false, seen.Exists || err != nil, err
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// ErrGuarded is returned by Release if a transaction keeps the lease's row locked for 250 ms, as
// one does that guards the lease, and rarely one of another call where the server is very busy. The
// lease is released in the background as soon as that transaction has ended. If it doesn't end, the
// lease ends after its TTL.
var ErrGuarded = errors.New("lease: its row is locked, as by an open transaction that guards it; it is released when that transaction ends")

// How long a release tries.
const (
	guardPatience   = 250 * time.Millisecond // while a transaction has the row locked
	releaseLimit    = 5 * time.Second        // until the server has answered
	backgroundLimit = 30 * time.Second       // the same in the background, with a new connection
)

// Release releases this handle; the last handle of an owner releases the lease, with one
// statement. Releasing again does nothing. Release works under a context that has already ended,
// so it may be deferred. If the context ends during the call, Release returns, and continues in
// the background.
//
// It returns txlock.ErrNotHeld with the cause if the lease had been lost, and doesn't affect the
// new holder; ErrGuarded; and the errors of the driver, after which the lease ends after its TTL.
func (l *Lease) Release(ctx context.Context) error {
	if ctx == nil {
		return errors.New("lease: Release needs a context, got nil")
	}
	r := l.record
	counted := r.m.tasks.Enter() // a manager that has ended has released all handles
	last, lost := r.leave(l.handle)
	runtime.KeepAlive(l) // until here it isn't dropped
	if !last {
		r.m.tasks.Leave(counted)
		return notHeld(lost)
	}
	if ctx.Err() != nil { // it had ended before Release was called
		ctx = context.WithoutCancel(ctx)
	}
	return r.end(ctx, lost, counted)
}

// end releases a record that has no handle any more, and tells the observer. Until then
// Close waits for a call that is counted.
func (r *record) end(ctx context.Context, lost error, counted bool) error {
	err := notHeld(r.release(ctx, lost))
	r.m.tasks.Leave(counted)
	r.tellReleased(ctx, err)
	return err
}

func (r *record) tellReleased(ctx context.Context, err error) {
	r.report(ctx, txlock.Released, r.granted.Until(r.m.store.Now()), err)
}

// notHeld makes txlock.ErrNotHeld of the loss of a lease.
func notHeld(err error) error {
	if err == nil || !errors.Is(err, txlock.ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", txlock.ErrNotHeld, err)
}

// release removes the hold from the row, after the last renewal. It does so for a lost
// lease too, in case the hold is still there. If the server doesn't answer in time, it
// goes on in the background.
func (r *record) release(ctx context.Context, lost error) error {
	m := r.m
	m.forget(r)
	limited, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	what, kept := r.remains(lost), false
	err := r.joinRenewal(limited)
	if err == nil {
		kept, err = m.remove(limited, what)
	}
	final := err == nil || errors.Is(err, txlock.ErrNotHeld)
	if final && r.shared {
		m.freeSlot(r.key, r.slot)
	}
	if !kept {
		m.freed(r.key)
	}
	if !final {
		until := m.store.Now().Add(r.left())
		m.tasks.Go(func() {
			_ = r.joinRenewal(m.undoing) // an error means that the manager is closed
			m.releaseUntil(what, m.store.Now(), until)
			m.freeSlot(r.key, r.slot)
		})
		if ctx.Err() == nil && limited.Err() != nil {
			err = fmt.Errorf("%w: %s, and the release continues in the background", err, m.silentFor(releaseLimit))
		}
	}
	switch {
	case lost == nil:
		return err
	case final:
		return lost
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// remove sends the release again until the server has answered. It reports whether the key
// stays held: see HoldAtLeast.
func (m *Manager) remove(ctx context.Context, r remains) (kept bool, err error) {
	uncertain := false // an attempt without an answer may have removed the hold
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		reply, err := m.sendRelease(ctx, r)
		switch {
		case err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrPoolClosed) && (fault.Unknown(err) || txlock.Retryable(err)):
			uncertain = true
		case err != nil:
			return false, fault.Explain(fmt.Sprintf("release lease %q", r.key), err)
		case reply == store.Kept:
			return true, nil
		case reply == store.Done || reply == store.Refused && uncertain && (r.atLeast == 0 || m.store.Now() < r.deadline):
			return false, nil
		case reply == store.Refused && uncertain: // by then it may have been lost before the first attempt came
			return m.wasKept(ctx, r)
		case reply == store.Expired:
			return false, fmt.Errorf("release lease %q: %w: it had expired", r.key, txlock.ErrNotHeld)
		case reply == store.Refused:
			return false, fmt.Errorf("release lease %q: %w: it was taken over or released by force", r.key, txlock.ErrNotHeld)
		default: // locked, or missing
			seen, err := m.store.Look(ctx, r.row())
			if err == nil && !seen.Exists {
				return false, fmt.Errorf("release lease %q: %w: its row is gone", r.key, txlock.ErrNotHeld)
			}
			return false, fmt.Errorf("release lease %q: %w", r.key, ErrGuarded)
		}
		if err := m.sleep(ctx, pause); err != nil {
			return false, fmt.Errorf("release lease %q: no answer from the server: %w", r.key, err)
		}
	}
}

// wasKept reports whether a release that was not answered has kept the row.
func (m *Manager) wasKept(ctx context.Context, r remains) (bool, error) {
	seen, err := m.store.Look(ctx, r.row())
	if err == nil && seen.Owner == store.Released+r.owner[:min(len(r.owner), mostKeptOwner)] {
		return true, nil
	}
	return false, errors.Join(fmt.Errorf("release lease %q: %w: its TTL expired before the server answered, so another owner may have held it before the time of HoldAtLeast ended", r.key, txlock.ErrNotHeld), err)
}

// mostKeptOwner is how much of an owner's name stands in a row that is kept.
const mostKeptOwner = mostText - len(store.Released)

// sendRelease sends a release. If the row is locked it waits a while in the server's
// queue: readers may lock the row one after the other.
func (m *Manager) sendRelease(ctx context.Context, r remains) (store.Reply, error) {
	reply, err := r.release(ctx, m.store)
	if err != nil || reply != store.Absent {
		return reply, err
	}
	return m.releaseQueued(ctx, r)
}

// releaseQueued sends a release when the row is free.
func (m *Manager) releaseQueued(ctx context.Context, r remains) (reply store.Reply, err error) {
	err = m.store.Queued(ctx, r.row(), guardPatience, func(s store.Session) error {
		reply, err = r.release(ctx, s)
		return err
	})
	if errors.Is(err, store.ErrLocked) {
		return store.Absent, nil
	}
	return reply, err
}

// settling is how long after its deadline a statement may still take the row, because the
// server has begun to execute it before.
const settling = time.Second

// remains is a hold that is to be released.
type remains struct {
	key     txlock.Key
	slot    int64
	hold    string
	pending bool          // its transaction may be open, so a plain read doesn't show the hold
	atLeast time.Duration // see HoldAtLeast; 0: none

	owner    string
	deadline instant // until then nobody else has had it
}

// remains returns what is to be released of a record. What was lost is not kept for any
// longer, since somebody else may have been told that it is free.
func (r *record) remains(lost error) remains {
	r.mu.Lock()
	defer r.mu.Unlock()
	what := remains{key: r.key, slot: r.slot, hold: r.hold, pending: r.pending, atLeast: r.atLeast, owner: r.owner, deadline: r.deadline}
	switch {
	case lost != nil:
		what.atLeast = 0
	case r.atLeast > 0:
		what.atLeast += r.drain // the row counts from when the wait for readers began
	}
	return what
}

// release sends the release.
func (r remains) release(ctx context.Context, s store.Session) (store.Reply, error) {
	if r.atLeast > 0 {
		return s.Keep(ctx, r.row(), r.hold, r.atLeast)
	}
	return s.Release(ctx, r.row(), r.hold)
}

func (r remains) row() store.Row { return store.Row{Key: r.key.String(), Slot: r.slot} }

// releaseUntil removes a hold, and tries again until the server's answer is final or the
// moment until has come. After the moment from, the server refuses the statement that may
// have taken the hold, so an answer is final then.
func (m *Manager) releaseUntil(r remains, from, until instant) {
	for pause := 10 * time.Millisecond; m.store.Now() < until; pause = min(2*pause, time.Second) {
		sent := m.store.Now()
		removed, found, err := m.releaseOnce(r)
		hopeless := errors.Is(fault.Explain("", err), txlock.ErrSchema) // then nothing was granted either
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

// releaseOnce reports whether it has removed the hold, and if not, whether the hold may
// still be there, which nobody can tell of a row that is locked.
func (m *Manager) releaseOnce(r remains) (removed, found bool, err error) {
	ctx, cancel := context.WithTimeout(m.undoing, backgroundLimit)
	defer cancel()
	if !r.pending {
		// Only look first: many releases at once would keep the row locked.
		row, err := m.store.Stored(ctx, r.row())
		if err == nil && !strings.Contains(row.Holders, r.hold) {
			return false, false, nil
		}
	}
	reply, err := m.sendRelease(ctx, r)
	switch {
	case err != nil:
		return false, true, err
	case reply == store.Refused:
		return false, false, nil
	case reply == store.Kept:
		return true, true, nil
	case reply != store.Absent:
		m.freed(r.key)
		return true, true, nil
	}
	seen, err := m.store.Look(ctx, r.row())
	return false, seen.Exists || err != nil, err
}

package lease

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// janitorKey is the lease by which one janitor of the database works at a time.
const janitorKey = "lockstep:janitor"

// janitor removes idle rows, once per interval among all managers: whoever gets its
// lease does, and keeps that until the next interval. It has ended before its lease has,
// so that another is never beside it.
func (m *Manager) janitor() {
	for m.sleep(m.ending, m.options.janitor) == nil {
		ctx, cancel := context.WithTimeout(m.ending, m.janitorTTL())
		ours, err := m.takeJanitor(ctx)
		if err == nil && ours {
			// What it doesn't remove now, for a failing server or for want of time, it
			// does next time.
			_, err = m.CleanNow(ctx)
		}
		cancel()
		m.observe(func(o txlock.Observer) {
			if err != nil && m.ending.Err() == nil {
				o.Refused(m.ending, txlock.Event{Lease: true, Key: txlock.Named(janitorKey), Err: txlock.Explain("clean leases", err)})
			}
		})
	}
}

// janitorTTL is most of the interval.
func (m *Manager) janitorTTL() time.Duration { return m.options.janitor * 9 / 10 }

// takeJanitor takes the lease for most of the interval. It is not released, so that
// the other janitors find nothing to do until the next.
func (m *Manager) takeJanitor(ctx context.Context) (bool, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return false, err
	}
	at := leaseRow(txlock.Named(janitorKey))
	if err := m.makeAlone(ctx, at); errors.Is(err, store.ErrLocked) {
		return false, nil // another is at it
	} else if err != nil {
		return false, err
	}
	a, err := m.store.Take(ctx, store.Ask{Row: at, Owner: process + id.String(), Hold: holdOf(id), TTL: m.janitorTTL(), NotAfter: store.Never})
	return a.Reply == store.Done, err
}

// CleanNow removes the rows of leases that nobody has used for the retention (see
// Janitor), and returns how many. Rows that are locked stay, and so do those whose
// token is ahead of the server's clock, so that the token of a key never goes
// back. A key that was shared, or a semaphore, loses the row that says so when it has none
// of readers and permits any more: then it may be used for something else. It works in small transactions of its own, waits for nobody, and what it has
// removed stays so when it fails. It returns txlock.ErrSchema, ErrReadOnly, ErrClosed
// and the errors of the driver.
func (m *Manager) CleanNow(ctx context.Context) (int, error) {
	if err := m.ready(ctx); err != nil {
		return 0, txlock.Explain("clean leases", err)
	}
	n, err := m.store.Clean(ctx, m.options.retention)
	return n, txlock.Explain("clean leases", err)
}

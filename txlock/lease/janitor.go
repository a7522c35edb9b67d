package lease

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// janitorKey is the key of the lease that lets one janitor of the database work at a
// time.
const janitorKey = "lockstep:janitor"

// janitor removes idle rows. Among all managers of the database, one does it in each
// interval: the one that gets the janitor's lease, which it keeps until the next
// interval. It stops before that lease ends, so that two janitors never work at the same
// time.
func (m *Manager) janitor() {
	for m.sleep(m.ending, m.options.janitor) == nil {
		ctx, cancel := context.WithTimeout(m.ending, m.janitorTTL())
		ours, err := m.takeJanitor(ctx)
		if err == nil && ours {
			// What it doesn't remove now, because of an error or for lack of time, is
			// removed next time.
			_, err = m.Purge(ctx)
		}
		cancel()
		m.troubled(txlock.Named(janitorKey), "clean leases", err)
	}
}

// janitorTTL is a little less than the interval.
func (m *Manager) janitorTTL() time.Duration { return m.options.janitor * 9 / 10 }

// takeJanitor takes the janitor's lease, and reports whether it got it. The lease is not
// released, so that the other janitors find nothing to do until the next interval.
func (m *Manager) takeJanitor(ctx context.Context) (bool, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return false, err
	}
	at := leaseRow(txlock.Named(janitorKey))
	err = m.making(ctx, func() error { return ensureRow(ctx, m.store, at) })
	if errors.Is(err, store.ErrLocked) {
		return false, nil // it is tried again at the next time
	}
	if err != nil {
		return false, err
	}
	a, err := m.store.Take(ctx, store.Ask{Row: at, Owner: process + id.String(), Label: m.options.label, Hold: holdOf(id), TTL: m.janitorTTL(), NotAfter: store.Never})
	return a.Reply == store.Done, err
}

// Purge deletes the rows of leases that were not used for the retention time (see PurgeEvery), and
// returns their number. It skips rows that are locked, and rows whose token is ahead of the
// server's clock, so that the token of a key never decreases. A shared key or a semaphore may be
// used for something else when all its rows are deleted. Purge works in small transactions of its
// own and doesn't wait for locks; if it fails, what it has deleted stays deleted. It returns
// txlock.ErrSchema, ErrReadOnly, ErrClosed and the errors of the driver.
func (m *Manager) Purge(ctx context.Context) (int, error) {
	if err := m.ready(ctx); err != nil {
		return 0, fault.Explain("clean leases", err)
	}
	n, err := m.store.Clean(ctx, m.options.retention)
	return n, fault.Explain("clean leases", err)
}

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

// cleanupKey is the key of the lease that lets one manager of the database clean up at a
// time.
const cleanupKey = "lockstep:cleanup"

// cleanup removes idle rows. Among all managers of the database, one does it in each
// interval: the one that gets the lease for that, which it keeps until the next
// interval. It stops before that lease ends, so that two never clean up at the same
// time.
func (m *Manager) cleanup() {
	for m.sleep(m.ending, m.options.cleanupEvery) == nil {
		ctx, cancel := context.WithTimeout(m.ending, m.cleanupTTL())
		ours, err := m.takeCleanup(ctx)
		if err == nil && ours {
			// What it doesn't remove now, because of an error or for lack of time, is
			// removed next time.
			_, err = m.Purge(ctx)
		}
		cancel()
		m.troubled(txlock.Named(cleanupKey), "clean leases", err)
	}
}

// cleanupTTL is a little less than the interval.
func (m *Manager) cleanupTTL() time.Duration { return m.options.cleanupEvery * 9 / 10 }

// takeCleanup takes the lease for a cleanup, and reports whether it got it. The lease is not
// released, so that the other managers find nothing to do until the next interval.
func (m *Manager) takeCleanup(ctx context.Context) (bool, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return false, err
	}
	at := leaseRow(txlock.Named(cleanupKey))
	err = m.making(ctx, func() error { return ensureRow(ctx, m.store, at) })
	if errors.Is(err, store.ErrLocked) {
		return false, nil // it is tried again at the next time
	}
	if err != nil {
		return false, err
	}
	a, err := m.store.Take(ctx, store.Ask{Row: at, Owner: process + id.String(), Label: m.options.label, Hold: holdOf(id), TTL: m.cleanupTTL(), NotAfter: store.Never})
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

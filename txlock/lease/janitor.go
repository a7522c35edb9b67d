package lease

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
)

// cleanBatch is how many rows one transaction of the janitor removes.
const cleanBatch = 200

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
	if err := m.ensureAlone(ctx, txlock.Named(janitorKey), leaseSlot); errors.Is(err, errLocked) {
		return false, nil // another is at it
	} else if err != nil {
		return false, err
	}
	reply, err := queries.AcquireLease(ctx, m.db, gen.AcquireLeaseParams{
		Owner: []byte(process + id.String()), Hold: holdOf(id), TtlUs: m.janitorTTL().Microseconds(),
		Name: []byte(janitorKey), Slot: leaseSlot, NotAfterUs: math.MaxInt64,
	})
	return reply >= firstToken, err
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
	total := 0
	page := gen.IdleLeasesParams{AfterSlot: math.MinInt64, After: []byte{}, IdleUs: m.options.retention.Microseconds(), Limit: cleanBatch}
	for {
		rows, err := queries.IdleLeases(ctx, m.db, page)
		if err == nil {
			var n int
			n, err = m.clean(ctx, rows)
			total += n
		}
		if err != nil {
			return total, txlock.Explain("clean leases", err)
		}
		if len(rows) < cleanBatch {
			return total, nil
		}
		page.After, page.AfterSlot = rows[len(rows)-1].Name, rows[len(rows)-1].Slot
	}
}

// clean removes those of the rows that are still idle.
func (m *Manager) clean(ctx context.Context, rows []gen.IdleLeasesRow) (n int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	err = inTx(ctx, m.db, func(tx gen.DBTX) error {
		for _, row := range slices.Backward(rows) { // what says how a key is used comes last
			intent, err := queries.IdleLease(ctx, tx, gen.IdleLeaseParams{Name: row.Name, Slot: row.Slot, IdleUs: m.options.retention.Microseconds()})
			if errors.Is(err, sql.ErrNoRows) {
				continue // locked, or used meanwhile
			}
			if err == nil && intent != 0 {
				// The gate of readers or permits, who come in through it one by one.
				var rows int64
				if rows, err = queries.CountPlaces(ctx, tx, row.Name); err == nil && rows > 0 {
					continue
				}
			}
			if err == nil {
				err = queries.DeleteLease(ctx, tx, gen.DeleteLeaseParams(row))
			}
			if err != nil {
				return err
			}
			n++
		}
		return nil
	})
	if err != nil {
		n = 0
	}
	return n, err
}

package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

const (
	// cleanBatch is how many rows one transaction of Clean removes.
	cleanBatch = 20
	// sweepBatch is how many rows one statement of Sweep removes.
	sweepBatch = 500
)

// Clean removes the rows that were not used for the retention, and returns how many.
func (s *Store) Clean(ctx context.Context, retention time.Duration) (total int, err error) {
	// Before stands behind every key, which is UTF-8.
	next := gen.IdleLeasesParams{Before: []byte{0xff}, IdleUs: retention.Microseconds(), Limit: cleanBatch}
	for {
		rows, err := queries.IdleLeases(ctx, s.pool, next)
		if err != nil {
			return total, err
		}
		n, err := s.remove(ctx, rows, retention)
		total += n
		if err != nil || len(rows) < cleanBatch {
			return total, err
		}
		next.Before, next.BeforeSlot = rows[len(rows)-1].Name, rows[len(rows)-1].Slot
	}
}

// remove removes those of the rows that are still idle.
func (s *Store) remove(ctx context.Context, rows []gen.IdleLeasesRow, retention time.Duration) (n int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	err = s.inTx(ctx, s.pool, func(tx gen.DBTX) error {
		for _, row := range rows {
			removed, err := removeOne(ctx, tx, row, retention)
			if err != nil {
				return err
			}
			if removed {
				n++
			}
		}
		return nil
	})
	if err != nil {
		n = 0
	}
	return n, err
}

// removeOne removes a row, unless it is locked or was used meanwhile.
func removeOne(ctx context.Context, tx gen.DBTX, row gen.IdleLeasesRow, retention time.Duration) (bool, error) {
	use, err := queries.IdleLease(ctx, tx, gen.IdleLeaseParams{Name: row.Name, Slot: row.Slot, IdleUs: retention.Microseconds()})
	if errors.Is(err, sql.ErrNoRows) || refused(err) {
		return false, nil
	}
	if err == nil && row.Slot > store.LeaseSlot {
		var may bool
		if may, err = countSwept(ctx, tx, row.Name); err == nil && !may {
			return false, nil
		}
	}
	if err == nil && use != 0 {
		// The entry row, which readers and permits pass one by one: it stays while they have rows.
		var places int64
		if places, err = queries.CountPlaces(ctx, tx, row.Name); err == nil && places > 0 {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return fault.Changed("DeleteLease")(queries.DeleteLease(ctx, tx, gen.DeleteLeaseParams(row)))
}

// Sweep removes the idle rows of a key's readers. A reader whose row is gone can neither
// renew it nor guard a transaction, and a new reader makes the row again.
func (s *Store) Sweep(ctx context.Context, key string) error {
	for more := true; more; {
		err := s.inTx(ctx, s.pool, func(tx gen.DBTX) error {
			slots, err := queries.IdleReaders(ctx, tx, gen.IdleReadersParams{Name: []byte(key), Limit: sweepBatch})
			if more = len(slots) == sweepBatch; err != nil || len(slots) == 0 {
				return err
			}
			may, err := countSwept(ctx, tx, []byte(key))
			if err != nil || !may {
				more = false
				return err
			}
			_, err = tx.ExecContext(ctx, rawsql.DeleteReaders([]byte(key), slots))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// countSwept changes the row of a lease before rows of its readers are deleted, which a
// transaction with an older snapshot couldn't tell. It returns false if the row is locked, or if
// MariaDB has interrupted the UPDATE.
func countSwept(ctx context.Context, tx gen.DBTX, name []byte) (bool, error) {
	_, err := queries.LeaseAsItIs(ctx, tx, gen.LeaseAsItIsParams{Name: name, Slot: store.LeaseSlot})
	if errors.Is(err, sql.ErrNoRows) || refused(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return fault.Changed("CountSwept")(queries.CountSwept(ctx, tx, name))
}

// Package migrate has the code of docs/how-to/migrate.md: programs that acquire the old
// lock and that of lockstep, while both are in use.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Orders has the keys of orders.
var Orders = txlock.NewFamily[int64]("order")

// GetLock takes GET_LOCK as before, and the lock of lockstep in the transaction.
func GetLock(ctx context.Context, db *sql.DB, order int64, work func(tx *sql.Tx) error) (err error) {
	conn, err := db.Conn(ctx) // GET_LOCK belongs to a connection
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	name, got := fmt.Sprintf("order-%d", order), 0 // as before
	if err := conn.QueryRowContext(ctx, "SELECT COALESCE(GET_LOCK(?, 10), 0)", name).Scan(&got); err != nil {
		return err
	}
	if got != 1 {
		return fmt.Errorf("%s: %w", name, txlock.ErrWaitTimeout)
	}
	defer func() { // after COMMIT, also when ctx has ended
		_, released := conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK(?)", name)
		err = errors.Join(err, released)
	}()

	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	locks, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := locks.Lock(ctx, Orders.Key(order)); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// OldLock acquires the old lock, for example redislock's, and returns how to release it.
type OldLock func(ctx context.Context) (release func(), err error)

// Both acquires the old lock and then the lease. All programs use this order.
func Both(ctx context.Context, old OldLock, leases *lease.Manager, key txlock.Key, work func(context.Context, *lease.Lease) error) error {
	release, err := old(ctx)
	if err != nil {
		return err
	}
	defer release()
	return leases.Do(ctx, key, work)
}

// ErrTaken is returned by the lock of ShedLock's table when another node has the job.
var ErrTaken = errors.New("another node has the job")

// ShedLock acquires a job's row in ShedLock's table for at most a minute, as ShedLock's
// provider with usingDbTime does.
func ShedLock(db *sql.DB, job, node string) OldLock {
	return func(ctx context.Context) (func(), error) {
		const insert = "INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by) VALUES (?, '2000-01-01', '2000-01-01', '')"
		if _, err := db.ExecContext(ctx, insert, job); err != nil {
			return nil, err
		}
		const take = "UPDATE shedlock SET lock_until = TIMESTAMPADD(MINUTE, 1, UTC_TIMESTAMP(3)), locked_at = UTC_TIMESTAMP(3), locked_by = ?" +
			" WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)"
		taken, err := db.ExecContext(ctx, take, node, job)
		if err != nil {
			return nil, err
		}
		if rows, err := taken.RowsAffected(); err != nil || rows == 0 {
			return nil, errors.Join(err, ErrTaken)
		}
		return func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			const release = "UPDATE shedlock SET lock_until = UTC_TIMESTAMP(3) WHERE name = ? AND locked_by = ?"
			_, _ = db.ExecContext(ctx, release, job, node) // else it is free after the minute
		}, nil
	}
}

// Article had an int column before, which each save incremented.
type Article struct {
	ID      int64
	Text    string
	Version lockgorm.Version
}

package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/retry"
	"github.com/dca00107/lockstep/txlock"
)

// Run begins a transaction, takes the locks of all keys as its first statement,
// calls fn and commits. When fn returns an error, or panics, it rolls back and
// hands on the error or the panic. Without keys fn takes the locks itself, best
// before its first SELECT: see Join.
//
// A transaction that the server has rolled back (txlock.Retryable: a deadlock, a
// stale snapshot) is run again from its beginning, ten times at most, with jittered
// pauses: fn must not keep what it did elsewhere in a transaction that failed. It
// returns the errors of fn and of LockAll, and for a transaction that was
// committed behind its back, by DDL for example, ErrTxDoomed. When it returns, no
// transaction is open.
func Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(tx *sql.Tx) error) error {
	return RunTx(ctx, db, nil, keys, fn)
}

// RunTx is Run with options for the transaction: its isolation level.
func RunTx(ctx context.Context, db *sql.DB, options *sql.TxOptions, keys []txlock.Key, fn func(tx *sql.Tx) error) error {
	if db == nil {
		return errors.New("locksqlc: Run needs a *sql.DB, got nil")
	}
	if fn == nil {
		return errors.New("locksqlc: Run needs a function, got nil")
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return retry.Do(ctx, func() error { return once(ctx, db, options, keys, fn) })
}

// once is one transaction.
func once(ctx context.Context, db *sql.DB, options *sql.TxOptions, keys []txlock.Key, fn func(tx *sql.Tx) error) (err error) {
	conn, tx, err := beginOn(ctx, db, options)
	if err != nil {
		return fmt.Errorf("locksqlc: begin: %w", err)
	}
	defer func() { err = errors.Join(err, unlessGone(conn.Close())) }()
	finished := false
	defer func() {
		if finished {
			return
		}
		// An error of fn, or its panic, which goes on afterwards.
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("locksqlc: roll back: %w", rollbackErr))
		}
	}()
	scope, err := txlock.Join(ctx, tx, txlock.NothingRead())
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		if _, err := scope.LockAll(ctx, keys...); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := scope.Confirm(ctx); err != nil {
		return err
	}
	finished = true
	if err := tx.Commit(); err != nil {
		if ctx.Err() != nil && errors.Is(err, sql.ErrTxDone) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err) // rolled back by database/sql for that
		}
		return fmt.Errorf("locksqlc: commit: %w", err)
	}
	return nil
}

// beginOn begins a transaction on a connection of its own. The transaction of a
// context that ends is rolled back by a goroutine of database/sql, for which
// Rollback doesn't wait, but closing the connection does. A connection that turns
// out to be dead is passed over, as DB.BeginTx does it.
func beginOn(ctx context.Context, db *sql.DB, options *sql.TxOptions) (conn *sql.Conn, tx *sql.Tx, err error) {
	for range 3 {
		if conn, err = db.Conn(ctx); err != nil {
			return nil, nil, err
		}
		if tx, err = conn.BeginTx(ctx, options); err == nil {
			return conn, tx, nil
		}
		if closeErr := unlessGone(conn.Close()); closeErr != nil || !errors.Is(err, driver.ErrBadConn) {
			return nil, nil, errors.Join(err, closeErr)
		}
	}
	return nil, nil, err
}

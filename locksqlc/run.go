package locksqlc

import (
	"context"
	"database/sql"
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
	return retry.Do(ctx, func() error { return once(ctx, db, options, keys, fn) })
}

// once is one transaction.
func once(ctx context.Context, db *sql.DB, options *sql.TxOptions, keys []txlock.Key, fn func(tx *sql.Tx) error) (err error) {
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("locksqlc: begin: %w", err)
	}
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
		return fmt.Errorf("locksqlc: commit: %w", err)
	}
	return nil
}

package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/joined"
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
//
// A transaction of which something was committed before its end, or may have been, is
// never run again, whatever error has ended it: after DDL, a COMMIT as text, or a CALL or
// EXECUTE that has committed or that was itself the victim of a deadlock. A plain pool
// knows less: one that was ended and begun anew, by COMMIT AND CHAIN or a CALL, or that
// DDL has committed which failed itself, may be run again, where Run has locked no key or
// somebody else has locked it since. It does know that it knows nothing once its connection
// is lost while fn runs, and doesn't run that again; a guarded pool does, where none of the
// statements can have committed.
func Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(tx *sql.Tx) error) error {
	return RunTx(ctx, db, nil, keys, fn)
}

// RunTx is Run with options for the transaction: its isolation level.
func RunTx(ctx context.Context, db *sql.DB, options *sql.TxOptions, keys []txlock.Key, fn func(tx *sql.Tx) error) error {
	return run(ctx, "Run", db, options, keys, fn, func(scope *txlock.Scope, tx *sql.Tx) error {
		if len(keys) > 0 {
			if _, err := scope.LockAll(ctx, keys...); err != nil {
				return err
			}
		}
		return inner.Final(ctx, scope, fn(tx))
	})
}

// Optimistic is Run without waiting for a lock: it begins a transaction, reads the
// version of the key, calls fn, and commits only if nobody has held the key exclusively
// meanwhile, be it by Lock and its likes or by Optimistic. Otherwise, and where the
// server has rolled the transaction back, it is run again from its beginning, ten times
// at most, with jittered pauses: fn must not keep what it did elsewhere in a
// transaction that failed. fn reads and computes before it writes: what it
// writes is locked until the end, by the server's own row locks.
//
// It is for keys that seldom meet: where a conflict is the rule, Run is faster. It
// returns what Run returns, and ErrConflict for the last of ten conflicts. When it
// returns, no transaction is open.
func Optimistic(ctx context.Context, db *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
	return OptimisticTx(ctx, db, nil, key, fn)
}

// OptimisticTx is Optimistic with options for the transaction: its isolation level.
func OptimisticTx(ctx context.Context, db *sql.DB, options *sql.TxOptions, key txlock.Key, fn func(tx *sql.Tx) error) error {
	return run(ctx, "Optimistic", db, options, []txlock.Key{key}, fn, func(scope *txlock.Scope, tx *sql.Tx) error {
		version, err := scope.Version(ctx, key)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return inner.Final(ctx, scope, err)
		}
		return inner.Final(ctx, scope, scope.CompareAndBump(ctx, key, version))
	})
}

// run checks what was given and runs transactions until one is committed.
func run(ctx context.Context, name string, db *sql.DB, options *sql.TxOptions, keys []txlock.Key, fn func(tx *sql.Tx) error, body func(scope *txlock.Scope, tx *sql.Tx) error) error {
	if db == nil {
		return fmt.Errorf("locksqlc: %s needs a *sql.DB, got nil", name)
	}
	if fn == nil {
		return fmt.Errorf("locksqlc: %s needs a function, got nil", name)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	return retry.Do(ctx, func() error { return once(ctx, db, options, body) })
}

// once is one transaction.
func once(ctx context.Context, db *sql.DB, options *sql.TxOptions, body func(scope *txlock.Scope, tx *sql.Tx) error) (err error) {
	conn, tx, err := beginOn(ctx, db, options)
	if err != nil {
		return fmt.Errorf("locksqlc: begin: %w", err)
	}
	defer func() { err = joined.Errors(err, unlessGone(conn.Close())) }()
	finished := false
	defer func() {
		if finished {
			return
		}
		// An error of fn, or its panic, which goes on afterwards.
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = joined.Errors(err, fmt.Errorf("locksqlc: roll back: %w", rollbackErr))
		}
	}()
	scope, err := txlock.Join(ctx, tx, txlock.NothingRead())
	if err != nil {
		return err
	}
	if err := body(scope, tx); err != nil {
		return err
	}
	if err := inner.Confirm(ctx, scope); err != nil {
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
			return nil, nil, joined.Errors(err, closeErr)
		}
	}
	return nil, nil, err
}

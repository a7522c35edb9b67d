package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/retry"
	"github.com/dca00107/lockstep/txlock"
)

// Run begins a transaction, acquires the locks of all keys as its first statement, calls fn and
// commits. A key that txlock.Shared has marked is locked shared. If fn returns an error or panics,
// Run rolls back, and returns the error or lets the panic continue. With nil for the keys fn
// acquires the locks itself, preferably before its first SELECT; see Join. An empty list that
// isn't nil, such as the keys of no records, would lock nothing: Run returns txlock.ErrInvalidKey.
// On a guarded pool the BEGIN shares the round trip of the lock if the server supports that; see
// docs/reference/settings.md.
//
// A transaction that the server has rolled back (txlock.Retryable: a deadlock, a stale snapshot)
// is retried from its beginning, ten times at most, with jittered pauses. So fn may be called
// several times, and must not keep results of an attempt that failed. Run returns the errors of fn
// and of LockAll, and ErrTxDoomed for a transaction that a statement of fn has committed, for
// example DDL. When it returns, no transaction is open.
//
// It returns ErrUnknownOutcome if no answer to the COMMIT reports its outcome: the transaction may
// have been committed, and is not retried.
//
// A transaction is never retried, whatever error ended it, if a part of it was committed before its
// end, or may have been: by DDL, by COMMIT sent as a statement, by a CALL or EXECUTE that has
// committed or was the victim of a deadlock. On an unguarded pool Run can't see all of that. There
// it may retry a transaction which COMMIT AND CHAIN or a CALL has ended and replaced by another, or
// which was committed by DDL that failed itself, if Run has locked no key, or another transaction
// has locked it since. When the connection is lost while fn runs, an unguarded pool doesn't retry
// the transaction; a guarded pool does, if none of its statements can have committed.
//
// The options of the transaction, such as its isolation level, are those of
// [sql.DB.BeginTx], at most one. On TiDB, Run chooses READ COMMITTED if there are keys, and neither
// the options nor the session name another level than REPEATABLE READ; see
// docs/reference/lost-updates.md.
func Run(ctx context.Context, db *sql.DB, keys []txlock.Key, fn func(tx *sql.Tx) error, options ...*sql.TxOptions) error {
	stale := false // an attempt was, so the level is left to the session, whose snapshot shows what is old
	return run(ctx, "Run", db, options, keys, fn, func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error) {
		if len(keys) > 0 {
			if !stale {
				if err := inner.Choose(ctx, scope); err != nil {
					return false, err
				}
			}
			if _, err := scope.LockAll(ctx, keys...); err != nil {
				return false, err
			}
		}
		defer inner.Last(scope, true)()
		err = inner.Final(ctx, scope, fn(tx))
		stale = stale || errors.Is(err, txlock.ErrStaleSnapshot)
		return false, err
	})
}

// Optimistic is Run without waiting for a lock: it begins a transaction, reads the version of the
// key, calls fn, and commits only if no other transaction has held the key exclusively meanwhile,
// by Lock, TryLock, LockAll, LockAny, CompareAndBump or Optimistic. Otherwise, and after a
// rollback by the server, the transaction is retried from its beginning, ten times at most, with
// jittered pauses: fn must not keep results of an attempt that failed. fn should read and compute
// before it writes: the server's own row locks keep what it writes until the end. On a guarded
// pool of MariaDB, and of MySQL with the procedures of package schema, the comparison and COMMIT
// are one statement. At READ UNCOMMITTED it returns ErrInvalidOption; see Scope.Version.
//
// It is for keys that are rarely used at the same time: if conflicts are frequent, Run is faster.
// It returns the errors of Run, and ErrConflict after ten conflicts. When it returns, no
// transaction is open.
//
// The options of the transaction are those of Run.
func Optimistic(ctx context.Context, db *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error, options ...*sql.TxOptions) error {
	return run(ctx, "Optimistic", db, options, []txlock.Key{key}, fn, func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error) {
		version, err := scope.Version(ctx, key)
		if err != nil {
			return false, err
		}
		if err = fn(tx); err == nil {
			committed, err = inner.CompareAndBump(ctx, scope, key, version, true)
		}
		return committed, inner.Final(ctx, scope, err)
	})
}

// run checks the arguments, and runs transactions until one is committed.
func run(ctx context.Context, name string, db *sql.DB, options []*sql.TxOptions, keys []txlock.Key, fn func(tx *sql.Tx) error, body func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error)) error {
	if ctx == nil {
		return fmt.Errorf("locksqlc: %s needs a context, got nil", name)
	}
	if db == nil {
		return fmt.Errorf("locksqlc: %s needs a *sql.DB, got nil", name)
	}
	if fn == nil {
		return fmt.Errorf("locksqlc: %s needs a function, got nil", name)
	}
	if keys != nil && len(keys) == 0 {
		return fmt.Errorf("%w: %s was given no key and would lock nothing: pass nil if its function acquires the locks", txlock.ErrInvalidKey, name)
	}
	if len(options) > 1 {
		return fmt.Errorf("%w: %s was given the options of %d transactions, and begins one", txlock.ErrInvalidOption, name, len(options))
	}
	for _, key := range keys {
		key, _ := inner.Asked(key)
		if err := key.Validate(); err != nil {
			return err
		}
	}
	var last *txlock.Scope
	var of *sql.TxOptions
	if len(options) > 0 {
		of = options[0]
	}
	err := retry.Do(ctx, func() error {
		return once(ctx, db, of, func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error) {
			last = scope
			return body(scope, tx)
		})
	}, func(why error) { inner.Retried(ctx, last, keys, why) })
	inner.AfterCommit(last)
	return err
}

// once runs one transaction, whose body may commit it.
func once(ctx context.Context, db *sql.DB, options *sql.TxOptions, body func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error)) (err error) {
	conn, tx, err := beginOn(ctx, db, options)
	if err != nil {
		return fmt.Errorf("locksqlc: begin: %w", err)
	}
	defer func() { err = fault.Join(err, fault.UnlessGone(conn.Close())) }()
	finished := false
	defer func() {
		if finished {
			return
		}
		// fn has returned an error, or panicked; the panic continues afterwards.
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = fault.Join(err, fmt.Errorf("locksqlc: roll back: %w", rollbackErr))
		}
	}()
	scope, err := txlock.Join(ctx, tx, inner.Began(options))
	if err != nil {
		return err
	}
	defer inner.Runs(scope)()
	committed, err := body(scope, tx)
	if err != nil {
		return err
	}
	if !committed {
		if committed, err = inner.Confirm(ctx, scope); err != nil {
			return err
		}
	}
	finished = true
	if err := tx.Commit(); err != nil && !committed { // else only the context has ended
		return fmt.Errorf("locksqlc: commit: %w", inner.Outcome(ctx, scope, err))
	}
	return nil
}

// beginOn begins a transaction on a connection of its own. When a context ends, a
// goroutine of database/sql rolls back its transaction: Rollback doesn't wait for that,
// but closing the connection does. If the connection turns out to be dead, beginOn takes
// another one, as DB.BeginTx does.
func beginOn(ctx context.Context, db *sql.DB, options *sql.TxOptions) (conn *sql.Conn, tx *sql.Tx, err error) {
	for range 3 {
		if conn, err = db.Conn(ctx); err != nil {
			return nil, nil, err
		}
		if tx, err = conn.BeginTx(ctx, options); err == nil {
			return conn, tx, nil
		}
		if closeErr := fault.UnlessGone(conn.Close()); closeErr != nil || !errors.Is(err, driver.ErrBadConn) {
			return nil, nil, fault.Join(err, closeErr)
		}
	}
	return nil, nil, err
}

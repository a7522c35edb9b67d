package lockgorm

import (
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/retry"
	"github.com/dca00107/lockstep/txlock"
)

// Transaction is db.Transaction that takes the locks of all keys as its first
// statement; without keys fn takes the locks itself, or leaves it to the plugin,
// best before its first query. A transaction that the server has rolled back (txlock.Retryable) is
// run again from its beginning, ten times at most, with jittered pauses: fn must
// not keep what it did elsewhere in a transaction that failed. Where db is a
// transaction already, the locks and fn run in it, under a savepoint as GORM does
// it, and nothing is run again: that is for the outermost.
//
// It returns the errors of fn and of LockAll, and ErrTxDoomed for a transaction
// that was committed behind its back. A panic of fn goes on after the rollback.
// No error is added to db.
func Transaction(db *gorm.DB, keys []txlock.Key, fn func(tx *gorm.DB) error, options ...*sql.TxOptions) error {
	return run("Transaction", db, keys, fn, options, func(scope *txlock.Scope, tx *gorm.DB) error {
		if len(keys) > 0 {
			if _, err := scope.LockAll(tx.Statement.Context, keys...); err != nil {
				return err
			}
		}
		return fn(tx)
	})
}

// Optimistic is Transaction without waiting for a lock: it begins a transaction, reads
// the version of the key, calls fn, and commits only if nobody has held the key
// exclusively meanwhile, be it by Lock and its likes or by Optimistic. Otherwise, and
// where the server has rolled the transaction back, it is run again from its beginning,
// ten times at most, with jittered pauses: fn loads what it changes, and must not keep
// what it did elsewhere in a transaction that failed. Where db is a transaction
// already, all this happens in it, under a savepoint, and nothing is run again; under
// GORM's DisableNestedTransaction there is none, and after an error the whole must be
// rolled back.
//
// It is for keys that seldom meet: where a conflict is the rule, Transaction is faster.
// It returns what Transaction returns, and ErrConflict for the last of ten conflicts.
func Optimistic(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error, options ...*sql.TxOptions) error {
	return run("Optimistic", db, []txlock.Key{key}, fn, options, func(scope *txlock.Scope, tx *gorm.DB) error {
		version, err := scope.Version(tx.Statement.Context, key)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		return scope.CompareAndBump(tx.Statement.Context, key, version)
	})
}

// run checks what was given and runs transactions until one is committed.
func run(name string, db *gorm.DB, keys []txlock.Key, fn func(tx *gorm.DB) error, options []*sql.TxOptions, body func(scope *txlock.Scope, tx *gorm.DB) error) error {
	if db == nil || db.Statement == nil {
		return fmt.Errorf("lockgorm: %s needs a *gorm.DB, got nil", name)
	}
	if fn == nil {
		return fmt.Errorf("lockgorm: %s needs a function, got nil", name)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return err
		}
	}
	if _, err := transactionOf(db); err == nil {
		return once(db, fn, body, options, nil)
	}
	return retry.Do(db.Statement.Context, func() error {
		return once(db, fn, body, options, []txlock.JoinOption{txlock.NothingRead()})
	})
}

// once is one transaction, or one savepoint. In a DryRun session it is fn alone.
func once(db *gorm.DB, fn func(tx *gorm.DB) error, body func(scope *txlock.Scope, tx *gorm.DB) error, options []*sql.TxOptions, join []txlock.JoinOption) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if tx.DryRun {
			return fn(tx)
		}
		scope, err := Join(tx, join...)
		if err != nil {
			return err
		}
		if err := body(scope, tx); err != nil {
			return err
		}
		return scope.Confirm(tx.Statement.Context)
	}, options...)
}

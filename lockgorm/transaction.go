package lockgorm

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/retry"
	"github.com/dca00107/lockstep/txlock"
)

// Transaction is db.Transaction, but first acquires the locks of all keys, shared ones for keys
// that txlock.Shared has marked. With nil for the keys fn acquires the locks itself, preferably
// before its first query, or leaves them to the plugin. An empty list that isn't nil, such as the
// keys of no records, would lock nothing: Transaction returns txlock.ErrInvalidKey. A transaction
// that the server has rolled back (txlock.Retryable) is retried from its beginning, ten times at
// most, with jittered pauses. So fn may be called several times, and must not keep results of an
// attempt that failed. If db is a transaction already, the locks and fn run in it, under a
// savepoint as in GORM, and nothing is retried: that is left to the outermost call.
//
// A transaction is never retried if a part of it was committed before its end, or may have been;
// see locksqlc.Run, also for unguarded pools, and for the isolation level on TiDB.
//
// It returns the errors of fn and of LockAll, ErrTxDoomed for a transaction that a statement of fn
// has committed, for example DDL, and ErrUnknownOutcome if no answer to the COMMIT reports its
// outcome: the transaction may have been committed, and is not retried. A panic of fn continues
// after the rollback. No error is added to db.
//
// If the server refuses the ROLLBACK TO SAVEPOINT of a nested transaction of fn, for example because
// a statement of its function has released the savepoint, the nested transaction can't be undone by
// itself: Transaction then rolls back everything and returns that error, also if fn returns nil.
func Transaction(db *gorm.DB, keys []txlock.Key, fn func(tx *gorm.DB) error, options ...*sql.TxOptions) error {
	stale := false // an attempt was, so the level is left to the session, whose snapshot shows what is old
	return run("Transaction", db, keys, fn, options, func(scope *txlock.Scope, tx *gorm.DB, own bool) (committed bool, err error) {
		if len(keys) > 0 {
			if own && !stale {
				if err := inner.Choose(tx.Statement.Context, scope); err != nil {
					return false, err
				}
			}
			compared, err := compareFirst(tx, keys)
			if err != nil {
				return false, err
			}
			if err := lockAll(limited(tx, cmp.Or(compared, scope)), tx, keys); err != nil {
				return false, err
			}
		}
		defer inner.Last(scope, own)()
		err = inner.Final(tx.Statement.Context, scope, fn(tx))
		stale = stale || errors.Is(err, txlock.ErrStaleSnapshot)
		return false, err
	})
}

// Optimistic is Transaction without waiting for a lock: it begins a transaction, reads the version
// of the key, calls fn, and commits only if no other transaction has held the key exclusively
// meanwhile, by Lock, TryLock, LockAll, LockAny, CompareAndBump or Optimistic. Otherwise, and
// after a rollback by the server, the transaction is retried from its beginning, ten times at
// most, with jittered pauses: fn must load what it changes, and must not keep results of an
// attempt that failed. If db is a transaction already, all this happens in it, under a savepoint,
// and nothing is retried. GORM's DisableNestedTransaction leaves out the savepoint: then roll back
// the whole transaction after an error.
//
// fn may write models that name the key, and may lock it by the functions of this package: then
// the version is compared at once, and the key is held until the end. Locking it by a Scope is
// a conflict, which on a guarded pool is not retried.
//
// It is for keys that are rarely used at the same time: if conflicts are frequent, Transaction is
// faster. It returns the errors of Transaction, and ErrConflict after ten conflicts.
func Optimistic(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error, options ...*sql.TxOptions) error {
	return run("Optimistic", db, []txlock.Key{key}, fn, options, func(scope *txlock.Scope, tx *gorm.DB, outermost bool) (committed bool, err error) {
		return optimistic(scope, tx, key, fn, outermost)
	})
}

// optimistic does the work of Optimistic in its transaction, which it may commit if that
// is its own.
func optimistic(scope *txlock.Scope, tx *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error, own bool) (committed bool, err error) {
	ctx, k := tx.Statement.Context, learn(tx)
	if k == nil {
		k = new(txState) // no other call shares it
	}
	first, outer := k.compares(key)
	if outer {
		if err = fn(tx); err == nil {
			err = first.compare(ctx)
		}
		return false, inner.Final(ctx, scope, err)
	}
	version, err := scope.Version(ctx, key)
	if err != nil {
		return false, err
	}
	compare := func(ctx context.Context, commits bool) (committed bool, err error) {
		_, held := scope.Held(key)
		committed, err = inner.CompareAndBump(ctx, scope, key, version, commits)
		if held && errors.Is(err, txlock.ErrConflict) {
			err = fmt.Errorf("%w: %w: lock it by lockgorm.Lock, which compares it first, or before Optimistic", err, fault.ErrGiven)
		}
		return committed, err
	}
	defer k.compareAtEnd(compared{scope: scope, key: key, compare: func(ctx context.Context) error {
		_, err := compare(ctx, false)
		return err
	}})()
	if err = fn(tx); err == nil {
		err = whyNotCommitted(scope, tx)
	}
	if err == nil {
		committed, err = compare(ctx, own)
	}
	return committed, inner.Final(ctx, scope, err)
}

// scopeFor returns the scope of tx on which the keys are locked. It is nil if nothing may
// be sent.
func scopeFor(tx *gorm.DB, keys ...txlock.Key) (*txlock.Scope, error) {
	if sendsNothing(tx) {
		return nil, nil
	}
	compared, err := compareFirst(tx, keys)
	if err != nil {
		return nil, err
	}
	if compared == nil {
		return Join(tx)
	}
	return limited(tx, compared), nil
}

// compareFirst compares the keys whose version Optimistic has read, before they are locked: a lock
// raises the version. It returns the scope of Optimistic, or nil if that has none of the keys: on
// an unguarded pool only the scope that has taken a lock knows about it.
func compareFirst(tx *gorm.DB, keys []txlock.Key) (scope *txlock.Scope, err error) {
	k := txStateOf(tx)
	if k == nil {
		return nil, nil
	}
	for _, key := range keys {
		if c, ok := k.compares(key); ok {
			if err := c.compare(tx.Statement.Context); err != nil {
				return nil, err
			}
			scope = c.scope
		}
	}
	return scope, nil
}

// lockAll locks keys, but for those that Optimistic has compared, and so locked.
func lockAll(scope *txlock.Scope, tx *gorm.DB, keys []txlock.Key) error {
	if k := txStateOf(tx); k != nil {
		keys = slices.DeleteFunc(slices.Clone(keys), func(key txlock.Key) bool {
			_, compared := k.compares(key)
			return compared
		})
		if len(keys) == 0 {
			return nil
		}
	}
	_, err := scope.LockAll(tx.Statement.Context, keys...)
	return err
}

// body is the work in a transaction, which it may commit if that is its own.
type body func(scope *txlock.Scope, tx *gorm.DB, own bool) (committed bool, err error)

// run checks the arguments, and runs transactions until one is committed.
func run(name string, db *gorm.DB, keys []txlock.Key, fn func(tx *gorm.DB) error, options []*sql.TxOptions, do body) error {
	if db == nil || db.Statement == nil {
		return fmt.Errorf("lockgorm: %s needs a *gorm.DB, got nil", name)
	}
	if fn == nil {
		return fmt.Errorf("lockgorm: %s needs a function, got nil", name)
	}
	if db.Error != nil { // GORM would begin a transaction that nobody ends
		return fmt.Errorf("lockgorm: %s needs a *gorm.DB without an error: %w", name, db.Error)
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
	if _, err := transactionOf(db); err == nil {
		return once(db, fn, do, options, false)
	}
	var last *txlock.Scope
	err := retry.Do(db.Statement.Context, func() error {
		return once(db, fn, func(scope *txlock.Scope, tx *gorm.DB, own bool) (committed bool, err error) {
			last = scope
			return do(scope, tx, own)
		}, options, true)
	}, func(why error) { inner.Retried(db.Statement.Context, last, keys, why) })
	inner.AfterCommit(last)
	return err
}

// once runs one transaction, or one savepoint. Where nothing is sent it only calls fn.
func once(db *gorm.DB, fn func(tx *gorm.DB) error, do body, options []*sql.TxOptions, outermost bool) error {
	var joining []txlock.JoinOption
	if outermost {
		joining = append(joining, inner.Began(options...))
	}
	committed, ending := false, (*txlock.Scope)(nil)
	err := db.Transaction(func(tx *gorm.DB) error {
		if sendsNothing(tx) {
			return fn(tx)
		}
		scope, err := join(tx, joining...)
		if err != nil {
			return err
		}
		if outermost {
			defer inner.Runs(scope)()
		}
		defer inner.Last(scope, false)() // but for Transaction
		watchUndo(tx, scope, outermost)
		if committed, err = do(scope, tx, outermost); err != nil || committed {
			return err
		}
		if err := whyNotCommitted(scope, tx); err != nil {
			return inner.Final(tx.Statement.Context, scope, err)
		}
		if committed, err = inner.Confirm(tx.Statement.Context, scope); err == nil && outermost {
			ending = scope // the error below is that of Commit
		}
		return err
	}, options...)
	switch {
	case committed:
		return nil // an error of Commit says only that the context has ended
	case ending != nil:
		return inner.Outcome(db.Statement.Context, ending, err)
	}
	return err
}

// undoing is the dialector of a transaction of this package. It remembers whether the work of a
// nested transaction of GORM could not be undone: GORM keeps that error in the handle on which the
// nested one was called, which may be any copy of the transaction's, and returns it to no one.
type undoing struct {
	dialect
	scope  *txlock.Scope // of an outermost transaction: it may be committed by CommitWith
	failed error
}

// dialect is a dialector with savepoints, without which GORM refuses nested transactions.
type dialect interface {
	gorm.Dialector
	gorm.SavePointerDialectorInterface
}

// watchUndo gives the handle of a transaction such a dialector.
func watchUndo(tx *gorm.DB, scope *txlock.Scope, outermost bool) {
	base, ok := tx.Dialector.(dialect)
	if outer, nested := base.(*undoing); nested { // of a transaction that undoes this one by itself
		base = outer.dialect
	}
	if !outermost {
		scope = nil
	}
	if ok {
		tx.Dialector = &undoing{dialect: base, scope: scope}
	}
}

// RollbackTo rolls back to a savepoint, and remembers an error.
func (u *undoing) RollbackTo(tx *gorm.DB, name string) error {
	err := u.dialect.RollbackTo(tx, name)
	if err != nil && u.failed == nil {
		u.failed = fmt.Errorf("lockgorm: a nested transaction could not be undone, so that all is rolled back: %w", err)
		if u.scope != nil {
			inner.NotUndone(u.scope, u.failed)
		}
	}
	return err
}

// Translate returns what the dialect makes of an error.
func (u *undoing) Translate(err error) error {
	if translator, ok := u.dialect.(gorm.ErrorTranslator); ok {
		return translator.Translate(err)
	}
	return err
}

// whyNotCommitted returns why a transaction must not be committed although its function has returned
// nil: the work of a nested one could not be undone, or its handle has an error, which GORM's Commit
// would return although it commits.
func whyNotCommitted(scope *txlock.Scope, tx *gorm.DB) error {
	u, ok := tx.Dialector.(*undoing)
	if !ok || u.failed == nil {
		return tx.Error
	}
	if _, err := inner.Confirm(tx.Statement.Context, scope); err != nil {
		return err // the server has rolled back everything
	}
	return u.failed
}

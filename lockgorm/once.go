package lockgorm

import (
	"context"
	"errors"
	"net/http"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/idempotent"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// Once calls fn in a transaction if it is the first one for the key, and commits. A call while the
// first is still open waits for its end; a later call isn't the first, and fn is not called. If fn
// returns an error or panics, all is rolled back, and the next call is the first. So what fn does
// in the transaction is done exactly once, however often Once is called with the key: see
// txlock.Scope.Once, also for the options.
//
// If db is a transaction already, all this happens in it, under a savepoint, as with
// Transaction: it counts when that is committed. GORM's DisableNestedTransaction leaves
// out the savepoint: then roll back the whole transaction after an error. In a DryRun
// session it only calls fn.
//
// If Once returns an error, first is false. It returns the error of fn, txlock.ErrMismatch, and the
// errors of Transaction. See locksqlc.Once for more.
func Once(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error, options ...txlock.OnceOption) (first bool, err error) {
	err = run("Once", db, []txlock.Key{key}, fn, nil, func(scope *txlock.Scope, tx *gorm.DB, _ bool) (committed bool, err error) {
		ctx := tx.Statement.Context
		if first, err = limited(tx, scope).Once(ctx, key, options...); err != nil || !first {
			return false, err
		}
		return false, inner.Final(ctx, scope, fn(tx))
	})
	return first && err == nil, err
}

// OnceValue is Once, and stores the value that fn returns in the same transaction, as JSON. All
// calls with the key, the first and later ones, return that value. It returns txlock.ErrResult as
// locksqlc.OnceValue does, and the errors of Once.
func OnceValue[T any](db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) (T, error), options ...txlock.OnceOption) (value T, first bool, err error) {
	var none T
	var dry func(tx *gorm.DB) error // nil if fn is
	if fn != nil {
		dry = func(tx *gorm.DB) (err error) { value, err = fn(tx); return err }
	}
	err = run("OnceValue", db, []txlock.Key{key}, dry, nil, func(scope *txlock.Scope, tx *gorm.DB, _ bool) (committed bool, err error) {
		ctx := tx.Statement.Context
		value, first, err = idempotent.Value(ctx, limited(tx, scope), key, options, func() (T, error) {
			value, err := fn(tx)
			return value, inner.Final(ctx, scope, err)
		})
		return false, err
	})
	if err != nil {
		return none, false, err
	}
	return value, first, nil
}

// OnceHandler is locksqlc.OnceHandler with GORM: the handler next works in the transaction that
// TxOf returns for the context of its request. Status, headers and body of its answer are stored in
// that transaction, and sent again to each repetition of the request with the same Idempotency-Key.
func OnceHandler(db *gorm.DB, next http.Handler, options ...idempotency.Option) http.Handler {
	return idempotent.Handler(func(ctx context.Context, body func(ctx context.Context, scope *txlock.Scope) error) error {
		if db == nil {
			return errors.New("lockgorm: OnceHandler needs a *gorm.DB, got nil")
		}
		begin := func(*gorm.DB) error { return nil }
		return run("OnceHandler", db.WithContext(ctx), nil, begin, nil, func(scope *txlock.Scope, tx *gorm.DB, _ bool) (bool, error) {
			ctx := context.WithValue(ctx, txKey{}, tx)
			return false, body(ctx, limited(tx, scope))
		})
	}, next, options)
}

// txKey is the key of a request's transaction in its context.
type txKey struct{}

// TxOf returns the transaction of a request from the context that OnceHandler gave it, as a handle
// under that context. OnceHandler commits it or rolls it back. TxOf returns nil for any other
// context.
func TxOf(ctx context.Context) *gorm.DB {
	tx, ok := ctx.Value(txKey{}).(*gorm.DB)
	if !ok {
		return nil
	}
	return tx.WithContext(ctx)
}

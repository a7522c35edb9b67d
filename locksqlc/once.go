package locksqlc

import (
	"context"
	"database/sql"

	"github.com/dca00107/lockstep/internal/idempotent"
	"github.com/dca00107/lockstep/txlock"
)

// Once calls fn in a transaction if it is the first one for the key, and commits. A call while the
// first is still open waits for its end; a later call isn't the first, and fn is not called. If fn
// returns an error or panics, all is rolled back, and the next call is the first. So what fn does
// in the transaction is done exactly once, however often Once is called with the key: see
// txlock.Scope.Once, also for the options.
//
// A transaction that the server has rolled back is retried, as by Run; what Run documents about fn
// and errors also applies to Once. After ErrUnknownOutcome, when the commit outcome is unknown,
// call Once again: it calls fn only if nothing was done.
//
// If Once returns an error, first is false. It returns the error of fn, txlock.ErrMismatch, and the
// errors of Run. ErrTxDoomed means that fn has ended the transaction itself. What it has committed
// is then done, and the key may be used up.
func Once(ctx context.Context, db *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error, options ...txlock.OnceOption) (first bool, err error) {
	err = run(ctx, "Once", db, nil, []txlock.Key{key}, fn, func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error) {
		if first, err = scope.Once(ctx, key, options...); err != nil || !first {
			return false, err
		}
		return false, inner.Final(ctx, scope, fn(tx))
	})
	return first && err == nil, err
}

// OnceValue is Once, and stores the value that fn returns in the same transaction. All calls with
// the key, the first and later ones, return that value. It is stored as JSON: what encoding/json
// leaves out is missing for all of them.
//
// It returns txlock.ErrResult, and nothing is done, if the value is not valid JSON or is larger
// than 16 MB or what the server takes in one packet; and if the value of the first is of another
// type than T, by its name, or was stored by Once, which stores none. Otherwise it returns the
// errors of Once.
func OnceValue[T any](ctx context.Context, db *sql.DB, key txlock.Key, fn func(tx *sql.Tx) (T, error), options ...txlock.OnceOption) (value T, first bool, err error) {
	var none T
	var body func(tx *sql.Tx) error // nil if fn is
	if fn != nil {
		body = func(tx *sql.Tx) error { _, err := fn(tx); return err }
	}
	err = run(ctx, "OnceValue", db, nil, []txlock.Key{key}, body, func(scope *txlock.Scope, tx *sql.Tx) (committed bool, err error) {
		value, first, err = idempotent.Value(ctx, scope, key, options, func() (T, error) {
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

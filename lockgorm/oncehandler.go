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
			return false, body(ctx, scope)
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

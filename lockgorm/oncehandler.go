package lockgorm

import (
	"context"
	"errors"
	"net/http"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/idempotent"
	"github.com/dca00107/lockstep/txlock"
)

// OnceHandler does what locksqlc.OnceHandler does, which see, with GORM: the handler next
// works in the transaction that TxOf returns from the context of its request. Status,
// headers and body of its answer are stored in that transaction, and repeated to whoever
// repeats the request with the same Idempotency-Key.
func OnceHandler(db *gorm.DB, next http.Handler, options ...OnceHandlerOption) http.Handler {
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

// TxOf returns the transaction of a request that OnceHandler has handed on, from its
// context and under it. OnceHandler commits it or rolls it back. Any other context has
// none: nil.
func TxOf(ctx context.Context) *gorm.DB {
	tx, ok := ctx.Value(txKey{}).(*gorm.DB)
	if !ok {
		return nil
	}
	return tx.WithContext(ctx)
}

// FailRequest makes a request of OnceHandler fail, whose context this is: all that it has
// done in its transaction is rolled back, and nothing is stored. If the error is
// txlock.Retryable, as after a deadlock, the handler is called again. Otherwise the client
// gets the answer of the handler, if it has a status of 400 or more, or 503. In any other
// context it panics.
func FailRequest(ctx context.Context, err error) {
	if !idempotent.Fail(ctx, err) {
		panic(errors.New("lockgorm: FailRequest needs the context of a request of OnceHandler"))
	}
}

// OnceHandlerOption is an option of OnceHandler.
type OnceHandlerOption = idempotent.Option

// KeyRequired refuses a request that has no Idempotency-Key, but for GET, HEAD, OPTIONS,
// TRACE, PUT and DELETE, which may be repeated without one. The default is to let it
// through.
func KeyRequired() OnceHandlerOption { return idempotent.KeyRequired }

// ConflictAfter answers 409 to a request that has waited for so long for the first one
// with its key, as WaitAtMost counts it: on MySQL in whole seconds, rounded up. The default,
// 0, is to wait as long as the server lets it, innodb_lock_wait_timeout.
func ConflictAfter(d time.Duration) OnceHandlerOption { return idempotent.ConflictAfter(d) }

// KeepFor says for how long answers are kept: see txlock.Keep. The default is 24 hours.
func KeepFor(d time.Duration) OnceHandlerOption { return idempotent.KeepFor(d) }

// MaxBody limits the body of a request, which is kept in memory. The default is 1 MB.
func MaxBody(bytes int64) OnceHandlerOption { return idempotent.MaxBody(bytes) }

// KeepHeaders names the headers of an answer that are stored and sent again. The default
// is Content-Type, Content-Encoding, Content-Language, Content-Disposition, Location,
// ETag, Last-Modified, Link, Cache-Control and Vary.
func KeepHeaders(names ...string) OnceHandlerOption { return idempotent.KeepHeaders(names...) }

// ClientOf tells clients apart, by what a request was authenticated with, for example: the
// keys of one are not those of another. Without it, a client that knows the key and the
// whole request of another gets the answer of that one. The default takes all clients for
// one.
func ClientOf(client func(r *http.Request) string) OnceHandlerOption {
	return idempotent.ClientOf(client)
}

// OnError tells of the errors behind answers of 422, 409 and 500 to 503. The default tells
// nobody.
func OnError(tell func(r *http.Request, err error)) OnceHandlerOption {
	return idempotent.OnError(tell)
}

package locksqlc

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"time"

	"github.com/dca00107/lockstep/internal/idempotent"
	"github.com/dca00107/lockstep/txlock"
)

// OnceHandler lets clients repeat requests that must be carried out once, by the header
// Idempotency-Key of draft-ietf-httpapi-idempotency-key-header. The handler next works in
// a transaction, which it gets by TxOf from the context of its request. Status, headers
// (KeepHeaders) and body of its answer are stored in that transaction, and sent when it is
// committed. A request that repeats the key gets the same answer, with the header
// "Idempotent-Replayed: true", and next is not called.
//
// While the first request of a key is under way, others with the key wait for it, or get
// 409 after ConflictAfter. A key that comes with another method, address, content type or
// body is answered 422, a missing key 400 if KeyRequired says so, a body that is too large
// 413 (MaxBody); nobody may read the body before. If next panics, answers with a status of
// 500 or more, or calls FailRequest, all is rolled back and nothing is stored: then the
// next request is the first. Any other answer is stored, one of 400 to 499 too: what
// refuses requests, and may change its mind, belongs before this handler. If there is no
// answer of next, because the database has failed, the client gets 503 and may repeat the
// request with its key.
//
// Requests without a key, and those of GET, HEAD, OPTIONS and TRACE, have a transaction
// too, and nothing is stored. Answers are kept in memory until the COMMIT, up to 8 MB, so
// next can't flush or hijack. It may be called several times for a request, as the
// function of Run.
func OnceHandler(db *sql.DB, next http.Handler, options ...OnceHandlerOption) http.Handler {
	return idempotent.Handler(func(ctx context.Context, body func(ctx context.Context, scope *txlock.Scope) error) error {
		begin := func(*sql.Tx) error { return nil }
		return run(ctx, "OnceHandler", db, nil, nil, begin, func(scope *txlock.Scope, tx *sql.Tx) (bool, error) {
			return false, body(context.WithValue(ctx, txKey{}, tx), scope)
		})
	}, next, options)
}

// txKey is the key of a request's transaction in its context.
type txKey struct{}

// TxOf returns the transaction of a request that OnceHandler has handed on, from its
// context. OnceHandler commits it or rolls it back. Any other context has none: nil.
func TxOf(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

// FailRequest makes a request of OnceHandler fail, whose context this is: all that it has
// done in its transaction is rolled back, and nothing is stored. If the error is
// txlock.Retryable, as after a deadlock, the handler is called again. Otherwise the client
// gets the answer of the handler, if it has a status of 400 or more, or 503. In any other
// context it panics.
func FailRequest(ctx context.Context, err error) {
	if !idempotent.Fail(ctx, err) {
		panic(errors.New("locksqlc: FailRequest needs the context of a request of OnceHandler"))
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

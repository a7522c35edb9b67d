// Package idempotency has what the HTTP handlers of locksqlc.OnceHandler and lockgorm.OnceHandler
// have in common: their options, and Fail for the handlers behind them.
package idempotency

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dca00107/lockstep/internal/idempotent"
)

// Fail makes a request of OnceHandler fail, whose context this is: all that it has done in its
// transaction is rolled back, and nothing is stored. If the error is txlock.Retryable, as after a
// deadlock, the handler is called again. Otherwise the client gets the answer of the handler, if
// it has a status of 400 or more, or 503. In any other context it panics.
func Fail(ctx context.Context, err error) {
	if !idempotent.Fail(ctx, err) {
		panic(errors.New("idempotency: Fail needs the context of a request of OnceHandler"))
	}
}

// Option is an option of OnceHandler.
type Option = idempotent.Option

// KeyRequired refuses a request that has no Idempotency-Key, but for GET, HEAD, OPTIONS,
// TRACE, PUT and DELETE, which may be repeated without one. The default is to let it
// through.
func KeyRequired() Option { return idempotent.KeyRequired }

// ConflictAfter answers 409 to a request that has waited for so long for the first one
// with its key, as WaitAtMost counts it: on MySQL in whole seconds, rounded up. The default,
// 0, is to wait as long as the server lets it, innodb_lock_wait_timeout.
func ConflictAfter(d time.Duration) Option { return idempotent.ConflictAfter(d) }

// KeepFor says for how long answers are kept: see txlock.Keep. The default is 24 hours.
func KeepFor(d time.Duration) Option { return idempotent.KeepFor(d) }

// MaxBody limits the body of a request, which is kept in memory. The default is 1 MB.
func MaxBody(bytes int64) Option { return idempotent.MaxBody(bytes) }

// KeepHeaders names the headers of an answer that are stored and sent again. The default
// is Content-Type, Content-Encoding, Content-Language, Content-Disposition, Location,
// ETag, Last-Modified, Link, Cache-Control and Vary.
func KeepHeaders(names ...string) Option { return idempotent.KeepHeaders(names...) }

// KeepStatuses says which answers are stored, by their status. After any other answer all that the
// handler has done is rolled back, and the next request with the key is the first: the client gets
// the answer, and may repeat the request. kept is called for each status when the handler is made,
// and returns true for all below 400, since such an answer would not be true after a rollback. The
// default is to store all below 500.
func KeepStatuses(kept func(status int) bool) Option { return idempotent.KeepStatuses(kept) }

// FingerprintOf says what distinguishes requests with one key: if cover returns something else
// for a request than for the first one, the answer is 422. It is given the request, whose Body was
// read, and that body. The default covers the method, path and query, the Content-Type and the
// body. In that, the boundary of a multipart body isn't covered, and a charset of UTF-8 counts as
// none, because clients may choose another one when they repeat a request. Of a multipart body,
// the headers and contents of its parts are covered, in their order.
func FingerprintOf(cover func(r *http.Request, body []byte) []byte) Option {
	return idempotent.FingerprintOf(cover)
}

// ClientOf distinguishes clients, by what a request was authenticated with, for example: the
// keys of one are not those of another. Without it, a client that knows the key and the whole
// request of another gets the answer of that one. The default takes all clients for one.
func ClientOf(client func(r *http.Request) string) Option {
	return idempotent.ClientOf(client)
}

// OnError reports the errors behind answers of 422, 409 and 500 to 503. The default reports
// nothing.
func OnError(tell func(r *http.Request, err error)) Option {
	return idempotent.OnError(tell)
}

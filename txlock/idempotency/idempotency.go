// Package idempotency contains what locksqlc.OnceHandler and lockgorm.OnceHandler share: their
// options, and Fail for the HTTP handlers that they wrap.
package idempotency

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dca00107/lockstep/internal/idempotent"
)

// Fail makes the OnceHandler request with this context fail: everything that it has done in its
// transaction is rolled back, and nothing is stored. If the error is txlock.Retryable, as after a
// deadlock, the handler is called again. Otherwise the client gets the handler's answer if its
// status is 400 or more, and 503 if it isn't. Fail panics if the context is not that of such a
// request.
func Fail(ctx context.Context, err error) {
	if !idempotent.Fail(ctx, err) {
		panic(errors.New("idempotency: Fail needs the context of a request of OnceHandler"))
	}
}

// Option is an option of OnceHandler.
type Option = idempotent.Option

// KeyRequired refuses a request that has no Idempotency-Key, except for GET, HEAD, OPTIONS, TRACE,
// PUT and DELETE, which may be repeated without one. The default is to let it through.
func KeyRequired() Option { return idempotent.KeyRequired }

// ConflictAfter answers 409 to a request that has waited for d for the first one with its key. On
// MySQL d is rounded up to whole seconds, as by WaitAtMost. The default, 0, is to wait as long as
// the server's innodb_lock_wait_timeout.
func ConflictAfter(d time.Duration) Option { return idempotent.ConflictAfter(d) }

// KeepFor sets how long answers are kept: see txlock.Keep. The default is 24 hours.
func KeepFor(d time.Duration) Option { return idempotent.KeepFor(d) }

// MaxBody limits the body of a request, which is kept in memory. The default is 1 MB.
func MaxBody(bytes int64) Option { return idempotent.MaxBody(bytes) }

// KeepHeaders names the headers of an answer that are stored and sent again. The default
// is Content-Type, Content-Encoding, Content-Language, Content-Disposition, Location,
// ETag, Last-Modified, Link, Cache-Control and Vary. If middleware has set a header, then the values
// that the handler has added are sent again behind those that middleware sets for the later request,
// and a header that the handler has set to another value replaces them.
func KeepHeaders(names ...string) Option { return idempotent.KeepHeaders(names...) }

// KeepStatuses determines which answers are stored, by their status. After any other answer,
// everything that the handler has done is rolled back, and the next request with the key is the
// first: the client gets the answer, and may repeat the request. kept is called for each status
// when the handler is made, and must return true for all below 400, because such an answer would
// not be true after a rollback. The default is to store all below 500.
func KeepStatuses(kept func(status int) bool) Option { return idempotent.KeepStatuses(kept) }

// FingerprintOf determines what distinguishes requests with the same key: if cover returns
// something else for a request than for the first one, the answer is 422. cover gets the request,
// whose Body has been read, and that body. The default covers the method, path and query, the
// Content-Type and the body. The boundary of a multipart body isn't covered, and a charset of UTF-8
// counts as none, because clients may choose another one when they repeat a request. The headers
// and contents of the parts of a multipart body are covered, in their order.
func FingerprintOf(cover func(r *http.Request, body []byte) []byte) Option {
	return idempotent.FingerprintOf(cover)
}

// ClientOf distinguishes clients, for example by the credentials of the request, so that each has
// its own keys. Without it, a client that knows another client's key and whole request gets that
// client's answer. The default treats all clients as one.
func ClientOf(client func(r *http.Request) string) Option {
	return idempotent.ClientOf(client)
}

// OnError reports the errors behind answers of 422, 409 and 500 to 503. The default reports
// nothing.
func OnError(report func(r *http.Request, err error)) Option {
	return idempotent.OnError(report)
}

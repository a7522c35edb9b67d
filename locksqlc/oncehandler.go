package locksqlc

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/dca00107/lockstep/internal/idempotent"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// OnceHandler lets clients repeat requests that must be processed once, with the header
// Idempotency-Key of draft-ietf-httpapi-idempotency-key-header. The handler next works in a
// transaction, which it gets with TxOf from the context of its request. Status, headers and body
// of its answer are stored in that transaction, and sent when it is committed. A request that
// repeats the key gets the same answer, with the header "Idempotent-Replayed: true", and next is
// not called. Package idempotency has the options.
//
// While the first request of a key is being processed, others with the key wait for it, or get
// 409 after ConflictAfter; each that waits keeps a connection of the pool, which next may need.
// A key that is repeated with another method, address, content type or body gets 422
// (FingerprintOf), a missing key gets 400 with KeyRequired, and a body that is too large gets
// 413 (MaxBody). Don't read the body before OnceHandler does. If next panics, responds with a
// status of 500 or more, or calls idempotency.Fail, all is rolled back and nothing is stored:
// then the next request is the first. Any other answer is stored, one of 400 to 499 too: put
// handlers that refuse requests temporarily before this one, or leave out their statuses with
// KeepStatuses. If there is no answer of next, because the database has failed, the client gets
// 503 and may repeat the request with its key.
//
// Requests without a key, and those of GET, HEAD, OPTIONS and TRACE, have a transaction
// too, and nothing is stored. Answers are kept in memory until the COMMIT, up to 8 MB, so
// next can't flush or hijack. It may be called several times for a request, as the
// function of Run.
//
// OnceHandler panics if next is nil or an option is out of its range, then with an error that wraps
// txlock.ErrInvalidOption, as http.ServeMux does for a pattern that it can't read.
func OnceHandler(db *sql.DB, next http.Handler, options ...idempotency.Option) http.Handler {
	return idempotent.Handler(func(ctx context.Context, body func(ctx context.Context, scope *txlock.Scope) error) error {
		begin := func(*sql.Tx) error { return nil }
		return run(ctx, "OnceHandler", db, nil, nil, begin, func(scope *txlock.Scope, tx *sql.Tx) (bool, error) {
			return false, body(context.WithValue(ctx, txKey{}, tx), scope)
		})
	}, next, options)
}

// txKey is the key of a request's transaction in its context.
type txKey struct{}

// TxOf returns the transaction of a request from the context that OnceHandler gave it. OnceHandler
// commits it or rolls it back. TxOf returns nil for any other context.
func TxOf(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

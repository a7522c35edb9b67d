package idempotency_test

import (
	"database/sql"
	"net/http"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// What the handler has written until now is rolled back, and its answer is not stored: the
// client may repeat the request.
func ExampleFail() {
	serve := func(db *sql.DB, mux *http.ServeMux) {
		pay := func(w http.ResponseWriter, r *http.Request) {
			if _, err := locksqlc.TxOf(r.Context()).ExecContext(r.Context(), "INSERT INTO payments (amount) VALUES (1)"); err != nil {
				idempotency.Fail(r.Context(), err) // after a deadlock the handler is called again
				http.Error(w, "not paid", http.StatusServiceUnavailable)
			}
		}
		mux.Handle("POST /payments", locksqlc.OnceHandler(db, http.HandlerFunc(pay), idempotency.KeyRequired()))
	}
	_ = serve
}

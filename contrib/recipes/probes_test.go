package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
)

// Prepare is for the start of a program, before its first probe.
func Prepare(ctx context.Context, db *sql.DB) error {
	err := schema.Check(ctx, db)
	if schema.Advisory(err) {
		log.Print(err) // locks work, at a higher cost
		return nil
	}
	return err
}

// Probes answers the probes of Kubernetes. The first never asks the database, since a restart
// of this program would not repair it. A program on standby is ready, too.
func Probes(db *sql.DB) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := db.PingContext(ctx); err != nil {
			http.Error(w, "no database", http.StatusServiceUnavailable)
		}
	})
	return mux
}

func TestProbes(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Got(locksqlc.Open(testdb.Shared(t, engine).Open(t).AdminDSN()))(t) // whose tables are its own
		t.Cleanup(func() { check(t, db.Close()) })
		check(t, Prepare(t.Context(), db))
		gone := testdb.Got(locksqlc.Open("app@tcp(127.0.0.1:1)/shop"))(t)
		defer func() { check(t, gone.Close()) }()
		err := Prepare(t.Context(), gone)
		testdb.ErrorIf(t, err == nil, "a program without a server is prepared")
		for _, c := range []struct {
			db   *sql.DB
			path string
			want int
		}{{db, "/livez", 200}, {db, "/readyz", 200}, {gone, "/livez", 200}, {gone, "/readyz", 503}} {
			w := httptest.NewRecorder()
			Probes(c.db).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil))
			testdb.ErrorIf(t, w.Code != c.want, "%s: %d, want %d", c.path, w.Code, c.want)
		}
		testdb.Got(db.ExecContext(t.Context(), "DROP TABLE lockstep_leases"))(t)
		err = Prepare(t.Context(), db)
		testdb.ErrorIf(t, !errors.Is(err, schema.ErrTable), "%v without a table", err)
	})
}

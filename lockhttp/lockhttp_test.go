package lockhttp_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/txlock"
)

// nowhere is a pool of a server that doesn't answer.
func nowhere(t *testing.T) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(&mysql.Config{Net: "tcp", Addr: "127.0.0.1:1", User: "nobody", DBName: "none", Timeout: time.Second, AllowNativePasswords: true})
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// TestNew proves that what is missing is said before anything is served.
func TestNew(t *testing.T) {
	t.Parallel()
	if _, err := lockhttp.New(nil); err == nil || !strings.Contains(err.Error(), "needs a *sql.DB") {
		t.Errorf("New(nil) returns %v", err)
	}
	pool := nowhere(t)
	for name, option := range map[string]lockhttp.Option{
		"MaskKeys": lockhttp.MaskKeys(nil), "MaskNotes": lockhttp.MaskNotes(nil), "Authorize": lockhttp.Authorize(nil), "Log": lockhttp.Log(nil), "Events": lockhttp.Events(nil),
	} {
		if _, err := lockhttp.New(pool, option); !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s(nil): %v", name, err)
		}
	}
}

// unflushed hides Flush.
type unflushed struct{ http.ResponseWriter }

// TestServerIsDown proves that pages and JSON say so, by their codes, too; that the answer to HEAD has
// an end, also for a client that takes events, since its connection would never be free again; that a
// template is not served as it is; and that a browser is told to poll where what wraps the handler keeps
// back what is written.
func TestServerIsDown(t *testing.T) {
	t.Parallel()
	pages, err := lockhttp.New(nowhere(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	for _, c := range []struct {
		method, path string
		events       bool
		wrap         func(http.ResponseWriter) http.ResponseWriter
		code         int
		says         string
	}{
		{http.MethodGet, "/", false, nil, http.StatusBadGateway, "The server doesn&#39;t answer"},
		{http.MethodGet, "/locks.json", false, nil, http.StatusBadGateway, `"error": "The server doesn't answer`},
		{http.MethodHead, "/locks", true, nil, http.StatusBadGateway, ""},
		{http.MethodGet, "/page.html", false, nil, http.StatusNotFound, ""},
		{http.MethodGet, "/style.css", false, nil, http.StatusOK, ""},
		{http.MethodGet, "/locks/", true, func(w http.ResponseWriter) http.ResponseWriter { return unflushed{w} }, http.StatusNotImplemented, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, answer := httptest.NewRequestWithContext(ctx, c.method, c.path, nil), httptest.NewRecorder()
		if c.events {
			r.Header.Set("Accept", "text/event-stream")
		}
		w := http.ResponseWriter(answer)
		if c.wrap != nil {
			w = c.wrap(w)
		}
		pages.ServeHTTP(w, r)
		if answer.Code != c.code || !strings.Contains(answer.Body.String(), c.says) || ctx.Err() != nil {
			t.Errorf("%s %s is answered with %d, not %d: %s, %v", c.method, c.path, answer.Code, c.code, answer.Body, ctx.Err())
		}
	}
}

package lockhttp_test

import (
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

// TestServerIsDown proves that pages and JSON say so, by their codes, too.
func TestServerIsDown(t *testing.T) {
	t.Parallel()
	pages, err := lockhttp.New(nowhere(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	for path, want := range map[string]string{"/": "The server doesn&#39;t answer", "/locks.json": `"error": "The server doesn't answer`} {
		answer := httptest.NewRecorder()
		pages.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if answer.Code != http.StatusBadGateway || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%s is answered with %d: %s", path, answer.Code, answer.Body)
		}
	}
}

// unflushed hides Flush.
type unflushed struct{ http.ResponseWriter }

// TestStreamNeedsFlush proves that a browser is told to poll where what wraps the handler
// keeps back what is written.
func TestStreamNeedsFlush(t *testing.T) {
	t.Parallel()
	pages, err := lockhttp.New(nowhere(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	answer := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/locks/", nil)
	r.Header.Set("Accept", "text/event-stream")
	pages.ServeHTTP(unflushed{answer}, r)
	if answer.Code != http.StatusNotImplemented {
		t.Errorf("it is answered with %d", answer.Code)
	}
}

package lockhttp_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

var must, wants = leasetest.Must, leasetest.Wants

// nowhere is a pool of a server that doesn't answer.
func nowhere(t *testing.T) *sql.DB {
	t.Helper()
	return testdb.Pool(t, &mysql.Config{Net: "tcp", Addr: "127.0.0.1:1", User: "nobody", DBName: "none", Timeout: time.Second, AllowNativePasswords: true})
}

// TestNew proves that what is missing is said before anything is served.
func TestNew(t *testing.T) {
	t.Parallel()
	_, err := lockhttp.New(nil)
	leasetest.Fails(t, "New(nil)", err, "needs a *sql.DB")
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
	must(t, err)
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

// TestMaskPanics proves that a mask that panics over a key of another program doesn't end this
// one, and that the page says so and the log where.
func TestMaskPanics(t *testing.T) {
	onOne(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.MaskKeys(func(key string) string { return key[:5] }))
		tx := s.lock(txlock.Named("abc"))
		var code int
		var body string
		if !testdb.Await(time.Minute, func() bool {
			code, body, _ = s.get("locks")
			return strings.Contains(body, "a mask") // beside what was seen before, if something was
		}) {
			t.Errorf("the page doesn't tell of the panic, but %d: %s", code, body)
		}
		s.must(tx.Commit())
		s.shows("locks", "No locks are held.")
		s.pages.Close()
		leasetest.Says(t, "the log", s.log.String(), "slice bounds out of range")
	})
}

// TestLineBreaksInKeys proves that a key with line breaks, which browsers change in the fields
// of a form, is released by its page.
func TestLineBreaksInKeys(t *testing.T) {
	onOne(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.Authorize(operator))
		m := s.manager()
		for _, name := range []string{"a\nb", "a\r\nb", "a\rb\n"} {
			held, err := m.Acquire(t.Context(), txlock.Named(name))
			s.must(err)
			page := "key?" + url.Values{"key": {name}}.Encode()
			var release url.Values
			testdb.Await(time.Minute, func() bool {
				release = s.form(page, "release", "", alice)
				return release != nil
			})
			for field, values := range release {
				if field != "key" && strings.ContainsAny(values[0], "\r\n") {
					t.Errorf("the field %s has a line break", field)
				}
			}
			key := url.Values{"key": release["key"]}
			delete(release, "key")
			if code, body, _ := s.post("release?"+key.Encode(), release, alice); code != http.StatusSeeOther {
				t.Fatalf("%q: %d %s", name, code, body)
			}
			wants(t, fmt.Sprintf("%q", name), held.Renew(t.Context()), txlock.ErrLost)
		}
	})
}

// TestManyKeysOfOnce proves that each of many who look at keys of Once at the same time sees
// its own.
func TestManyKeysOfOnce(t *testing.T) {
	onOne(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		keys := make([]txlock.Key, testdb.Long(10, 40))
		for i := range keys {
			keys[i] = txlock.Named(fmt.Sprintf("payment:%d", i))
			s.must(second(locksqlc.Once(t.Context(), s.pool, keys[i], func(*sql.Tx) error { return nil })))
		}
		pages := make(map[string]string)
		for _, key := range keys {
			pages["key.json?key="+key.String()] = key.String()
		}
		together(s, pages, func(s *stage, page, key string) {
			var shown struct{ Once []struct{ Key, State string } }
			s.decode(page, &shown)
			if len(shown.Once) != 1 || shown.Once[0].Key != key || shown.Once[0].State != "done" {
				s.Errorf("%s shows %v", page, shown.Once)
			}
		})
	})
}

// TestSessionSettings proves that a page shows the same whatever the settings of its sessions
// are.
func TestSessionSettings(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		s.lock(txlock.Named("order:42"))
		pool := db.ConnectAdmin(t, func(c *mysql.Config) {
			c.ParseTime, c.Loc = true, time.FixedZone("Kolkata", 19800)
			c.Params = map[string]string{"time_zone": "'+05:30'", "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'", "sql_select_limit": "1"}
		})
		pages, err := lockhttp.New(pool)
		s.must(err)
		defer pages.Close()
		server := httptest.NewServer(pages)
		defer server.Close()
		of := *s
		of.url = server.URL + "/"
		of.shows("locks", "order:42")
		var shown struct {
			Taken time.Time
			Locks []struct {
				Since time.Time
				Held  float64 `json:"held_s"`
			}
		}
		of.decode("locks.json", &shown)
		if len(shown.Locks) != 1 || shown.Locks[0].Held > 600 || time.Since(shown.Locks[0].Since).Abs() > time.Hour || time.Since(shown.Taken).Abs() > time.Hour {
			t.Errorf("%+v", shown)
		}
	})
}

// TestUnseen proves that a page whose user can't see all locks doesn't say that there are none, and that
// one whose user can says so without a condition.
func TestUnseen(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		few, err := lockhttp.New(db.Connect(t)) // without PROCESS
		s.must(err)
		t.Cleanup(few.Close)
		const condition = "as far as can be seen"
		for path, none := range map[string]string{"": "Nothing: no session waits", "locks": "No locks are held", "queues": "No session waits", "waits": "No session waits", "key?key=order:42": "This key is not held"} {
			if body := s.shows(path, none); strings.Contains(body, condition) && !strings.Contains(body, "Not seen") {
				t.Errorf("the page %q of an administrator is:\n%s", path, body)
			}
			answer := httptest.NewRecorder()
			few.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+path, nil))
			body := answer.Body.String()
			at := strings.Index(body, none)
			if at < 0 || !strings.Contains(body[at:at+strings.IndexByte(body[at:], '<')], condition) || !strings.Contains(body, "waiting, "+condition) || !strings.Contains(body, "GRANT PROCESS") {
				t.Errorf("the page %q without PROCESS is:\n%s", path, body)
			}
		}
		for path, none := range map[string]string{"leases": "No leases are held.", "leaders": "No process leads.", "jobs": "There are no jobs."} { // which need less
			answer := httptest.NewRecorder()
			few.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+path, nil))
			leasetest.Says(t, path+" without PROCESS", answer.Body.String(), none)
		}
	})
}

// TestServerGoes proves that pages and JSON say that what they show is old when the server doesn't
// answer any more, JSON by its status, too.
func TestServerGoes(t *testing.T) {
	onOne(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		s.shows("locks", "No locks are held.")
		s.must(s.admin.Close())
		var code int
		var body string
		if !testdb.Await(time.Minute, func() bool {
			code, body, _ = s.get("locks.json")
			return code != http.StatusOK
		}) {
			t.Fatalf("the JSON stays %s", body)
		}
		for _, page := range []string{"overview", "locks", "leases", "waits", "queues", "jobs", "leaders", "events", "search", "key"} {
			code, body, _ := s.get(page + ".json?key=order:42")
			if code != http.StatusBadGateway || !strings.Contains(body, `"error": "The server doesn't answer. This was seen`) || !strings.Contains(body, `"taken"`) {
				t.Errorf("the JSON of %s is answered with %d: %s", page, code, body)
			}
			_, body, _ = s.get(page + "?key=order:42")
			leasetest.Says(t, page, body, "The server doesn&#39;t answer. This was seen")
		}
	})
}

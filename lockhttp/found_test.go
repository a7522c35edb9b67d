package lockhttp_test

import (
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

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestMaskPanics proves that a mask that panics over a key of another program doesn't end this
// one, and that the page says so and the log where.
func TestMaskPanics(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
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
		if !strings.Contains(s.log.String(), "slice bounds out of range") {
			t.Errorf("the log is %s", s.log)
		}
	})
}

// TestLineBreaksInKeys proves that a key with line breaks, which browsers change in the fields
// of a form, is released by its page.
func TestLineBreaksInKeys(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
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
			if err := held.Renew(t.Context()); !errors.Is(err, txlock.ErrLost) {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}

// TestManyKeysOfOnce proves that each of many who look at keys of Once at the same time sees
// its own.
func TestManyKeysOfOnce(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		keys := make([]txlock.Key, testdb.Long(10, 40))
		for i := range keys {
			keys[i] = txlock.Named(fmt.Sprintf("payment:%d", i))
			_, err := locksqlc.Once(t.Context(), s.pool, keys[i], func(*sql.Tx) error { return nil })
			s.must(err)
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
		connector, err := mysql.NewConnector(db.AdminConfig(func(c *mysql.Config) {
			c.ParseTime, c.Loc = true, time.FixedZone("Kolkata", 19800)
			c.Params = map[string]string{"time_zone": "'+05:30'", "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'", "sql_select_limit": "1"}
		}))
		s.must(err)
		pool := sql.OpenDB(connector)
		defer func() { _ = pool.Close() }()
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

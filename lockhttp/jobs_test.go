package lockhttp_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
)

// TestJobsBehindDDL proves that jobs that can't be read, since the table is locked, are shown as
// they were read last, with their age, and that the rest of the page is new.
func TestJobsBehindDDL(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.MaskKeys(func(key string) string { return "masked " + key[:1] }))
		s.job(s.manager())
		s.shows("jobs", "masked n", "failed")
		conn, err := db.Admin().Conn(t.Context())
		s.must(err)
		defer func() { _ = conn.Close() }()
		s.must(second(conn.ExecContext(t.Context(), "LOCK TABLES lockstep_jobs WRITE")))
		s.shows("jobs", "The jobs were read ", " s ago", "masked n", "jobs are not known")
		s.shows("", "The jobs were read ", "failing job", "jobs are not known")
		s.must(second(conn.ExecContext(t.Context(), "UNLOCK TABLES")))
		for strings.Contains(s.shows("jobs", "masked n"), "The jobs were read ") {
			testdb.Refresh()
		}
	})
}

// TestJobActions proves that who is allowed to can pause, resume and run jobs, behind masks, that
// all others can't, nor another site, and that nothing is done that a viewer hasn't seen so.
func TestJobActions(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.Authorize(operator), lockhttp.MaskKeys(func(key string) string { return "masked " + key[:1] }))
		s.job(s.manager())
		db.Exec(t, "INSERT INTO lockstep_jobs (name, tick_us, done_us, token, owner, started_us, ended_us, took_us, failures, error, next_us) VALUES ('untouchable', 1, 1, 1, '', 1, 1, 1, 0, '-', 0)")
		db.Exec(t, "UPDATE lockstep_jobs SET schedule = 'Every(1h0m0s)' WHERE name = 'nightly'")
		status := func() (paused, requested bool, by string) {
			t.Helper()
			s.must(db.Admin().QueryRowContext(t.Context(), "SELECT paused_us > 0, run_us > tick_us, paused_by FROM lockstep_jobs WHERE name = 'nightly'").Scan(&paused, &requested, &by))
			return paused, requested, by
		}
		s.shows("jobs", "masked n", "masked u")
		if s.form("jobs", "pause", "", http.Header{}) != nil || s.form("key?key=untouchable", "pause", "", alice) != nil {
			t.Error("who may not pause sees a form")
		}
		pause, request := s.form("jobs", "pause", "not interrupted", alice), s.form("key?key=masked+n", "run", "starts a tick", alice)
		if pause == nil || request == nil || s.form("jobs", "resume", "", alice) != nil {
			t.Fatalf("the forms are %v, %v", pause, request)
		}
		for name, c := range map[string]struct {
			form   url.Values
			header http.Header
			want   int
			says   string
		}{
			"another site":         {pause, http.Header{"X-Who": {"alice"}, "Sec-Fetch-Site": {"cross-site"}}, 403, "Another site"},
			"nobody":               {pause, http.Header{}, 403, "not allowed"},
			"what is not allowed":  {with(pause, "key", "untouchable"), alice, 403, "not allowed"},
			"no job":               {with(pause, "key", "xylophone"), alice, 409, "job does not exist"},
			"a slot":               {with(with(pause, "key", ""), "slot", "7"), alice, 409, "be done here"},
			"an incomplete form":   {url.Values{"key": {"masked n"}}, alice, 400, "incomplete"},
			"a job that has moved": {with(pause, "token", "7"), alice, 409, "meanwhile"},
		} {
			if code, body, _ := s.post("pause", c.form, c.header); code != c.want || !strings.Contains(body, c.says) {
				t.Errorf("%s is answered with %d, not %d and %q:\n%s", name, code, c.want, c.says, body)
			}
		}
		if paused, requested, _ := status(); paused || requested {
			t.Fatal("what was refused was done")
		}
		done := func(verb string, form url.Values, says string) {
			t.Helper()
			code, body, header := s.post(verb, form, alice)
			if code != http.StatusSeeOther {
				t.Fatalf("%s is answered with %d: %s", verb, code, body)
			}
			s.shows(header.Get("Location"), says)
		}
		codes := make(chan int)
		row, err := db.Admin().BeginTx(t.Context(), nil)
		s.must(err)
		s.must(second(row.ExecContext(t.Context(), "SELECT 1 FROM lockstep_jobs WHERE name = 'nightly' FOR UPDATE")))
		for range 2 {
			go func() {
				code, _, header := s.post("pause", with(pause, "lease", "true"), alice)
				if code == http.StatusSeeOther {
					s.shows(header.Get("Location"), "Paused.")
				}
				codes <- code
			}()
		}
		db.WaitForStatement(t, "-- name: PauseJob ", 2) // both have seen that it isn't paused
		s.must(row.Commit())
		if one, other := <-codes, <-codes; one+other != http.StatusSeeOther+http.StatusConflict {
			t.Errorf("two viewers who pause it at once are answered with %d and %d", one, other)
		}
		if paused, _, by := status(); !paused || by != "alice" {
			t.Errorf("it is paused: %t, by %q", paused, by)
		}
		if code, _, _ := s.post("run", request, alice); code != http.StatusConflict {
			t.Errorf("a run that was seen before the pause is answered with %d", code)
		}
		s.shows("jobs", "paused", "paused by alice")
		done("run", s.form("jobs", "run", "starts a tick", alice), "Requested: ")
		done("resume", s.form("jobs", "resume", "by its schedule", alice), "Resumed.")
		if paused, requested, _ := status(); paused || !requested {
			t.Errorf("it is paused: %t, and requested: %t", paused, requested)
		}
		if code, _, _ := s.post("run", request, alice); code != http.StatusConflict {
			t.Errorf("a second request is answered with %d", code)
		}
		db.Exec(t, "UPDATE lockstep_jobs SET schedule = '', run_us = 0 WHERE name = 'nightly'")
		if code, body, _ := s.post("run", request, alice); code != http.StatusConflict || !strings.Contains(body, "no process would see the request") {
			t.Errorf("a request that no process would see is answered with %d", code)
		}
		for _, line := range []string{`msg="lockhttp: pause" who=alice`, "key=nightly lease=false", `level=WARN msg="lockhttp: run was not done" who=alice`} {
			if !strings.Contains(s.log.String(), line) {
				t.Errorf("the log hasn't %q:\n%s", line, s.log)
			}
		}
		if strings.Contains(s.log.String(), "lease=true") {
			t.Errorf("a job is told to be a lease:\n%s", s.log)
		}
	})
}

package lockhttp_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// operator allows all to who sends a header, but for one key.
func operator(r *http.Request, a lockhttp.Action) (string, error) {
	who := r.Header.Get("X-Who")
	if who == "" || a.Key == "untouchable" {
		return who, errors.New("no operator")
	}
	return who, nil
}

var (
	alice  = http.Header{"X-Who": {"alice"}}
	forms  = regexp.MustCompile(`(?s)<form method="post" action="(\w+)\?([^"]*)">.*?</form>`)
	fields = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`)
)

// form returns the first form of a page that does something and has a text, as somebody sees it.
func (s *stage) form(page, verb, has string, header http.Header) url.Values {
	s.Helper()
	_, body, _ := s.sure(func() (int, string, http.Header) {
		r := testdb.Got(http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+page, nil))(s)
		r.Header = header.Clone()
		answer, err := http.DefaultClient.Do(r)
		testdb.Must(s, err)
		return s.read(answer)
	})
	for _, form := range forms.FindAllStringSubmatch(body, -1) {
		if form[1] != verb || !strings.Contains(form[0], has) {
			continue
		}
		values := testdb.Got(url.ParseQuery(html.UnescapeString(form[2])))(s)
		for _, field := range fields.FindAllStringSubmatch(form[0], -1) {
			values.Set(field[1], html.UnescapeString(field[2]))
		}
		return values
	}
	return nil
}

// with returns a form with another value.
func with(form url.Values, name, value string) url.Values {
	form = maps.Clone(form)
	form.Set(name, value)
	return form
}

// TestActions proves that who is allowed to can ask for and release leases and locks, also behind masks, that others
// can't, nor another site, nor of what has changed hands, and that the log tells who has done what.
func TestActions(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		mask := func(key string) string { return "masked " + key[:1] }
		s := open(t, db, lockhttp.Authorize(operator), lockhttp.MaskKeys(mask))
		ctx := t.Context()
		m := s.manager()
		held := testdb.Got(m.Acquire(ctx, txlock.Named("report")))(s)
		reader := testdb.Got(m.AcquireShared(ctx, txlock.Named("catalog")))(s)
		untouchable := testdb.Got(m.Acquire(ctx, txlock.Named("untouchable")))(s)
		tx := s.lock(txlock.Named("order:42"))
		session := testdb.ConnID(t, tx)
		s.shows("locks", "masked o")

		page := "key?key=masked+r"
		s.shows(page, "masked r")
		testdb.ErrorIf(t, s.form(page, "release", "", http.Header{}) != nil || s.form("key?key=untouchable", "release", "", alice) != nil,
			"who may not release sees a form")
		ask, release := s.form(page, "ask", "sees the request within", alice), s.form(page, "release", "gets ErrLost", alice)
		end := s.form("key?key=masked+o", "release", "rolled back", alice)
		testdb.FatalIf(t, ask == nil || release == nil || end == nil, "the forms are %v, %v, %v", ask, release, end)
		ask.Set("reason", "maintenance")
		evil := http.Header{"X-Who": {"alice"}, "Sec-Fetch-Site": {"cross-site"}}
		old := http.Header{"X-Who": {"alice"}, "Origin": {"https://evil.example"}}
		stranger := url.Values{"key": {"untouchable"}, "lease": {"true"}, "slot": {"0"}, "session": {"0"}, "token": {"1"}}
		gone := url.Values{"key": {"masked r"}, "lease": {"true"}, "slot": {"0"}, "session": {"0"}, "token": {"1"}}
		s.posts("another site", "release", release, evil, 403, "Another site")
		s.posts("another site's origin", "release", end, old, 403, "Another site")
		s.posts("nobody", "release", release, http.Header{}, 403, "not allowed")
		s.posts("nobody asks", "ask", ask, http.Header{}, 403, "not allowed")
		s.posts("what is not allowed", "release", stranger, alice, 403, "not allowed")
		s.posts("an incomplete form", "release", url.Values{"key": {"report"}}, alice, 400, "incomplete")
		s.posts("a lease of before", "release", gone, alice, 409, "nothing was done")
		s.posts("a lock of before", "release", with(end, "token", "1"), alice, 409, "nothing was done")
		s.posts("a session without it", "release", with(end, "key", "masked r"), alice, 409, "nothing was done")
		s.posts("a reason that is long", "ask", with(ask, "reason", strings.Repeat("x", 300)), alice, 400, "at most 255 bytes")
		s.posts("asking for what nobody", "ask", url.Values{"key": {"nobody"}, "lease": {"true"}, "slot": {"0"}, "session": {"0"}, "token": {"0"}}, alice, 409, "nothing was done")
		testdb.FatalIf(t, held.Err() != nil || tx.QueryRowContext(ctx, "SELECT 1").Err() != nil, "what was refused was done")

		to := s.posts("asking", "ask", ask, alice, 303, "")
		testdb.ErrorIf(t, !strings.HasPrefix(to, "key?key=masked+r"), "asking leads to %s", to)
		s.must(held.Renew(ctx))
		reason, asked := held.ReleaseReason()
		testdb.ErrorIf(t, !asked || reason != "maintenance", "the holder is asked: %t, %q", asked, reason)
		same := http.Header{"X-Who": {"alice"}, "Sec-Fetch-Site": {"same-origin"}}
		s.posts("releasing", "release", release, same, 303, "")
		wants(t, "the holder of a released lease renews it", held.Renew(ctx), txlock.ErrLost)
		s.posts("releasing a reader", "release", s.form("key?key=masked+c", "release", "reader", alice), alice, 303, "")
		wants(t, "a released reader renews", reader.Renew(ctx), txlock.ErrLost)
		s.posts("ending a session", "release", end, alice, 303, "")
		testdb.Fails(t, "the session that was to be ended", testdb.Err(tx.ExecContext(context.WithoutCancel(ctx), "DO 1")))
		db.WaitGone(t, session) // the server rolls back a moment later
		s.posts("ending it again", "release", end, alice, 409, "")
		s.must(untouchable.Release(ctx))
		testdb.Says(t, "the log", s.log.String(),
			`msg="lockhttp: release" who=alice`, "key=report lease=true", "key=order:42 lease=false", `msg="lockhttp: ask" who=alice`,
			`level=WARN msg="lockhttp: release was not done" who=alice`, "cross-origin",
		)
	})
}

// TestReadOnly proves that without an authorizer a page has no forms, and nothing can be done by it.
func TestReadOnly(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		held := testdb.Got(s.manager().Acquire(t.Context(), txlock.Named("report")))(s)
		body := s.shows("key?key=report", "report")
		testdb.ErrorIf(t, strings.Contains(body, "method=\"post\""), "a page that is read-only has a form")
		form := url.Values{"key": {"report"}, "lease": {"true"}, "slot": {"0"}, "session": {"0"}, "token": {"1"}}
		for _, verb := range []string{"release", "ask", "pause", "resume", "run"} {
			s.posts(verb, verb, form, http.Header{}, 403, "read-only")
		}
		s.must(held.Release(t.Context()))
	})
}

// TestAmbiguousMask proves that what is behind a mask of several keys is not released.
func TestAmbiguousMask(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.Authorize(operator), lockhttp.MaskKeys(func(string) string { return "hidden" }))
		m := s.manager(lease.WithLabel("web-1"))
		s.acquire(m, txlock.Named("a"))
		s.acquire(m, txlock.Named("b"))
		s.shows("leases", "hidden", "web-1")
		testdb.ErrorIf(t, s.form("key?key=hidden", "release", "", alice) != nil, "a mask of two keys has a form")
		form := url.Values{"key": {"hidden"}, "lease": {"true"}, "slot": {"0"}, "session": {"0"}, "token": {"1"}}
		s.posts("releasing what is behind it", "release", form, alice, 409, "")
	})
}

// TestJobsBehindDDL proves that jobs that can't be read, since the table is locked, are shown as
// they were read last, with their age, and that the rest of the page is new.
func TestJobsBehindDDL(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.MaskKeys(func(key string) string { return "masked " + key[:1] }))
		s.job(s.manager())
		s.shows("jobs", "masked n", "failed")
		conn := testdb.Got(db.Admin().Conn(t.Context()))(s)
		defer func() { _ = conn.Close() }()
		s.must(testdb.Err(conn.ExecContext(t.Context(), "LOCK TABLES lockstep_jobs WRITE")))
		s.shows("jobs", "The jobs were read ", " s ago", "masked n", "jobs are not known")
		s.shows("", "The jobs were read ", "failing job", "jobs are not known")
		s.must(testdb.Err(conn.ExecContext(t.Context(), "UNLOCK TABLES")))
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
		testdb.ErrorIf(t, s.form("jobs", "pause", "", http.Header{}) != nil || s.form("key?key=untouchable", "pause", "", alice) != nil,
			"who may not pause sees a form")
		pause, request := s.form("jobs", "pause", "not interrupted", alice), s.form("key?key=masked+n", "run", "starts a tick", alice)
		testdb.FatalIf(t, pause == nil || request == nil || s.form("jobs", "resume", "", alice) != nil, "the forms are %v, %v", pause, request)
		s.posts("another site", "pause", pause, http.Header{"X-Who": {"alice"}, "Sec-Fetch-Site": {"cross-site"}}, 403, "Another site")
		s.posts("nobody", "pause", pause, http.Header{}, 403, "not allowed")
		s.posts("what is not allowed", "pause", with(pause, "key", "untouchable"), alice, 403, "not allowed")
		s.posts("no job", "pause", with(pause, "key", "xylophone"), alice, 409, "job does not exist")
		s.posts("a slot", "pause", with(with(pause, "key", ""), "slot", "7"), alice, 409, "be done here")
		s.posts("an incomplete form", "pause", url.Values{"key": {"masked n"}}, alice, 400, "incomplete")
		s.posts("a job that has moved", "pause", with(pause, "token", "7"), alice, 409, "meanwhile")
		if paused, requested, _ := status(); paused || requested {
			t.Fatal("what was refused was done")
		}
		done := func(verb string, form url.Values, says string) {
			t.Helper()
			s.shows(s.posts(verb, verb, form, alice, 303, ""), says)
		}
		codes := make(chan int)
		row := testdb.Got(db.Admin().BeginTx(t.Context(), nil))(s)
		s.must(testdb.Err(row.ExecContext(t.Context(), "SELECT 1 FROM lockstep_jobs WHERE name = 'nightly' FOR UPDATE")))
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
		one, other := <-codes, <-codes
		testdb.ErrorIf(t, one+other != http.StatusSeeOther+http.StatusConflict, "two viewers who pause it at once are answered with %d and %d", one, other)
		if paused, _, by := status(); !paused || by != "alice" {
			t.Errorf("it is paused: %t, by %q", paused, by)
		}
		s.posts("a run that was seen before the pause", "run", request, alice, 409, "")
		s.shows("jobs", "paused", "paused by alice")
		done("run", s.form("jobs", "run", "starts a tick", alice), "Requested: ")
		done("resume", s.form("jobs", "resume", "by its schedule", alice), "Resumed.")
		paused, requested, _ := status()
		testdb.ErrorIf(t, paused || !requested, "it is paused: %t, and requested: %t", paused, requested)
		s.posts("a second request", "run", request, alice, 409, "")
		db.Exec(t, "UPDATE lockstep_jobs SET schedule = '', run_us = 0 WHERE name = 'nightly'")
		s.posts("a request that no process would see", "run", request, alice, 409, "no process would see the request")
		testdb.Says(t, "the log", s.log.String(),
			`msg="lockhttp: pause" who=alice`, "key=nightly lease=false", `level=WARN msg="lockhttp: run was not done" who=alice`)
		testdb.ErrorIf(t, strings.Contains(s.log.String(), "lease=true"), "a job is told to be a lease:\n%s", s.log)
	})
}

func TestMain(m *testing.M) { testdb.Main(m) }

// stage is a handler that is mounted in a program.
type stage struct {
	*testing.T
	db    *testdb.DB
	pool  *sql.DB // of the program
	admin *sql.DB // of the pages
	pages *lockhttp.Handler
	url   string // with a slash at the end
	log   *testdb.Output
}

// onEach runs a test on each server, in a database without the rows of hashed keys, unless
// it is made by another function.
func onEach(t *testing.T, test func(t *testing.T, db *testdb.DB), made ...func(*testdb.Server, testing.TB) *testdb.DB) {
	t.Parallel()
	newDB := append(made, (*testdb.Server).OpenLeases)[0]
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) { test(t, newDB(testdb.Shared(t, engine), t)) })
}

// onOne runs a test of what the server has no part in.
func onOne(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Parallel()
	test(t, testdb.Shared(t, testdb.Engines()[0]).OpenLeases(t))
}

func open(t *testing.T, db *testdb.DB, opts ...lockhttp.Option) *stage {
	t.Helper()
	admin := db.ConnectAdmin(t, func(c *mysql.Config) { c.InterpolateParams = true })
	s := &stage{T: t, db: db, pool: db.Connect(t), admin: admin, log: new(testdb.Output)}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	var err error
	s.pages, err = lockhttp.New(s.admin, append([]lockhttp.Option{lockhttp.Log(log)}, opts...)...)
	s.must(err)
	t.Cleanup(s.pages.Close)
	mux := http.NewServeMux()
	mux.Handle("/locks/", s.pages)
	mux.Handle("/deep/er/", http.StripPrefix("/deep/er", s.pages))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(s.pages.Close)
	s.url = server.URL + "/locks/"
	return s
}

func (s *stage) must(err error) { s.Helper(); testdb.Must(s, err) }

// get returns an answer.
func (s *stage) get(path string) (int, string, http.Header) {
	s.Helper()
	answer, err := http.Get(s.url + path)
	testdb.Must(s, err)
	return s.read(answer)
}

func (s *stage) read(answer *http.Response) (int, string, http.Header) {
	s.Helper()
	defer answer.Body.Close()
	body := testdb.Got(io.ReadAll(answer.Body))(s)
	return answer.StatusCode, string(body), answer.Header
}

// together runs tests of pages, which share looks then, and ends after them.
func together[T any](s *stage, pages map[string]T, test func(s *stage, page string, wanted T)) {
	s.Run("pages", func(t *testing.T) {
		for page, wanted := range pages {
			t.Run(page, func(t *testing.T) {
				t.Parallel()
				of := *s
				of.T = t
				test(&of, page, wanted)
			})
		}
	})
}

// shows reads a page until it has all that is wanted, and returns it: the servers refresh
// what they show now and then.
func (s *stage) shows(path string, wanted ...string) string {
	s.Helper()
	for deadline := time.Now().Add(time.Minute); ; testdb.Refresh() {
		code, body, _ := s.get(path)
		missing := ""
		for _, want := range wanted {
			if !strings.Contains(body, want) {
				missing = want
			}
		}
		if code == http.StatusOK && missing == "" {
			return body
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s doesn't show %q (%d):\n%s", path, missing, code, body)
		}
	}
}

// decode reads JSON.
func (s *stage) decode(path string, to any) {
	s.Helper()
	code, body, header := s.get(path)
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" {
		s.Fatalf("%s: %d, %s", path, code, header.Get("Content-Type"))
	}
	s.must(json.Unmarshal([]byte(body), to))
}

// post sends a form as a page of this site does, and returns what it leads to.
func (s *stage) post(verb string, form url.Values, header http.Header) (int, string, http.Header) {
	s.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s.sure(func() (int, string, http.Header) {
		r := testdb.Got(http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+verb, strings.NewReader(form.Encode())))(s)
		r.Header = header.Clone()
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer, err := client.Do(r)
		testdb.Must(s, err)
		return s.read(answer)
	})
}

// posts sends a form, which must be answered so. It returns where that leads.
func (s *stage) posts(what, verb string, form url.Values, header http.Header, want int, says string) (to string) {
	s.Helper()
	code, body, answered := s.post(verb, form, header)
	testdb.ErrorIf(s, code != want || !strings.Contains(body, says), "%s is answered with %d, not %d and %q:\n%s", what, code, want, says, body)
	return answered.Get("Location")
}

// sure asks again while the answer says that the server's list of transactions is old, which other tests keep it.
func (s *stage) sure(ask func() (int, string, http.Header)) (code int, body string, header http.Header) {
	s.Helper()
	testdb.Await(time.Minute, func() bool {
		code, body, header = ask()
		return !strings.Contains(body, "list of transactions is old")
	})
	return code, body, header
}

// begin begins a transaction that ends with the test.
func (s *stage) begin() (*sql.Tx, *txlock.Scope) { s.Helper(); return s.beginOn(s.pool) }

func (s *stage) beginOn(pool *sql.DB) (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx := testdb.Got(pool.BeginTx(s.Context(), nil))(s)
	s.Cleanup(func() { _ = tx.Rollback() })
	return tx, testdb.Got(txlock.Join(s.Context(), tx))(s)
}

// lock takes a lock, and returns its transaction.
func (s *stage) lock(keys ...txlock.Key) *sql.Tx {
	s.Helper()
	tx, scope := s.begin()
	for _, key := range keys {
		s.must(testdb.Err(scope.Lock(txlock.WithLabel(s.Context(), "web-1/4711"), key)))
	}
	return tx
}

// waits lets a transaction wait for a key until the end of the test.
func (s *stage) waits(key txlock.Key) {
	s.Helper()
	patient := func(c *mysql.Config) { c.Params = map[string]string{"innodb_lock_wait_timeout": "1000"} }
	tx, scope := s.beginOn(s.db.Connect(s, patient))
	s.db.KeepWaiting(s, tx, func(ctx context.Context) error { _, err := scope.Lock(ctx, key); return err })
}

func (s *stage) manager(opts ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m := testdb.Got(lease.NewManager(s.pool, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, opts...)...))(s)
	s.Cleanup(func() {
		err := m.Close(context.Background())
		testdb.ErrorIf(s, err != nil && !errors.Is(err, txlock.ErrLost), "close the manager: %v", err)
	})
	return m
}

// acquire takes a lease until the end of the test.
func (s *stage) acquire(m *lease.Manager, key txlock.Key) {
	s.Helper()
	l := testdb.Got(m.Acquire(s.Context(), key))(s)
	s.Cleanup(func() { _ = l.Release(context.Background()) }) // which may be lost
}

package lockhttp_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestPages proves that each page and its JSON show what is held and waited for, with the
// headers that keep a page to itself, below any path.
func TestPages(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		recorder := lockhttp.NewRecorder()
		s := open(t, db, lockhttp.Events(recorder))
		ctx := t.Context()
		cart := txlock.NewFamily[string]("cart", txlock.Hashed(), txlock.Exact()).Key("a")
		s.lock(txlock.Named("order:42"), cart)
		s.waits(txlock.Named("order:42"))
		m := s.manager(lease.WithLabel("web-2/815"), lease.Observe(recorder.Observe))
		s.acquire(m, txlock.Named("report"))
		s.job(m)
		s.elect()
		s.must(testdb.Err(locksqlc.Once(ctx, s.pool, txlock.Named("payment:7"), func(*sql.Tx) error { return nil })))

		slot := fmt.Sprintf("slot %d", cart.Slot())
		together(s, map[string][]string{
			"":                     {"2 sessions waiting", "order:42", "<svg", "Time until a grant in this process", "granted"},
			"overview":             {"order:42", "failing job", "the printer is on fire"},
			"locks":                {"order:42", "web-1/4711", "exclusive", slot},
			"locks?q=ORDER":        {"order:42"},
			"locks?sort=key":       {`aria-sort="ascending"`, "order:42"},
			"leases":               {"report", "web-2/815"},
			"waits":                {"order:42", "held by session", "waits ", ", lockstep "},
			"queues":               {"order:42", "waited"},
			"jobs":                 {"nightly", "failed", "the printer is on fire", "ago: the printer"},
			"leaders":              {"scheduler", "process a"},
			"events":               {"granted", "report", "process"},
			"search?q=ord":         {"order:42", "waited for"},
			"key?key=order%3A42":   {"order:42", "web-1/4711", "waits "},
			"key?key=cart%3Aa":     {slot, "may be held for another"},
			"key?key=payment%3A7":  {"Once", "done"},
			"key?key=nightly":      {"the printer is on fire", "Last runs", "web-1:4711"},
			"key?key=nobody":       {"This key is not held"},
			"key":                  {"Which key?"},
			"../deep/er/locks":     {"order:42"},
			"../deep/er/":          {"order:42"},
			"key?slot=1":           {"slot 1", "This key is not held"},
			"key?slot=70000":       {"Which key?"},
			"locks?page=77&sort=x": {"order:42"},
		}, func(s *stage, page string, wanted []string) {
			body := s.shows(page, wanted...)
			testdb.ErrorIf(s, page == "locks?q=ORDER" && strings.Contains(body, slot), "a search for order finds the slot of a cart")
			if strings.Contains(body, "<style") || strings.Contains(body, " style=") || strings.Contains(body, "<script>") || strings.Contains(body, "http://") || strings.Contains(body, "https://") {
				s.Errorf("%s has something inline, or from outside", page)
			}
		})

		var locks ops.Picture
		if !testdb.Await(time.Minute, func() bool { // the number of waiters is null where a look doesn't know the waits
			locks = ops.Picture{}
			s.decode("locks.json?q=order", &locks)
			return len(locks.Locks) == 1 && locks.Locks[0].Key == "order:42" && locks.Locks[0].Waiters == 1 && locks.Sessions[locks.Locks[0].Session].User != "" && !locks.Taken.IsZero()
		}) {
			t.Errorf("locks.json has %+v", locks)
		}
		together(s, map[string]string{
			"overview.json": `"locks": `, "?format=json": `"samples": `, "leases.json": `"leases": `, "waits?format=json": `"waits": `, "queues.json": `"queues": `,
			"jobs.json": `"state": "failed"`, "leaders.json": `"term": `, "events.json": `"what": "granted"`, "search.json?q=o": `"found": `, "key.json?key=report": `"token": `, "key.json": `"gaps": `,
		}, func(s *stage, page, want string) {
			var any map[string]json.RawMessage
			s.decode(page, &any)
			s.shows(page, want)
		})

		for page, want := range map[string]int{"": 200, "style.css": 200, "live.js": 200, "nothing": 404, "page.css": 404, "nothing.json": 404} {
			code, _, header := s.get(page)
			testdb.Equal(t, "the answer to "+page, code, want)
			policy := header.Get("Content-Security-Policy")
			if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "script-src 'self'") || strings.Contains(policy, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s has the headers %v", page, header)
			}
		}
		if code, _, header := s.post("locks", nil, http.Header{}); code != http.StatusMethodNotAllowed || header.Get("Allow") == "" {
			t.Errorf("POST to a page is answered with %d", code)
		}
		code, _, _ := s.get("release")
		testdb.ErrorIf(t, code != http.StatusMethodNotAllowed, "GET of release is answered with %d", code)
	}, (*testdb.Server).Open)
}

// job runs a job that fails.
func (s *stage) job(m *lease.Manager) {
	s.Helper()
	jobs := testdb.Got(job.New(s.pool, m, job.InstanceName("web-1:4711")))(s)
	fire := errors.New("the printer is on fire")
	if _, err := jobs.Tick(s.Context(), txlock.Named("nightly"), time.Now().Add(-time.Minute), func(context.Context, time.Time) error { return fire }); !errors.Is(err, fire) {
		s.Fatalf("the job fails with %v", err)
	}
}

// elect has one process lead, and one stand by.
func (s *stage) elect() {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	ended, leads := make(chan error, 2), make(chan struct{}, 2)
	for _, name := range []string{"process a", "process a2"} {
		e := testdb.Got(elect.New(s.manager(lease.WithLabel(name)), txlock.Named("scheduler"), elect.InstanceName(name)))(s)
		go func() {
			ended <- e.Run(ctx, func(ctx context.Context, _ *elect.Term) error { leads <- struct{}{}; <-ctx.Done(); return nil })
		}()
	}
	<-leads
	s.Cleanup(func() { cancel(); _, _ = <-ended, <-ended })
}

// TestBusinessDataIsHidden proves that a page shows the first word of a statement only,
// and keys and notes by their masks, also in JSON, addresses and events.
func TestBusinessDataIsHidden(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		recorder := lockhttp.NewRecorder()
		mask := func(prefix string) func(string) string {
			return func(text string) string { return prefix + fmt.Sprint(len(text)) }
		}
		s := open(t, db, lockhttp.Events(recorder), lockhttp.MaskKeys(mask("key-of-")), lockhttp.MaskNotes(mask("note-of-")))
		table := db.CreateTable(t, "people", "id BIGINT PRIMARY KEY, name VARCHAR(99)")
		tx := s.lock(txlock.Named("order:secret"))
		s.waits(txlock.Named("order:secret"))
		s.must(testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1, 'business secret')")))
		m := s.manager(lease.WithLabel("the secret note"), lease.Observe(recorder.Observe))
		s.acquire(m, txlock.Named("the secret report"))
		s.job(m)
		together(s, map[string]string{
			"": "key-of-12", "locks": "key-of-12", "leases": "note-of-15", "waits": "key-of-12", "queues": "key-of-12", "jobs": "note-of-22", "events": "key-of-17",
			"search?q=key": "key-of-17", "key?key=key-of-12": "waits ", "locks.json": "key-of-12", "key.json?key=key-of-12": "note-of-10", "overview.json": "samples",
		}, func(s *stage, page, wanted string) {
			body := s.shows(page, wanted)
			if strings.Contains(body, "secret") || strings.Contains(body, "printer") || strings.Contains(body, "web-1/4711") {
				s.Errorf("%s shows what is hidden:\n%s", page, body)
			}
		})
		if db.Engine() == testdb.MySQL { // MariaDB doesn't tell the last statement
			s.shows("locks", "INSERT …")
		}
		s.shows("key?key=order:secret", "key-of-12", "waits ") // by who knows it
	})
}

// TestMany proves that tables of 10,000 locks are pages of 100, and that JSON has all.
func TestMany(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		n := testdb.Long(1_000, 10_000)
		_, scope := s.begin()
		keys := leasetest.Many(n)
		s.must(testdb.Err(scope.LockAll(t.Context(), keys...)))
		last := fmt.Sprintf("%d to %d of %d", n-99, n, n)
		body := s.shows(fmt.Sprintf("locks?sort=key&q=many&page=%d", n/100), last)
		rows := strings.Count(body, "<tr role=\"row\" id=")
		testdb.ErrorIf(t, rows != 100 || len(body) > 200_000, "a page has %d rows and %d bytes", rows, len(body))
		s.shows("locks?q=many", "1 to 100 of")
		var all struct{ Locks []ops.Lock }
		s.decode("locks.json?q=many", &all)
		testdb.ErrorIf(t, len(all.Locks) < n, "the JSON has %d locks", len(all.Locks))
	})
}

// TestOnePictureForAll proves that many viewers share one look, at most one a second, and that Close ends all of it.
func TestOnePictureForAll(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		began := time.Now()
		const viewers = 20
		times, ended := make(chan string, 1000), make(chan error, viewers)
		pages := []string{"", "locks", "leases", "waits", "queues"}
		for i := range viewers {
			go func() { ended <- s.live(pages[i%len(pages)], times) }()
		}
		taken := make(map[string]int)
		for enough := 0; enough < 3; {
			select {
			case at := <-times:
				if taken[at]++; taken[at] == viewers {
					enough++
				}
			case err := <-ended:
				t.Fatalf("a stream has ended: %v", err)
			}
		}
		most := int(time.Since(began)/time.Second) + 2
		testdb.ErrorIf(t, len(taken) > most, "%d viewers have caused %d looks, more than %d", viewers, len(taken), most)
		s.pages.Close()
		for range viewers {
			s.must(<-ended)
		}
		code, body, _ := s.get("locks")
		testdb.ErrorIf(t, code != http.StatusServiceUnavailable || !strings.Contains(body, "closed"), "after Close a page is answered with %d", code)
		s.pages.Close() // again
	})
}

// summary is an event of a stream, with the time of its look.
var summary = regexp.MustCompile(`^data: <p class="summary">.*<time>([^<]*)</time>`)

// live tells of the looks of a page's stream, until its end.
func (s *stage) live(page string, times chan<- string) error {
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+page, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "text/event-stream")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	testdb.Equal(s, "the type of a stream", answer.Header.Get("Content-Type"), "text/event-stream")
	lines := bufio.NewScanner(answer.Body)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		if event := summary.FindStringSubmatch(lines.Text()); event != nil {
			times <- event[1]
		}
	}
	return lines.Err()
}

var wants = testdb.Wants

// nowhere is a pool of a server that doesn't answer.
func nowhere(t *testing.T) *sql.DB {
	t.Helper()
	return testdb.Pool(t, &mysql.Config{Net: "tcp", Addr: "127.0.0.1:1", User: "nobody", DBName: "none", Timeout: time.Second, AllowNativePasswords: true})
}

// TestNew proves that what is missing is said before anything is served.
func TestNew(t *testing.T) {
	t.Parallel()
	_, err := lockhttp.New(nil)
	testdb.Fails(t, "New(nil)", err, "needs a *sql.DB")
	pool := nowhere(t)
	for name, option := range map[string]lockhttp.Option{
		"MaskKeys": lockhttp.MaskKeys(nil), "MaskNotes": lockhttp.MaskNotes(nil), "Authorize": lockhttp.Authorize(nil), "Log": lockhttp.Log(nil), "Events": lockhttp.Events(nil),
	} {
		_, err := lockhttp.New(pool, option)
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), name), "%s(nil): %v", name, err)
	}
}

// unflushed hides Flush.
type unflushed struct{ http.ResponseWriter }

// TestServerIsDown proves that pages and JSON say so, by their codes, too; that the answer to HEAD has an end, also
// for events; that no template is served; and that a browser is told to poll where what wraps the handler keeps back
// what is written.
func TestServerIsDown(t *testing.T) {
	t.Parallel()
	pages := testdb.Got(lockhttp.New(nowhere(t)))(t)
	defer pages.Close()
	answers := func(method, path, accept string, code int, says string) {
		t.Helper()
		ctx := leasetest.Limited(t, time.Minute)
		r, answer := httptest.NewRequestWithContext(ctx, method, path, nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		w := http.ResponseWriter(answer)
		if code == http.StatusNotImplemented {
			w = unflushed{w}
		}
		pages.ServeHTTP(w, r)
		testdb.ErrorIf(t, answer.Code != code || !strings.Contains(answer.Body.String(), says) || ctx.Err() != nil,
			"%s %s is answered with %d, not %d: %s, %v", method, path, answer.Code, code, answer.Body, ctx.Err())
	}
	const page, events = "text/html", "text/event-stream"
	answers(http.MethodGet, "/", page, http.StatusBadGateway, "The server doesn&#39;t answer")
	answers(http.MethodGet, "/locks.json", page, http.StatusBadGateway, `"error": "The server doesn't answer`)
	answers(http.MethodHead, "/locks", events, http.StatusBadGateway, "")
	answers(http.MethodGet, "/page.html", page, http.StatusNotFound, "")
	answers(http.MethodGet, "/style.css", page, http.StatusOK, "")
	answers(http.MethodGet, "/locks/", events, http.StatusNotImplemented, "")
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
		testdb.Says(t, "the log", s.log.String(), "slice bounds out of range")
	})
}

// TestLineBreaksInKeys proves that a key with line breaks, which browsers change in the fields
// of a form, is released by its page.
func TestLineBreaksInKeys(t *testing.T) {
	onOne(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db, lockhttp.Authorize(operator))
		m := s.manager()
		for _, name := range []string{"a\nb", "a\r\nb", "a\rb\n"} {
			held := testdb.Got(m.Acquire(t.Context(), txlock.Named(name)))(s)
			page := "key?" + url.Values{"key": {name}}.Encode()
			var release url.Values
			testdb.Await(time.Minute, func() bool {
				release = s.form(page, "release", "", alice)
				return release != nil
			})
			for field, values := range release {
				testdb.ErrorIf(t, field != "key" && strings.ContainsAny(values[0], "\r\n"), "the field %s has a line break", field)
			}
			key := url.Values{"key": release["key"]}
			delete(release, "key")
			code, body, _ := s.post("release?"+key.Encode(), release, alice)
			testdb.FatalIf(t, code != http.StatusSeeOther, "%q: %d %s", name, code, body)
			wants(t, fmt.Sprintf("%q", name), held.Renew(t.Context()), txlock.ErrLost)
		}
	})
}

// TestUnseen proves that a page whose user can't see all locks doesn't say that there are none, and that
// one whose user can says so without a condition.
func TestUnseen(t *testing.T) {
	onEach(t, func(t *testing.T, db *testdb.DB) {
		s := open(t, db)
		few := testdb.Got(lockhttp.New(db.Connect(t)))(s) // without PROCESS
		t.Cleanup(few.Close)
		const condition = "as far as can be seen"
		asFew := func(path string) string {
			answer := httptest.NewRecorder()
			few.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+path, nil))
			return answer.Body.String()
		}
		for path, none := range map[string]string{"": "Nothing: no session waits", "locks": "No locks are held", "queues": "No session waits", "waits": "No session waits", "key?key=order:42": "This key is not held"} {
			if body := s.shows(path, none); strings.Contains(body, condition) && !strings.Contains(body, "Not seen") {
				t.Errorf("the page %q of an administrator is:\n%s", path, body)
			}
			body := asFew(path)
			at := strings.Index(body, none)
			if at < 0 || !strings.Contains(body[at:at+strings.IndexByte(body[at:], '<')], condition) || !strings.Contains(body, "waiting, "+condition) || !strings.Contains(body, "GRANT PROCESS") {
				t.Errorf("the page %q without PROCESS is:\n%s", path, body)
			}
		}
		for path, none := range map[string]string{"leases": "No leases are held.", "leaders": "No process leads.", "jobs": "There are no jobs."} { // which need less
			testdb.Says(t, path+" without PROCESS", asFew(path), none)
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
			testdb.ErrorIf(t, code != http.StatusBadGateway || !strings.Contains(body, `"error": "The server doesn't answer. This was seen`) || !strings.Contains(body, `"taken"`),
				"the JSON of %s is answered with %d: %s", page, code, body)
			_, body, _ = s.get(page + "?key=order:42")
			testdb.Says(t, page, body, "The server doesn&#39;t answer. This was seen")
		}
	})
}

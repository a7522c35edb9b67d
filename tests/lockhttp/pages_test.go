package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/tests/lockhttp/browser"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func onEach(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	for _, engine := range testdb.Engines() { // one after the other: a browser needs a core
		t.Run(string(engine), func(t *testing.T) { test(t, engine) })
	}
}

// onOne runs a test of what the server has no part in.
func onOne(t *testing.T, test func(t *testing.T, engine testdb.Engine)) {
	engines := testdb.Engines()
	test(t, engines[len(engines)-1])
}

// every is what all pages show.
var every = []string{"", "locks", "leases", "waits", "queues", "jobs", "leaders", "events", "search?q=order", "key?key=order%3A42"}

// TestPagesInBrowser proves that a browser shows every page, without a violation of the
// policy or an error of a script, and that each has what a screen reader needs; that the
// search leads to a key by the keyboard; and that a key which is a script is a text.
func TestPagesInBrowser(t *testing.T) {
	onEach(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain)
		const evil = `<script>document.title="owned"</script><img src=x onerror="document.title='owned'">`
		s.lock(txlock.Named("order:42"), txlock.Named(evil), txlock.Named("order:\x1b[2J"))
		tx, scope := s.begin()
		s.wait(tx, scope, txlock.Named("order:42"))
		held, err := s.manager(lease.WithLabel(evil)).Acquire(t.Context(), txlock.Named("report"))
		s.must(err)
		defer func() { _ = held.Release(context.WithoutCancel(t.Context())) }()

		messages := browser.Console(s.tab, t)
		for _, page := range every {
			s.open(page)
			s.becomes("waiting", "Live")
			for _, needed := range []string{"header", "nav[aria-label]", "main h1", "form[role=search] label[for=q]", "[role=status][aria-live=polite]", "html[lang]", ".skip[href='#main']"} {
				if !eval[bool](s, fmt.Sprintf("!!document.querySelector(%q)", needed)) {
					t.Errorf("%q has no %s", page, needed)
				}
			}
			if wrong := eval[[]string](s, `[...document.querySelectorAll("table")].filter(t => !t.caption || [...t.rows].some(r => !r.querySelector("th[scope]"))).map(t => t.outerHTML)`); len(wrong) > 0 {
				t.Errorf("%q has tables without a caption or headers: %s", page, wrong)
			}
			if eval[string](s, "document.title") == "owned" || eval[bool](s, `!!document.querySelector("#live script, #live img")`) {
				t.Errorf("on %q a key is a script", page)
			}
		}
		s.open("locks")
		s.becomes(strconv.Quote(evil), `order:\x1b[2J`)
		s.open("leases")
		s.becomes(evil)
		s.do(focus("#q"), chromedp.KeyEvent("order:42\r"))
		s.becomes("Keys that are held")
		s.do(focus("#found-section a"), chromedp.KeyEvent("\r"))
		s.becomes("Transaction locks of this key")
		if title := eval[string](s, "document.title"); !strings.HasPrefix(title, "order:42 ") {
			t.Errorf("the search leads to %q", title)
		}
		if wrong := messages(); len(wrong) > 0 {
			t.Errorf("the browser complains: %q", wrong)
		}
	})
}

// TestFirstScreen proves that the overview begins with what needs a person, that its charts have
// axes and, by the keyboard, numbers, and that they stay open while the page is live.
func TestFirstScreen(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain)
		s.open("")
		s.becomes("Nothing: no session waits for long", "Live")
		s.contended(txlock.Named("order:42"))
		s.becomes("1 session waiting; held by session", "order:42")
		leasetest.Equal(t, "how the first screen begins", eval[string](s, `document.querySelector("main section h2").textContent`), "Needs a person")
		if wrong := eval[int](s, `[...document.querySelectorAll("figure svg")].filter(f => f.querySelectorAll("text").length !== 7 || !f.getAttribute("aria-label")).length`); wrong > 0 {
			t.Errorf("%d charts have no axes", wrong)
		}
		s.do(focus("#chart-waiting-numbers summary"), chromedp.KeyEvent("\r"))
		s.becomes("the most in ten minutes", "10–0 min ago")
		s.updates()
		if !eval[bool](s, `document.getElementById("chart-waiting-numbers").open`) {
			t.Error("an update has closed the numbers")
		}
		s.open("events")
		s.becomes(" s ago")
		if exact := eval[string](s, `document.querySelector("tbody time").title`); !strings.HasSuffix(exact, " UTC") {
			t.Errorf("the exact time is %q", exact)
		}
	})
}

// TestLive proves that a page shows what changes without being loaded again, while the focus
// and what is typed stay, and that it can be paused.
func TestLive(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain)
		s.open("locks")
		s.staysLive("Live")
		if strings.Contains(s.text(), "every 2 seconds") {
			t.Error("no events come through")
		}
		s.do(click("#pause"))
		s.becomes("Paused")
		s.contended(txlock.Named("order:43"))
		s.do(click("#pause"))
		s.becomes("order:43")
	})
}

// TestFocusStays proves that the focus stays on a row while rows before it come and go, so that
// the next key that is pressed does what it is pressed for.
func TestFocusStays(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain)
		m := s.manager()
		acquire := func(name string) *lease.Lease {
			held, err := m.Acquire(t.Context(), txlock.Named(name))
			s.must(err)
			t.Cleanup(func() { _ = held.Release(context.WithoutCancel(t.Context())) })
			return held
		}
		first := acquire("report:1")
		acquire("report:3")
		s.open("leases")
		s.becomes("report:1", "report:3", "Live")
		s.do(focus(`a[href$="report%3A3"]`))
		acquire("report:2")
		s.becomes("report:2")
		s.must(first.Release(t.Context()))
		if !testdb.Await(2*time.Minute, func() bool { return !strings.Contains(s.text(), "report:1") }) {
			t.Fatalf("the page goes on to show what is released:\n%s", s.text())
		}
		if focused := eval[string](s, "document.activeElement.innerText"); focused != "report:3" {
			t.Fatalf("the focus is on %q", focused)
		}
		s.do(chromedp.KeyEvent("\r"))
		s.becomes("Leases, readers and permits of this key")
	})
}

// TestPolling proves the same where no events come through, and that a lost connection is
// told and found again.
func TestPolling(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		var down atomic.Bool
		s := visit(t, engine, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if down.Load() || strings.Contains(r.Header.Get("Accept"), "event-stream") {
					http.Error(w, "not today", http.StatusBadGateway)
					return
				}
				h.ServeHTTP(w, r)
			})
		})
		s.open("locks")
		s.staysLive("Live, every 2 seconds")
		down.Store(true)
		s.becomes("Not connected. What is below was seen")
		if top := eval[float64](s, `document.getElementById("lost").getBoundingClientRect().top`); top < 0 || top > 400 || !eval[bool](s, `document.getElementById("live").classList.contains("old")`) {
			t.Errorf("a lost connection can be missed: it is told %v pixels below the top", top)
		}
		for _, scheme := range []string{"light", "dark"} {
			browser.Colours(s.tab, t, scheme)
			if got := s.contrast(`document.getElementById("lost")`, `document.getElementById("lost")`); got < 4.5 {
				t.Errorf("%s: the contrast of a lost connection is %v", scheme, got)
			}
		}
		down.Store(false)
		s.becomes("Live, every 2 seconds")
		if eval[bool](s, `document.getElementById("lost").offsetHeight > 0 || document.getElementById("live").classList.contains("old")`) {
			t.Error("a page that is live again says that it isn't connected")
		}
	})
}

// staysLive takes a lock, which the open page shows without being loaded again.
func (s *site) staysLive(state string) {
	s.Helper()
	s.becomes("No locks are held.", state)
	s.do(focus("#q"), chromedp.KeyEvent("ord"))
	eval[bool](s, "window.mark = true")
	s.contended(txlock.Named("order:42"))
	s.becomes("order:42", "web-1/4711")
	if !eval[bool](s, `window.mark && document.activeElement.id === "q" && document.activeElement.value === "ord"`) {
		s.Error("the page was loaded again, or has lost the focus or what was typed")
	}
}

// TestActionsInBrowser proves that who may not release sees no button, that who may
// releases a lease by the keyboard and ends a transaction, and that a form on another site
// does nothing.
func TestActionsInBrowser(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		var allowed atomic.Bool
		s := visit(t, engine, plain, lockhttp.Authorize(func(*http.Request, lockhttp.Action) (string, error) {
			if !allowed.Load() {
				return "alice", errors.New("not on duty")
			}
			return "alice", nil
		}))
		tx := s.lock(txlock.Named("order:42")) // before the first look, which finds it
		held, err := s.manager().Acquire(t.Context(), txlock.Named("report"))
		s.must(err)
		s.open("key?key=report")
		s.becomes("Leases, readers", "Live")
		if eval[bool](s, `!!document.querySelector("details, form[method=post]")`) {
			t.Error("who may not release sees a form")
		}
		allowed.Store(true)
		s.becomes("What you may do")
		evil := s.elsewhere(fmt.Sprintf(`<form id="f" method="post" action=%q><input name="key" value="report"><input name="lease" value="true"><input name="slot" value="0"><input name="session" value="0"><input name="token" value="%d"><button id="b">Win</button></form>`,
			s.url+"release", held.Token()))
		s.do(chromedp.Navigate(evil), chromedp.Click("#b"))
		s.becomes("Another site has caused this request")
		if err := held.Err(); err != nil || !strings.Contains(s.log.String(), "release was not done") {
			t.Fatalf("another site releases the lease: %v, %s", err, s.log)
		}

		s.open("key?key=report")
		s.becomes("Ask the holders", "Live")
		s.do(focus(`details[id^="release"] summary`), chromedp.KeyEvent("\r"))
		s.becomes("gets ErrLost from its next renewal")
		s.do(focus(`details[id^="release"] button`), chromedp.KeyEvent("\r"))
		s.becomes("Released.")
		leasetest.Wants(t, "the lease that was released is renewed", held.Renew(t.Context()), txlock.ErrLost)
		s.open("key?key=order%3A42")
		s.becomes("End session")
		s.do(click(`details[id^="release"] summary`), chromedp.Click(`details[id^="release"] button`))
		s.becomes("Released.")
		leasetest.Fails(t, "the session that was to be ended", second(tx.ExecContext(context.WithoutCancel(t.Context()), "DO 1")))
		leasetest.Says(t, "the log", s.log.String(), `msg="lockhttp: release" who=alice`)
	})
}

// TestJobsInBrowser proves that the first screen has a job that fails, that the table of jobs fits a
// telephone with its forms, that who may pauses a job by the keyboard while the page is live, and
// that its form has a contrast of 4.5 at least in both schemes.
func TestJobsInBrowser(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain, lockhttp.Authorize(func(*http.Request, lockhttp.Action) (string, error) { return "alice", nil }))
		m := s.manager()
		jobs, err := job.New(s.pool, m, job.Log(nil))
		s.must(err)
		key, broken := txlock.Named("reports:"+strings.Repeat("a-long-name-", 8)), errors.New("the printer is on fire")
		if _, err := jobs.Tick(t.Context(), key, time.Now().Add(-time.Minute), func(context.Context, time.Time) error { return broken }); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		s.open("")
		s.becomes("failing job", "the printer is on fire", "Live")
		for _, scheme := range []string{"light", "dark"} {
			browser.Colours(s.tab, t, scheme)
			s.do(chromedp.EmulateViewport(360, 740))
			s.open("jobs")
			s.becomes("failed", "Live")
			s.do(focus(`details[id^="pause"] summary`), chromedp.KeyEvent("\r"))
			s.becomes("no process starts a tick")
			if wide := eval[int](s, "document.documentElement.scrollWidth"); wide > 360 {
				t.Errorf("%s: the table of jobs is %d wide", scheme, wide)
			}
			if got := s.contrast(`document.querySelector("tr.late td")`, `document.body`); got < 4.5 {
				t.Errorf("%s: the contrast of a job that fails is %v", scheme, got)
			}
		}
		s.updates()
		if !eval[bool](s, `document.querySelector('details[id^="pause"]').open`) {
			t.Error("an update has closed the form")
		}
		s.do(focus(`details[id^="pause"] button`), chromedp.KeyEvent("\r"))
		s.becomes("Paused.", "paused by alice")
		status, err := jobs.Status(t.Context(), key)
		s.must(err)
		if status.PausedBy != "alice" {
			t.Errorf("it is %+v", status)
		}
		s.must(jobs.Close(t.Context()))
	})
}

// TestManyRows proves that 10,000 locks don't stall a page: it stays live, and turns.
func TestManyRows(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain)
		n := testdb.Long(2_000, 10_000)
		_, scope := s.begin()
		family := txlock.NewFamily[int]("many")
		var keys []txlock.Key
		for i := range n {
			keys = append(keys, family.Key(i+1))
		}
		s.must(second(scope.LockAll(t.Context(), keys...)))
		s.open("locks?sort=key&q=many")
		s.becomes(fmt.Sprintf("1 to 100 of %d", n), "Live")
		leasetest.Equal(t, "rows", eval[int](s, `document.querySelectorAll("tbody tr").length`), 100)
		eval[bool](s, `window.slowest = 0, new PerformanceObserver(l => { for (const e of l.getEntries()) window.slowest = Math.max(window.slowest, e.duration); }).observe({type: "longtask"}), true`)
		s.updates()
		if slowest := eval[float64](s, "window.slowest"); slowest > 5000 {
			t.Errorf("an update keeps the browser busy for %v ms", slowest)
		}
		s.do(chromedp.Click(`nav[aria-label=Rows] li:last-child a`))
		s.becomes(fmt.Sprintf("%d to %d of %d", n-99, n, n))
	})
}

// TestNarrowAndDark proves that pages fit a telephone without scrolling sideways, that they
// follow the system's colours, and that texts can be told from their ground in both.
func TestNarrowAndDark(t *testing.T) {
	onOne(t, func(t *testing.T, engine testdb.Engine) {
		s := visit(t, engine, plain)
		s.lock(txlock.Named("order:42"), txlock.Named(strings.Repeat("a-long-key:", 20)))
		s.contended(txlock.Named("order:43"))
		for _, scheme := range []string{"light", "dark"} {
			browser.Colours(s.tab, t, scheme)
			s.do(chromedp.EmulateViewport(360, 740))
			for _, page := range every {
				s.open(page)
				if wide := eval[int](s, "document.documentElement.scrollWidth"); wide > 360 {
					t.Errorf("%q is %d wide", page, wide)
				}
			}
			s.open("locks")
			s.becomes("order:43")
			label := eval[string](s, `getComputedStyle(document.querySelector("td"), "::before").content`)
			leasetest.Equal(t, "the label of a cell of a narrow table", label, `"Mode"`)
			contrast, dark := s.contrast("document.body", "document.body"), s.light("document.body", "backgroundColor") < s.light("document.body", "color")
			if contrast < 7 || dark != (scheme == "dark") {
				t.Errorf("%s: the contrast is %v, the ground is dark: %t", scheme, contrast, dark)
			}
		}
	})
}

// updates waits until the page has been updated.
func (s *site) updates() {
	s.Helper()
	const shown = `document.querySelector(".summary time").textContent`
	if at := eval[string](s, shown); !testdb.Await(2*time.Minute, func() bool { return eval[string](s, shown) != at }) {
		s.Error("the page stands still")
	}
}

// light returns how light a color of an element is, from 0 to 1.
func (s *site) light(element, property string) float64 {
	s.Helper()
	return eval[float64](s, fmt.Sprintf(`(c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; })(getComputedStyle(%s).%s)`, element, property))
}

// contrast returns that of a text and its ground.
func (s *site) contrast(text, ground string) float64 {
	s.Helper()
	a, b := s.light(text, "color"), s.light(ground, "backgroundColor")
	return (max(a, b) + .05) / (min(a, b) + .05)
}

// focus and click do so in the page itself, once the element is there: between two calls of
// chromedp's own the page may have put another in its place. The page must stay.
func focus(selector string) chromedp.Action[chromedp.Void] { return act(selector, "focus") }

func click(selector string) chromedp.Action[chromedp.Void] { return act(selector, "click") }

func act(selector, method string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](fmt.Sprintf("%s && (e => !!e && (e.%s(), true))(document.querySelector(%q))", settled, method, selector))
}

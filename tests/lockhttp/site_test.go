// Package lockhttp tests the pages of lockhttp in a real browser, Chromium without a window.
// It is a module of its own, so that nobody else compiles what drives the browser.
package lockhttp_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/chromedp"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/tests/lockhttp/browser"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// site is a program with the pages, and the browser that reads them.
type site struct {
	*testing.T
	db       *testdb.DB
	pool     *sql.DB
	recorder *lockhttp.Recorder
	url      string
	tab      context.Context
	log      *testdb.Output // of the handler
}

// visit makes a site and opens a browser.
func visit(t *testing.T, engine testdb.Engine, around func(http.Handler) http.Handler, opts ...lockhttp.Option) *site {
	t.Helper()
	s := &site{T: t, db: testdb.Shared(t, engine).OpenLeases(t), recorder: lockhttp.NewRecorder(), log: new(testdb.Output)}
	s.pool = s.db.Connect(t)
	pages := testdb.Got(lockhttp.New(s.db.Admin(), append([]lockhttp.Option{lockhttp.Events(s.recorder), lockhttp.Log(slog.New(slog.NewTextHandler(s.log, nil)))}, opts...)...))(s)
	mux := http.NewServeMux()
	mux.Handle("/locks/", around(pages))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(pages.Close)
	s.url = server.URL + "/locks/"
	s.tab = browser.Open(t)
	return s
}

func plain(h http.Handler) http.Handler { return h }

func (s *site) must(err error) { s.Helper(); testdb.Must(s, err) }

func (s *site) do(steps ...chromedp.Action[chromedp.Void]) {
	s.Helper()
	browser.Do(s.tab, s.T, steps...)
}

// eval returns the value of an expression.
func eval[T any](s *site, script string) T {
	s.Helper()
	return browser.Get(s.tab, s.T, chromedp.Evaluate[T](script))
}

func (s *site) open(page string) {
	s.Helper()
	s.do(chromedp.Navigate(s.url + page))
}

// settled is true on a page that is loaded and painted. Before that Chromium drops what is
// typed, and what is asked may be lost with the page before.
const settled = `performance.getEntriesByType("navigation").some(n => n.loadEventEnd > 0) && performance.getEntriesByType("paint").length > 0`

// text returns what the page shows, which is nothing between two pages.
func (s *site) text() string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.tab, browser.Limit)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](settled+` ? document.body.innerText : ""`))
	if gone := (*cdproto.Error)(nil); errors.As(err, &gone) && slices.ContainsFunc(betweenPages, func(said string) bool { return strings.HasPrefix(gone.Message, said) }) {
		return ""
	}
	s.must(err)
	return text
}

// betweenPages is what Chromium says of a page that it has left, before and after it was asked.
var betweenPages = []string{"Cannot find context", "Inspected target navigated or closed"}

// becomes waits until the page has a text, without loading it again.
func (s *site) becomes(wanted ...string) {
	s.Helper()
	text := ""
	for _, want := range wanted {
		if !testdb.Await(2*time.Minute, func() bool {
			text = s.text()
			return strings.Contains(text, want)
		}) {
			s.Fatalf("the page doesn't become %q:\n%s", want, text)
		}
	}
}

// contended takes a lock, for which another transaction waits: MariaDB lists such ones at
// once, and others when it has the time to look for them.
func (s *site) contended(key txlock.Key) {
	s.Helper()
	s.lock(key)
	tx, scope := s.begin()
	s.wait(tx, scope, key)
}

// lock takes locks in a transaction that ends with the test, unless it is ended before.
func (s *site) lock(keys ...txlock.Key) *sql.Tx {
	s.Helper()
	tx, scope := s.begin()
	s.must(txlock.Ensure(s.Context(), s.pool, keys...))
	for _, key := range keys {
		s.must(testdb.Err(scope.Lock(txlock.WithLabel(s.Context(), "web-1/4711"), key)))
	}
	return tx
}

func (s *site) begin() (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx := testdb.Got(s.pool.BeginTx(s.Context(), nil))(s)
	s.Cleanup(func() { _ = tx.Rollback() })
	return tx, testdb.Got(txlock.Join(s.Context(), tx, txlock.Observe(s.recorder.Observe)))(s)
}

// wait lets a transaction wait for a key until the end of the test.
func (s *site) wait(tx *sql.Tx, scope *txlock.Scope, key txlock.Key) {
	s.Helper()
	s.db.KeepWaiting(s, tx, func(ctx context.Context) error { _, err := scope.Lock(ctx, key); return err })
}

func (s *site) manager(opts ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m := testdb.Got(lease.NewManager(s.pool, append(opts, lease.PurgeEvery(0, time.Hour), lease.Observe(s.recorder.Observe))...))(s)
	s.Cleanup(func() { _ = m.Close(context.Background()) }) // what was released by force is lost
	return m
}

// elsewhere serves a page on another origin, and returns its address.
func (s *site) elsewhere(page string) string {
	s.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(page)) // or the browser has gone
	}))
	s.Cleanup(server.Close)
	return strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
}

var update = flag.Bool("update", false, "write docs/lockhttp-*.png, after some minutes of work for the charts")

// TestScreenshots makes the pictures of the documentation, which are small files.
func TestScreenshots(t *testing.T) {
	s := visit(t, one(), plain)
	m := s.manager(lease.WithLabel("web-2/815: nightly report"))
	report := testdb.Got(m.Acquire(lease.WithOwner(t.Context(), "web-2/815"), txlock.Named("report")))(s)
	defer func() { _ = report.Release(context.WithoutCancel(t.Context())) }()
	s.open("")
	if *update {
		s.work(3 * time.Minute)
	}
	s.lock(txlock.Named("order:42"))
	middle, scope := s.begin()
	s.must(testdb.Err(scope.Lock(txlock.WithLabel(t.Context(), "web-2/815"), txlock.Named("order:77"))))
	s.wait(middle, scope, txlock.Named("order:42"))
	for range 2 {
		tx, scope := s.begin()
		s.wait(tx, scope, txlock.Named("order:77"))
	}
	for _, shot := range []struct {
		name, page, scheme, shows string
		width, height             int64
	}{
		{"overview", "", "light", "order:77", 1100, 800},
		{"waits-dark", "waits", "dark", "order:77", 1100, 500},
		{"narrow", "key?key=order%3A42", "light", "web-1/4711", 360, 740},
	} {
		browser.Colours(s.tab, t, shot.scheme)
		s.do(chromedp.EmulateViewport(shot.width, shot.height))
		s.open(shot.page)
		s.becomes(shot.shows, "Live")
		picture := browser.Get(s.tab, s.T, chromedp.FullScreenshot(100))
		config := testdb.Got(png.DecodeConfig(bytes.NewReader(picture)))(s)
		testdb.ErrorIf(t, int64(config.Width) != shot.width || int64(config.Height) < shot.height/2 || len(picture) > 300_000,
			"%s has %d by %d pixels, and %d bytes", shot.name, config.Width, config.Height, len(picture))
		if *update {
			s.must(os.WriteFile(filepath.Join("..", "..", "docs", "lockhttp-"+shot.name+".png"), picture, 0o644))
		}
	}
}

// work takes locks, so that the charts have something to draw.
func (s *site) work(during time.Duration) {
	s.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); {
		busy := time.Duration(1+time.Now().Unix()/20%4) * 20 * time.Millisecond
		tx, scope := s.begin()
		s.must(testdb.Err(scope.Lock(s.Context(), txlock.Named("stock:7"))))
		time.Sleep(busy) // the work
		s.must(tx.Commit())
	}
}

// one is an engine for a test of what the server has no part in: MySQL, if it is there, which tells more.
func one() testdb.Engine { return testdb.Engines()[len(testdb.Engines())-1] }

// every is what all pages show.
var every = []string{"", "locks", "leases", "waits", "queues", "jobs", "leaders", "events", "search?q=order", "key?key=order%3A42"}

// TestPagesInBrowser proves that a browser shows every page, without a violation of the policy or an error of a script, and with what a
// screen reader needs; that the search leads to a key by the keyboard; and that a key which is a script is a text.
func TestPagesInBrowser(t *testing.T) {
	for _, engine := range testdb.Engines() { // one after the other: a browser needs a core
		t.Run(string(engine), func(t *testing.T) {
			s := visit(t, engine, plain)
			const evil = `<script>document.title="owned"</script><img src=x onerror="document.title='owned'">`
			s.lock(txlock.Named("order:42"), txlock.Named(evil), txlock.Named("order:\x1b[2J"))
			tx, scope := s.begin()
			s.wait(tx, scope, txlock.Named("order:42"))
			held := testdb.Got(s.manager(lease.WithLabel(evil)).Acquire(t.Context(), txlock.Named("report")))(s)
			defer func() { _ = held.Release(context.WithoutCancel(t.Context())) }()

			messages := browser.Console(s.tab, t)
			for _, page := range every {
				s.open(page)
				s.becomes("waiting", "Live")
				for _, needed := range []string{"header", "nav[aria-label]", "main h1", "form[role=search] label[for=q]", "[role=status][aria-live=polite]", "html[lang]", ".skip[href='#main']"} {
					testdb.ErrorIf(t, !eval[bool](s, fmt.Sprintf("!!document.querySelector(%q)", needed)), "%q has no %s", page, needed)
				}
				wrong := eval[[]string](s, `[...document.querySelectorAll("table")].filter(t => !t.caption || [...t.rows].some(r => !r.querySelector("th[scope]"))).map(t => t.outerHTML)`)
				testdb.ErrorIf(t, len(wrong) > 0, "%q has tables without a caption or headers: %s", page, wrong)
				testdb.ErrorIf(t, eval[string](s, "document.title") == "owned" || eval[bool](s, `!!document.querySelector("#live script, #live img")`),
					"on %q a key is a script", page)
			}
			s.open("locks")
			s.becomes(strconv.Quote(evil), `order:\x1b[2J`)
			s.open("leases")
			s.becomes(evil)
			s.do(focus("#q"), chromedp.KeyEvent("order:42\r"))
			s.becomes("Keys that are held")
			s.do(focus("#found-section a"), chromedp.KeyEvent("\r"))
			s.becomes("Transaction locks of this key")
			title := eval[string](s, "document.title")
			testdb.ErrorIf(t, !strings.HasPrefix(title, "order:42 "), "the search leads to %q", title)
			wrong := messages()
			testdb.ErrorIf(t, len(wrong) > 0, "the browser complains: %q", wrong)
		})
	}
}

// TestFirstScreen proves that the overview begins with what needs a person, that its charts have
// axes and, by the keyboard, numbers, and that they stay open while the page is live.
func TestFirstScreen(t *testing.T) {
	s := visit(t, one(), plain)
	s.open("")
	s.becomes("Nothing: no session waits for long", "Live")
	s.contended(txlock.Named("order:42"))
	s.becomes("1 session waiting; held by session", "order:42")
	testdb.Equal(t, "how the first screen begins", eval[string](s, `document.querySelector("main section h2").textContent`), "Needs a person")
	wrong := eval[int](s, `[...document.querySelectorAll("figure svg")].filter(f => f.querySelectorAll("text").length !== 7 || !f.getAttribute("aria-label")).length`)
	testdb.ErrorIf(t, wrong > 0, "%d charts have no axes", wrong)
	s.do(focus("#chart-waiting-numbers summary"), chromedp.KeyEvent("\r"))
	s.becomes("the most in ten minutes", "10–0 min ago")
	s.updates()
	testdb.ErrorIf(t, !eval[bool](s, `document.getElementById("chart-waiting-numbers").open`), "an update has closed the numbers")
	s.open("events")
	s.becomes(" s ago")
	exact := eval[string](s, `document.querySelector("tbody time").title`)
	testdb.ErrorIf(t, !strings.HasSuffix(exact, " UTC"), "the exact time is %q", exact)
}

// TestLive proves that a page shows what changes without being loaded again, while the focus
// and what is typed stay, and that it can be paused.
func TestLive(t *testing.T) {
	s := visit(t, one(), plain)
	s.open("locks")
	s.staysLive("Live")
	testdb.ErrorIf(t, strings.Contains(s.text(), "every 2 seconds"), "no events come through")
	s.do(click("#pause"))
	s.becomes("Paused")
	s.contended(txlock.Named("order:43"))
	s.do(click("#pause"))
	s.becomes("order:43")
}

// TestFocusStays proves that the focus stays on a row while rows before it come and go, so that
// the next key that is pressed does what it is pressed for.
func TestFocusStays(t *testing.T) {
	s := visit(t, one(), plain)
	m := s.manager()
	acquire := func(name string) *lease.Lease {
		held := testdb.Got(m.Acquire(t.Context(), txlock.Named(name)))(s)
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
	focused := eval[string](s, "document.activeElement.innerText")
	testdb.FatalIf(t, focused != "report:3", "the focus is on %q", focused)
	s.do(chromedp.KeyEvent("\r"))
	s.becomes("Leases, readers and permits of this key")
}

// TestPolling proves the same where no events come through, and that a lost connection is
// told and found again.
func TestPolling(t *testing.T) {
	var down atomic.Bool
	s := visit(t, one(), func(h http.Handler) http.Handler {
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
		got := s.contrast(`document.getElementById("lost")`, `document.getElementById("lost")`)
		testdb.ErrorIf(t, got < 4.5, "%s: the contrast of a lost connection is %v", scheme, got)
	}
	down.Store(false)
	s.becomes("Live, every 2 seconds")
	testdb.ErrorIf(t, eval[bool](s, `document.getElementById("lost").offsetHeight > 0 || document.getElementById("live").classList.contains("old")`),
		"a page that is live again says that it isn't connected")
}

// staysLive takes a lock, which the open page shows without being loaded again.
func (s *site) staysLive(state string) {
	s.Helper()
	s.becomes("No locks are held.", state)
	s.do(focus("#q"), chromedp.KeyEvent("ord"))
	eval[bool](s, "window.mark = true")
	s.contended(txlock.Named("order:42"))
	s.becomes("order:42", "web-1/4711")
	testdb.ErrorIf(s, !eval[bool](s, `window.mark && document.activeElement.id === "q" && document.activeElement.value === "ord"`),
		"the page was loaded again, or has lost the focus or what was typed")
}

// TestActionsInBrowser proves that who may not release sees no button, that who may releases a lease by the keyboard and ends a
// transaction, and that a form on another site does nothing.
func TestActionsInBrowser(t *testing.T) {
	var allowed atomic.Bool
	s := visit(t, one(), plain, lockhttp.Authorize(func(*http.Request, lockhttp.Action) (string, error) {
		if !allowed.Load() {
			return "alice", errors.New("not on duty")
		}
		return "alice", nil
	}))
	tx := s.lock(txlock.Named("order:42")) // before the first look, which finds it
	held := testdb.Got(s.manager().Acquire(t.Context(), txlock.Named("report")))(s)
	s.open("key?key=report")
	s.becomes("Leases, readers", "Live")
	testdb.ErrorIf(t, eval[bool](s, `!!document.querySelector("details, form[method=post]")`), "who may not release sees a form")
	allowed.Store(true)
	s.becomes("What you may do")
	evil := s.elsewhere(fmt.Sprintf(`<form id="f" method="post" action=%q><input name="key" value="report"><input name="lease" value="true"><input name="slot" value="0"><input name="session" value="0"><input name="token" value="%d"><button id="b">Win</button></form>`,
		s.url+"release", held.Token()))
	s.do(chromedp.Navigate(evil), chromedp.Click("#b"))
	s.becomes("Another site has caused this request")
	err := held.Err()
	testdb.FatalIf(t, err != nil || !strings.Contains(s.log.String(), "release was not done"), "another site releases the lease: %v, %s", err, s.log)

	s.open("key?key=report")
	s.becomes("Ask the holders", "Live")
	s.do(focus(`details[id^="release"] summary`), chromedp.KeyEvent("\r"))
	s.becomes("gets ErrLost from its next renewal")
	s.do(focus(`details[id^="release"] button`), chromedp.KeyEvent("\r"))
	s.becomes("Released.")
	testdb.Wants(t, "the lease that was released is renewed", held.Renew(t.Context()), txlock.ErrLost)
	s.open("key?key=order%3A42")
	s.becomes("End session")
	s.do(click(`details[id^="release"] summary`), chromedp.Click(`details[id^="release"] button`))
	s.becomes("Released.")
	testdb.Fails(t, "the session that was to be ended", testdb.Err(tx.ExecContext(context.WithoutCancel(t.Context()), "DO 1")))
	testdb.Says(t, "the log", s.log.String(), `msg="lockhttp: release" who=alice`)
}

// TestNarrowAndDark proves that pages fit a telephone without scrolling sideways, that they
// follow the system's colours, and that texts can be told from their ground in both.
func TestNarrowAndDark(t *testing.T) {
	s := visit(t, one(), plain)
	s.lock(txlock.Named("order:42"), txlock.Named(strings.Repeat("a-long-key:", 20)))
	s.contended(txlock.Named("order:43"))
	for _, scheme := range []string{"light", "dark"} {
		browser.Colours(s.tab, t, scheme)
		s.do(chromedp.EmulateViewport(360, 740))
		for _, page := range every {
			s.open(page)
			wide := eval[int](s, "document.documentElement.scrollWidth")
			testdb.ErrorIf(t, wide > 360, "%q is %d wide", page, wide)
		}
		s.open("locks")
		s.becomes("order:43")
		label := eval[string](s, `getComputedStyle(document.querySelector("td"), "::before").content`)
		testdb.Equal(t, "the label of a cell of a narrow table", label, `"Mode"`)
		contrast, dark := s.contrast("document.body", "document.body"), s.light("document.body", "backgroundColor") < s.light("document.body", "color")
		testdb.ErrorIf(t, contrast < 7 || dark != (scheme == "dark"), "%s: the contrast is %v, the ground is dark: %t", scheme, contrast, dark)
	}
}

// updates waits until the page has been updated.
func (s *site) updates() {
	s.Helper()
	const shown = `document.querySelector(".summary time").textContent`
	at := eval[string](s, shown)
	testdb.ErrorIf(s, !testdb.Await(2*time.Minute, func() bool { return eval[string](s, shown) != at }), "the page stands still")
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

// Package lockhttp tests the pages of lockhttp in a real browser, Chromium without a window.
// It is a module of its own, so that nobody else compiles what drives the browser.
package lockhttp_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"image/png"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	log      *log
}

// log is what the handler has logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// visit makes a site and opens a browser.
func visit(t *testing.T, engine testdb.Engine, around func(http.Handler) http.Handler, opts ...lockhttp.Option) *site {
	t.Helper()
	s := &site{T: t, db: testdb.Shared(t, engine).OpenLeases(t), recorder: lockhttp.NewRecorder(), log: new(log)}
	s.pool = s.db.Connect(t)
	pages, err := lockhttp.New(s.db.Admin(), append([]lockhttp.Option{lockhttp.Events(s.recorder), lockhttp.Log(slog.New(slog.NewTextHandler(s.log, nil)))}, opts...)...)
	s.must(err)
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

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

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
		s.must(second(scope.Lock(txlock.WithLabel(s.Context(), "web-1/4711"), key)))
	}
	return tx
}

func (s *site) begin() (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx, err := s.pool.BeginTx(s.Context(), nil)
	s.must(err)
	s.Cleanup(func() { _ = tx.Rollback() })
	scope, err := txlock.Join(s.Context(), tx, txlock.Observe(s.recorder.Observe))
	s.must(err)
	return tx, scope
}

// wait lets a transaction wait for a key until the end of the test.
func (s *site) wait(tx *sql.Tx, scope *txlock.Scope, key txlock.Key) {
	s.Helper()
	s.db.KeepWaiting(s, tx, func(ctx context.Context) error { _, err := scope.Lock(ctx, key); return err })
}

func (s *site) manager(opts ...lease.ManagerOption) *lease.Manager {
	s.Helper()
	m, err := lease.NewManager(s.pool, append(opts, lease.PurgeEvery(0, time.Hour), lease.Observe(s.recorder.Observe))...)
	s.must(err)
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
	onOne(t, screenshots) // MySQL, if it is there, which tells more
}

func screenshots(t *testing.T, engine testdb.Engine) {
	s := visit(t, engine, plain)
	m := s.manager(lease.WithLabel("web-2/815: nightly report"))
	report, err := m.Acquire(lease.WithOwner(t.Context(), "web-2/815"), txlock.Named("report"))
	s.must(err)
	defer func() { _ = report.Release(context.WithoutCancel(t.Context())) }()
	s.open("")
	if *update {
		s.work(3 * time.Minute)
	}
	s.lock(txlock.Named("order:42"))
	middle, scope := s.begin()
	s.must(second(scope.Lock(txlock.WithLabel(t.Context(), "web-2/815"), txlock.Named("order:77"))))
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
		config, err := png.DecodeConfig(bytes.NewReader(picture))
		s.must(err)
		if int64(config.Width) != shot.width || int64(config.Height) < shot.height/2 || len(picture) > 300_000 {
			t.Errorf("%s has %d by %d pixels, and %d bytes", shot.name, config.Width, config.Height, len(picture))
		}
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
		s.must(second(scope.Lock(s.Context(), txlock.Named("stock:7"))))
		time.Sleep(busy) // the work
		s.must(tx.Commit())
	}
}

package lockhttp_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
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

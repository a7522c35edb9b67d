package lockhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockhttp"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// stage is a handler that is mounted in a program.
type stage struct {
	*testing.T
	db    *testdb.DB
	pool  *sql.DB // of the program
	admin *sql.DB // of the pages
	pages *lockhttp.Handler
	url   string // with a slash at the end
	log   *bytes.Buffer
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
	s := &stage{T: t, db: db, pool: db.Connect(t), admin: admin, log: new(bytes.Buffer)}
	log := slog.New(slog.NewTextHandler(&locked{to: s.log}, nil))
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

// locked is a writer for several goroutines.
type locked struct {
	mu sync.Mutex
	to io.Writer
}

func (l *locked) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(text)
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

// get returns an answer.
func (s *stage) get(path string) (int, string, http.Header) {
	s.Helper()
	answer := leasetest.Got(http.Get(s.url + path))(s)
	return s.read(answer)
}

func (s *stage) read(answer *http.Response) (int, string, http.Header) {
	s.Helper()
	defer answer.Body.Close()
	body := leasetest.Got(io.ReadAll(answer.Body))(s)
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
	a := s.sure(func() (int, string, http.Header) {
		r := leasetest.Got(http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+verb, strings.NewReader(form.Encode())))(s)
		r.Header = header.Clone()
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := leasetest.Got(client.Do(r))(s)
		return s.read(answer)
	})
	return a.code, a.body, a.header
}

// posts sends a form, which must be answered so. It returns where that leads.
func (s *stage) posts(what, verb string, form url.Values, header http.Header, want int, says string) (to string) {
	s.Helper()
	code, body, answered := s.post(verb, form, header)
	if code != want || !strings.Contains(body, says) {
		s.Errorf("%s is answered with %d, not %d and %q:\n%s", what, code, want, says, body)
	}
	return answered.Get("Location")
}

type answer struct {
	code   int
	body   string
	header http.Header
}

// sure asks again while the answer says that the server's list of transactions is old, which other
// tests keep it.
func (s *stage) sure(ask func() (int, string, http.Header)) (a answer) {
	s.Helper()
	testdb.Await(time.Minute, func() bool {
		a.code, a.body, a.header = ask()
		return !strings.Contains(a.body, "list of transactions is old")
	})
	return a
}

// begin begins a transaction that ends with the test.
func (s *stage) begin() (*sql.Tx, *txlock.Scope) { s.Helper(); return s.beginOn(s.pool) }

func (s *stage) beginOn(pool *sql.DB) (*sql.Tx, *txlock.Scope) {
	s.Helper()
	tx := leasetest.Got(pool.BeginTx(s.Context(), nil))(s)
	s.Cleanup(func() { _ = tx.Rollback() })
	scope := leasetest.Got(txlock.Join(s.Context(), tx))(s)
	return tx, scope
}

// lock takes a lock, and returns its transaction.
func (s *stage) lock(keys ...txlock.Key) *sql.Tx {
	s.Helper()
	tx, scope := s.begin()
	for _, key := range keys {
		s.must(second(scope.Lock(txlock.WithLabel(s.Context(), "web-1/4711"), key)))
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
	m := leasetest.Got(lease.NewManager(s.pool, append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, opts...)...))(s)
	s.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil && !errors.Is(err, txlock.ErrLost) {
			s.Errorf("close the manager: %v", err)
		}
	})
	return m
}

// acquire takes a lease until the end of the test.
func (s *stage) acquire(m *lease.Manager, key txlock.Key) {
	s.Helper()
	l := leasetest.Got(m.Acquire(s.Context(), key))(s)
	s.Cleanup(func() { _ = l.Release(context.Background()) }) // which may be lost
}

// live tells of the events of a page, until its end, which is sent.
func (s *stage) live(ctx context.Context, page string, tell func(event string)) <-chan error {
	s.Helper()
	r := leasetest.Got(http.NewRequestWithContext(ctx, http.MethodGet, s.url+page, nil))(s)
	r.Header.Set("Accept", "text/event-stream")
	answer, err := http.DefaultClient.Do(r) //nolint:bodyclose // the goroutine below closes it
	s.must(err)
	leasetest.Equal(s, "the type of a stream", answer.Header.Get("Content-Type"), "text/event-stream")
	ended := make(chan error, 1)
	go func() {
		defer answer.Body.Close()
		ended <- eachEvent(answer.Body, tell)
	}()
	return ended
}

// eachEvent tells of each event of a stream, until its end.
func eachEvent(stream io.Reader, tell func(event string)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	var event strings.Builder
	for lines.Scan() {
		if lines.Text() == "" {
			tell(event.String())
			event.Reset()
			continue
		}
		event.WriteString(lines.Text() + "\n")
	}
	return lines.Err()
}

package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, and is all that its TestMain does. After
// them it drops the databases, stops the servers, and, where the tests passed,
// fails if they left goroutines behind.
//
// Where the process dies before that, what it has made on a server that somebody else
// runs is dropped all the same.
func Main(m *testing.M) {
	if os.Getenv(sweepVariable) != "" {
		if err := sweep(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	sweeping.mayRun = true
	if _, err := ParseEngines(os.Getenv("LOCKSTEP_ENGINES")); err != nil && !withoutServers() {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	code := m.Run()
	if err := errors.Join(process.close(), sweeping.end()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		// Toxiproxy's goroutines stay where a connection is cut while they hand on what they have read.
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run")); err != nil {
			fmt.Fprintf(os.Stderr, "testdb: goroutines were left behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// process is what the tests of this process share.
var process = newShare()

type share struct {
	servers map[Engine]func() (*Server, error)

	mu      sync.Mutex
	dbs     map[string]func() (*DB, error) // by engine and name
	closers []func() error
}

func newShare() *share {
	s := &share{
		servers: map[Engine]func() (*Server, error){},
		dbs:     map[string]func() (*DB, error){},
	}
	for _, engine := range allEngines {
		s.servers[engine] = sync.OnceValues(func() (*Server, error) { return s.server(engine) })
	}
	return s
}

// OnServers runs a test on every server, beside other tests.
func OnServers(t *testing.T, test func(t *testing.T, engine Engine)) {
	t.Helper()
	t.Parallel()
	OnEngines(t, test)
}

// OnDatabases is OnServers with what Open returns of each.
func OnDatabases(t *testing.T, test func(t *testing.T, db *DB)) {
	t.Helper()
	OnServers(t, func(t *testing.T, engine Engine) { test(t, Open(t, engine)) })
}

// OnEngines runs a test for each of Engines, one beside the other.
func OnEngines(t *testing.T, test func(t *testing.T, engine Engine)) {
	t.Helper()
	for _, engine := range Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// Shared returns the server that all tests of this process use: the one of
// LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN, the DSN of an administrator, or
// one that is started at the first call. Without a server the test fails.
func Shared(tb testing.TB, engine Engine) *Server {
	tb.Helper()
	NeedsServer(tb)
	server, err := process.servers[engine]()
	check(tb, err)
	return server
}

// Dedicated starts a server for this test only, which is stopped at its end.
func Dedicated(tb testing.TB, engine Engine, opts ...Option) *Server {
	tb.Helper()
	NeedsServer(tb)
	server, err := Start(tb.Context(), engine, opts...)
	check(tb, err)
	tb.Cleanup(func() {
		if err := server.Stop(); err != nil {
			tb.Errorf("stop the dedicated %s server: %v", engine, err)
		}
	})
	return server
}

func (s *share) server(engine Engine) (*Server, error) {
	if server, ok, err := Given(context.Background(), engine); ok || err != nil {
		return server, err
	}
	server, err := Start(context.Background(), engine)
	if err != nil {
		return nil, err
	}
	s.atClose(server.Stop)
	return server, nil
}

// open returns the database of a name, which it makes when it is asked for first.
func (s *share) open(engine Engine, name string) (*DB, error) {
	s.mu.Lock()
	by := string(engine) + "/" + name
	if s.dbs[by] == nil {
		s.dbs[by] = sync.OnceValues(func() (*DB, error) { return s.db(engine) })
	}
	made := s.dbs[by]
	s.mu.Unlock()
	return made()
}

func (s *share) db(engine Engine) (*DB, error) {
	server, err := s.servers[engine]()
	if err != nil {
		return nil, err
	}
	db, err := newDB(context.Background(), server)
	if err != nil {
		return nil, err
	}
	s.atClose(db.drop)
	return db, db.install(context.Background())
}

// AtClose has Main call f after the tests, and after all that was put in later.
func AtClose(f func() error) { process.atClose(f) }

func (s *share) atClose(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

// close undoes what the process made, the latest first.
func (s *share) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(s.closers) {
		errs = append(errs, f())
	}
	s.closers = nil
	return errors.Join(errs...)
}

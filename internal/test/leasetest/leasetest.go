// Package leasetest is what the tests of leases, and of what is built on them, share.
package leasetest

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Got returns a value that a call has returned, and ends the test if it has returned an error, too.
func Got[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return v
	}
}

// Wants demands that an error is each of some.
func Wants(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want %v", what, err, w)
		}
	}
}

// Equal demands that two values are equal.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Says demands that a text has each of some parts.
func Says(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s has no %q:\n%s", what, part, text)
		}
	}
}

// Fails demands an error that says each of some parts.
func Fails(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	Says(t, what, err.Error(), parts...)
}

// Many returns the first n keys of a family of this name.
func Many(n int) (keys []txlock.Key) {
	family := txlock.NewFamily[int]("many")
	for i := range n {
		keys = append(keys, family.Key(i+1))
	}
	return keys
}

// Higher demands that a lease has a higher token than one before it.
func Higher(t testing.TB, next, before interface{ Token() uint64 }) {
	t.Helper()
	if next.Token() <= before.Token() {
		t.Errorf("token %d after %d", next.Token(), before.Token())
	}
}

// Pool is a pool of the application's user, guarded or not, which must have all its
// connections back when the test ends.
func Pool(t testing.TB, db *testdb.DB, guarded bool, mutators ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	cfg := db.Config(mutators...)
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	connector, err := mysql.NewConnector(cfg)
	Must(t, err)
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	pool := sql.OpenDB(connector)
	t.Cleanup(func() {
		if n := testdb.InUse(pool); n != 0 {
			t.Errorf("%d connections are in use at the end", n)
		}
		// The driver doesn't export the error of a connection that was broken on purpose.
		if err := pool.Close(); err != nil && err.Error() != "bad connection" {
			t.Errorf("close the pool: %v", err)
		}
	})
	return pool
}

// InBubble runs a test in a bubble, beside others. It panics where the test goes on for longer
// than the limit, by the time of the bubble.
func InBubble(t *testing.T, limit time.Duration, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		timer := time.AfterFunc(limit, func() { panic(t.Name() + " does not end") })
		defer timer.Stop()
		test(t)
	})
}

// Network is the network of a pool that can be cut, for a process that dies: it says nothing
// more to the server, and hears nothing.
type Network struct {
	mu    sync.Mutex
	gone  bool
	conns []net.Conn
}

// Dial opens a connection, until the network is cut.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return nil, errors.Join(errors.New("the network is cut"), conn.Close())
	}
	n.conns = append(n.conns, conn)
	return conn, nil
}

// Cut closes all connections, as the end of a process does.
func (n *Network) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = true
	for _, conn := range n.conns {
		_ = conn.Close() // the driver may have closed it
	}
}

// Limited returns a context of the test that ends after a time.
func Limited(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Package leasetest is what the tests of leases, and of what is built on them, share.
package leasetest

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

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
	testdb.Must(t, err)
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

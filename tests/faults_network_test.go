package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// network is a way to a server that can be made bad.
type network struct {
	proxy *toxiproxy.Proxy
	addr  string       // where it listens
	dials atomic.Int64 // attempts to connect

	mu     sync.Mutex
	conns  map[*networkConn]struct{} // the client's ends
	direct string                    // where connections are made to once it was healed
	delay  time.Duration             // the longest of a packet
	quiet  time.Time                 // when nothing is on its way any more
}

// newNetwork puts a network before the server.
func newNetwork(t testing.TB, db *testdb.DB) *network {
	t.Helper()
	upstream := db.AdminConfig().Addr
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n := &network{
		proxy: toxiproxy.NewProxy(api, "network", "127.0.0.1:0", upstream),
		conns: make(map[*networkConn]struct{}),
	}
	n.up(t)
	n.addr = n.proxy.Listen
	t.Cleanup(n.close)
	return n
}

// close ends the proxy when everything has arrived: it leaves goroutines behind
// otherwise, and can't be asked.
func (n *network) close() {
	n.heal()
	time.Sleep(time.Until(n.quiet))
	n.proxy.Stop()
}

// up lets connections through, as at the beginning.
func (n *network) up(t testing.TB) {
	t.Helper()
	if err := n.proxy.Start(); err != nil {
		t.Fatal(err)
	}
}

// down closes all connections and refuses new ones.
func (n *network) down() { n.proxy.Stop() }

// slow delays every packet of a direction ("upstream" or "downstream") from now on,
// by a random time in between.
func (n *network) slow(t testing.TB, stream string, least, most time.Duration) {
	t.Helper()
	n.delay = max(n.delay, most)
	n.spoil(t, "latency", stream, map[string]any{
		"latency": (least + most).Milliseconds() / 2, "jitter": (most - least).Milliseconds() / 2,
	})
}

// hang swallows every packet from now on. Connections stay, and new ones are
// accepted.
func (n *network) hang(t testing.TB) {
	t.Helper()
	n.spoil(t, "timeout", "upstream", map[string]any{"timeout": 0})
}

// spoil makes the network bad.
func (n *network) spoil(t testing.TB, kind, stream string, attributes map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.proxy.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
		t.Fatal(err)
	}
}

// heal makes new connections go straight to the server. Those that are there
// break, and what they carry arrives late.
func (n *network) heal() {
	n.mu.Lock()
	if n.direct == "" {
		n.direct, n.quiet = n.proxy.Upstream, time.Now().Add(n.delay)
	}
	n.mu.Unlock()
	n.cut(1)
}

// cut breaks a part of the connections, as the client sees it. What it has sent
// arrives nevertheless.
func (n *network) cut(part float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		if rand.Float64() < part {
			_ = conn.TCPConn.Close() // the driver closes it again
		}
	}
}

// dial is the driver's way to the server.
func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.dials.Add(1)
	n.mu.Lock()
	addr := n.direct
	n.mu.Unlock()
	if addr == "" {
		addr = n.addr
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &networkConn{conn.(*net.TCPConn), n}
	n.mu.Lock()
	n.conns[c] = struct{}{}
	n.mu.Unlock()
	return c, nil
}

// networkConn is a connection that can be cut.
type networkConn struct {
	*net.TCPConn
	n *network
}

func (c *networkConn) Close() error {
	defer func() {
		c.n.mu.Lock()
		delete(c.n.conns, c)
		c.n.mu.Unlock()
	}()
	return c.TCPConn.Close()
}

// faultPool is a pool of the application's user, whose connections go by the
// network where one is given.
func faultPool(t testing.TB, db *testdb.DB, n *network, wrap func(driver.Connector) driver.Connector) *sql.DB {
	t.Helper()
	cfg := db.Config()
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	if n != nil {
		cfg.DialFunc = n.dial
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() {
		if n := testdb.InUse(pool); n != 0 {
			t.Errorf("%d connections are in use at the end", n)
		}
		_ = pool.Close() // which complains of connections that were cut
	})
	return pool
}

// The kinds of pools.
func guarded(c driver.Connector) driver.Connector { return txlock.Guarded(c) }
func plain(c driver.Connector) driver.Connector   { return c }

// rewritten is a plain pool, the text of whose statements is changed, to plant a
// bug.
func rewritten(rewrite func(string) string) func(driver.Connector) driver.Connector {
	return func(c driver.Connector) driver.Connector { return rewriter{c, rewrite} }
}

type rewriter struct {
	driver.Connector
	rewrite func(string) string
}

func (r rewriter) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := r.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(driverConn)
	if !ok {
		return nil, fmt.Errorf("%T lacks a method", conn)
	}
	return rewrittenConn{full, r.rewrite}, nil
}

// driverConn is what a connection of the driver can do.
type driverConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type rewrittenConn struct {
	driverConn
	rewrite func(string) string
}

func (c rewrittenConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.driverConn.PrepareContext(ctx, c.rewrite(query))
}

func (c rewrittenConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.driverConn.ExecContext(ctx, c.rewrite(query), args)
}

func (c rewrittenConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.driverConn.QueryContext(ctx, c.rewrite(query), args)
}

// await asks until the answer is yes, and tells whether that took no longer than
// the limit.
func await(limit time.Duration, ask func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !ask(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// faultManager is a manager that is closed at the end, whatever has become of its
// leases.
func faultManager(t testing.TB, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(pool, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = m.Close(ctx) // which complains of what it can't give back over a bad network
	})
	return m
}

// count reads a number as the administrator, past the network.
func count(t testing.TB, db *testdb.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.Admin().QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

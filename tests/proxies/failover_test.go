//go:build proxies

package proxies

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// proxy stands between clients and servers.
type proxy interface {
	// lead has a client go there.
	lead(client *mysql.Config)
	// to has new connections go to the primary, and cuts those that are there. The standby, which
	// may be nil, is for a proxy that tries it, too, where the primary can't be reached.
	to(t *testing.T, primary, standby *testdb.Server)
}

// onProxies runs a test behind each. start starts one before a server.
func onProxies(t *testing.T, test func(t *testing.T, start func(t *testing.T, server *testdb.Server) proxy)) {
	for name, start := range map[string]func(*testing.T, *testdb.Server) proxy{"HAProxy": newHAProxy, "MySQL Router": newRouter} {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

// TestFailOver has a proxy before a semi-synchronous pair of MariaDB, whose primary is killed or hangs under load; the proxy
// is sent to its replica. Nothing acknowledged is lost or done twice, no two leases overlap and no token falls.
func TestFailOver(t *testing.T) {
	if slices.Contains(testdb.Engines(), testdb.MariaDB) {
		onProxies(t, failOver)
	}
}

func failOver(t *testing.T, start func(*testing.T, *testdb.Server) proxy) {
	p := load.NewPair(t)
	work := load.New(t, p.DB)
	p.SemiSynchronous(t)
	p.Replicated(t)
	before := start(t, p.Primary.Server)
	before.to(t, p.Primary.Server, p.Replica.Server)
	work.Run(t, load.NewClients(t, 3, p.DB, before.lead), func() {
		faults := make(map[string]int)
		for end := time.Now().Add(load.FaultsLast(t, "PROXY_DURATION")); time.Now().Before(end) && !t.Failed(); {
			time.Sleep(time.Second + rand.N(3*time.Second))
			kind := "killed"
			if rand.IntN(2) == 0 {
				kind = "hung"
				check(t, p.Primary.Signal(syscall.SIGSTOP))
			} else {
				check(t, p.Primary.Kill())
			}
			faults[kind]++
			old := p.FailOver(t, func(primary *testdb.Server) { before.to(t, primary, nil) })
			check(t, old.Stop())
			before.to(t, p.Primary.Server, p.Replica.Server)
		}
		t.Logf("faults: %v", faults)
	})
	for _, node := range []load.Node{p.Primary, p.Replica} {
		p.Replicated(t)
		work.Check(t, p.DB.At(t, node.Server).Admin())
	}
	work.CheckHolds(t)
}

// TestRestart has a proxy before one server, which is killed under load and comes back.
func TestRestart(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			onProxies(t, func(t *testing.T, start func(*testing.T, *testdb.Server) proxy) {
				restart(t, testdb.Dedicated(t, engine), start)
			})
		})
	}
}

func restart(t *testing.T, server *testdb.Server, start func(*testing.T, *testdb.Server) proxy) {
	db := server.Open(t)
	work := load.New(t, db)
	clients := load.NewClients(t, 3, db, start(t, server).lead)
	work.Run(t, clients, func() {
		kills := 0
		for end := time.Now().Add(load.FaultsLast(t, "PROXY_DURATION") / 2); time.Now().Before(end) && !t.Failed(); kills++ {
			time.Sleep(time.Second + rand.N(3*time.Second))
			check(t, server.Kill())
			check(t, server.Restart(t.Context()))
		}
		t.Logf("killed %d times", kills)
		load.Connected(t, load.Pools(clients)...)
	})
	work.Check(t, db.Admin())
	work.CheckHolds(t)
}

// haproxy forwards connections to one server.
type haproxy struct {
	*daemon
	socket string // by which it takes orders
}

// newHAProxy starts one before the server.
func newHAProxy(t *testing.T, server *testdb.Server) proxy {
	t.Helper()
	return startHAProxy(t, server, time.Minute)
}

// startHAProxy starts one that cuts connections on which nothing is sent for that long.
func startHAProxy(t *testing.T, server *testdb.Server, idle time.Duration) *haproxy {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		path = "/usr/sbin/haproxy"
	}
	h := &haproxy{daemon: newDaemon(t, path, "-db", "-f")}
	h.socket = filepath.Join(h.dir, "admin.sock")
	h.start(t, fmt.Sprintf(`global
	stats socket %s level admin
defaults
	mode tcp
	timeout connect 2s
	timeout client %dms
	timeout server %dms
listen db
	bind %s
	server primary %s
`, h.socket, idle.Milliseconds(), idle.Milliseconds(), h.addr, server.Config().Addr))
	return h
}

func (h *haproxy) lead(client *mysql.Config) { client.Addr = h.addr }

// to tells it by its socket.
func (h *haproxy) to(t *testing.T, primary, _ *testdb.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(primary.Config().Addr)
	check(t, err)
	for _, order := range []string{"set server db/primary addr " + host + " port " + port, "shutdown sessions server db/primary"} {
		conn := testdb.Got(net.Dial("unix", h.socket))(t)
		check(t, testdb.Err(fmt.Fprintln(conn, order)))
		answer := testdb.Got(io.ReadAll(conn))(t)
		_ = conn.Close()
		text := strings.TrimSpace(string(answer))
		testdb.FatalIf(t, text != "" && !strings.Contains(text, "changed from") && !strings.Contains(text, "no need to change"), "%s: %s", order, text)
	}
}

// cutAfter is for how long HAProxy lets a connection be silent: less than the pauses of these
// tests, and more than a statement takes on a busy machine.
const cutAfter = 3 * time.Second

// onIdle runs a test on each server behind an HAProxy that cuts silent connections. direct
// goes to the server itself.
func onIdle(t *testing.T, test func(t *testing.T, db *testdb.DB, cut, direct *load.Client)) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		h := startHAProxy(t, db.Server(), cutAfter)
		cfg := db.Config()
		cfg.Addr = h.addr
		test(t, db, load.NewClient(t, 0, cfg), load.NewClient(t, 1, db.Config()))
	})
}

// joined begins a transaction, and joins it.
func joined(t *testing.T, c *load.Client) (*sql.Tx, *txlock.Scope) {
	t.Helper()
	tx := testdb.Got(c.DB.BeginTx(t.Context(), nil))(t)
	return tx, testdb.Got(locksqlc.Join(t.Context(), tx))(t)
}

// begun begins a transaction that holds a lock.
func begun(t *testing.T, c *load.Client, key txlock.Key) *sql.Tx {
	t.Helper()
	tx, scope := joined(t, c)
	check(t, testdb.Err(scope.Lock(t.Context(), key)))
	return tx
}

// TestIdleTransaction proves that a transaction whose connection is cut while it thinks says
// so at its next statement and at COMMIT, and that the server has freed its lock.
func TestIdleTransaction(t *testing.T) {
	onIdle(t, func(t *testing.T, db *testdb.DB, cut, direct *load.Client) {
		table := db.CreateTable(t, "idle", "id INT PRIMARY KEY")
		for _, speaks := range []bool{true, false} {
			key := txlock.Named(fmt.Sprint(t.Name(), speaks))
			tx := begun(t, cut, key)
			check(t, testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")))
			// Granted when the server has rolled the other back.
			check(t, begun(t, direct, key).Rollback())
			if speaks {
				testdb.Fails(t, "a statement on a cut connection", testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (2)")))
				wants(t, "the next statement", testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3)")), txlock.ErrTxDoomed)
			}
			err := tx.Commit()
			testdb.ErrorIf(t, err == nil || speaks && !errors.Is(err, txlock.ErrTxDoomed), "Commit after the connection was cut: %v", err)
		}
		var n int
		err := db.Admin().QueryRow("SELECT COUNT(*) FROM " + table).Scan(&n)
		testdb.ErrorIf(t, err != nil || n != 0, "%d rows are there, %v", n, err)
	})
}

// TestIdleWait proves that a wait for a lock whose connection is cut ends with ErrTxDoomed,
// and leaves nobody behind in the server's queue, and that Run goes on to ask.
func TestIdleWait(t *testing.T) {
	onIdle(t, func(t *testing.T, _ *testdb.DB, cut, direct *load.Client) {
		key := txlock.Named(t.Name())
		holds := begun(t, direct, key)
		tx, scope := joined(t, cut)
		wants(t, "a wait that was cut", testdb.Err(scope.Lock(t.Context(), key)), txlock.ErrTxDoomed)
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
		time.AfterFunc(3*cutAfter/2, func() { wants(t, "Rollback", holds.Rollback(), nil) })
		runs := 0
		err := locksqlc.Run(t.Context(), cut.DB, []txlock.Key{key}, func(*sql.Tx) error {
			runs++
			return nil
		})
		testdb.ErrorIf(t, err != nil || runs != 1, "Run: %v, %d runs of its function", err, runs)
		last, scope := joined(t, direct)
		defer func() { _ = last.Rollback() }()
		wants(t, "Lock, for which nobody waits", testdb.Err(scope.WaitAtMost(time.Minute).Lock(t.Context(), key)), nil)
	})
}

// TestIdleLease proves that a lease is kept whose renewals are rarer than the cuts, that a
// fair wait that is cut goes on, and that Do, which asks its server every second, is not cut.
func TestIdleLease(t *testing.T) {
	onIdle(t, func(t *testing.T, _ *testdb.DB, cut, direct *load.Client) {
		const ttl = 15 * time.Second
		leases := testdb.Got(lease.NewManager(cut.DB, lease.TTL(ttl)))(t) // renewed every 5 s
		t.Cleanup(func() { check(t, leases.Close(context.Background())) })
		key := txlock.Named(t.Name())
		held := testdb.Got(leases.Acquire(t.Context(), key))(t)
		taken := make(chan *lease.Lease, 1)
		go func() {
			defer close(taken)
			l, err := cut.Leases.Acquire(t.Context(), key, lease.Fair())
			if err != nil {
				t.Errorf("a fair wait that is cut: %v", err)
				return
			}
			taken <- l
		}()
		doing := txlock.Named(t.Name() + " Do")
		err := locksqlc.Do(t.Context(), cut.DB, doing, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(3 * cutAfter):
			}
			err := locksqlc.TryDo(ctx, direct.DB, doing, func(context.Context) error { return nil })
			if !errors.Is(err, txlock.ErrBusy) {
				return fmt.Errorf("somebody else does it, too: %w", err)
			}
			return nil
		})
		wants(t, "Do for longer than a connection may be silent", err, nil)
		for begun := time.Now(); time.Since(begun) < ttl; time.Sleep(100 * time.Millisecond) {
			err := held.Err()
			testdb.FatalIf(t, err != nil, "the lease is lost after %v: %v", time.Since(begun), err)
		}
		l, err := direct.Leases.TryAcquire(t.Context(), key)
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrBusy), "somebody else asks for it: %v, %v", l, err)
		check(t, held.Release(t.Context()))
		l = <-taken
		if l == nil {
			return
		}
		testdb.ErrorIf(t, l.Token() <= held.Token(), "token %d after %d", l.Token(), held.Token())
		check(t, l.Release(t.Context()))
	})
}

// static is MySQL Router with a list of servers.
type static struct {
	*Router
	shares string // what its route has besides, or ""
}

// newRouter starts one before the server.
func newRouter(t *testing.T, server *testdb.Server) proxy {
	t.Helper()
	s := &static{Router: NewRouter(t)}
	s.to(t, server, nil)
	return s
}

// newSharing starts one that shares sessions among clients.
func newSharing(t *testing.T, server *testdb.Server) proxy {
	t.Helper()
	s := &static{Router: NewRouter(t)}
	s.shares = s.Sharing(t)
	s.to(t, server, nil)
	return s
}

func (s *static) lead(client *mysql.Config) {
	client.Addr = s.Addr
	if s.shares != "" {
		client.TLSConfig = "skip-verify"
	}
}

// to starts it again: its list can't be changed while it runs.
func (s *static) to(t *testing.T, primary, standby *testdb.Server) {
	t.Helper()
	list := []string{primary.Config().Addr}
	if standby != nil {
		list = append(list, standby.Config().Addr)
	}
	s.Start(t, listed("first-available", list...)+s.shares)
}

func listed(strategy string, servers ...string) string {
	return "routing_strategy = " + strategy + "\ndestinations = " + strings.Join(servers, ",")
}

// behind opens a guarded pool through a proxy, which keeps no idle connection if it keeps none.
func behind(t *testing.T, p proxy, db *testdb.DB, idle int) *sql.DB {
	t.Helper()
	cfg := db.Config()
	p.lead(cfg)
	cfg.Logger = &mysql.NopLogger{}
	connector := testdb.Got(mysql.NewConnector(cfg))(t)
	pool := sql.OpenDB(locksqlc.Connector(connector))
	pool.SetMaxIdleConns(idle)
	t.Cleanup(func() { _ = pool.Close() }) // its connections may be broken
	return pool
}

// TestRouterLists proves of a list of servers without roles that when the first is killed, clients go to the next, which locks
// and writes nothing before it is promoted. When the old one comes back, only first-available returns to it.
func TestRouterLists(t *testing.T) {
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		return
	}
	for strategy, returns := range map[string]bool{"first-available": true, "next-available": false} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			routerLists(t, strategy, returns)
		})
	}
}

func routerLists(t *testing.T, strategy string, returns bool) {
	p := load.NewPair(t)
	s := &static{Router: NewRouter(t)}
	s.Start(t, listed(strategy, p.Primary.Config().Addr, p.Replica.Config().Addr))
	pool := behind(t, s, p.DB, 0)
	locked := func() (port string, err error) {
		err = locksqlc.Run(t.Context(), pool, []txlock.Key{txlock.Named(t.Name())}, func(tx *sql.Tx) error {
			return tx.QueryRow("SELECT @@port").Scan(&port)
		})
		return port, err
	}
	at := func(want load.Node) bool {
		port, err := locked()
		testdb.FatalIf(t, err != nil, "Run: %v", err)
		return strings.HasSuffix(want.Config().Addr, ":"+port)
	}
	testdb.ErrorIf(t, !at(p.Primary), "clients are not on the first of the list")
	p.Replicated(t)
	check(t, p.Primary.Kill())
	port, err := locked()
	testdb.ErrorIf(t, !errors.Is(err, txlock.ErrReadOnly), "Run before the replica is promoted: on port %s, %v, want ErrReadOnly", port, err)
	p.Promote(t)
	testdb.ErrorIf(t, !at(p.Replica), "clients are not on the one that was promoted")
	check(t, p.Primary.Restart(t.Context()))
	// The router looks every second for those that it couldn't reach.
	for end := time.Now().Add(10 * time.Second); returns && !at(p.Primary); time.Sleep(20 * time.Millisecond) {
		testdb.FatalIf(t, time.Now().After(end), "clients have not returned to the first of the list")
	}
	for end := time.Now().Add(4 * time.Second); !returns && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		testdb.FatalIf(t, at(p.Primary), "clients have returned to the first of the list")
	}
}

// TestRouterPools proves that a router which keeps the sessions of clients that are gone keeps their
// transactions, too, and the locks of those, until its idle_timeout.
func TestRouterPools(t *testing.T) {
	const timeout = 2 * time.Second
	for _, engine := range testdb.Engines() {
		for _, most := range []int{0, 64} {
			t.Run(fmt.Sprint(engine, " ", most), func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t, engine)
				s := &static{Router: NewRouter(t)}
				s.Start(t, listed("first-available", db.Config().Addr), fmt.Sprintf("[connection_pool]\nmax_idle_server_connections = %d\nidle_timeout = %.0f", most, timeout.Seconds()))
				cfg := db.Config()
				s.lead(cfg)
				client, key := load.NewClient(t, 0, cfg), txlock.Named(t.Name())
				conn := testdb.Got(client.DB.Conn(t.Context()))(t)
				tx := testdb.Got(conn.BeginTx(t.Context(), nil))(t)
				check(t, lock(t.Context(), tx, key))
				gone := time.Now()
				check(t, conn.Raw(func(raw any) error { return raw.(driver.Conn).Close() }))
				_, _ = tx.Rollback(), conn.Close() // they are gone
				direct := load.NewClient(t, 1, db.Config())
				check(t, locksqlc.Run(t.Context(), direct.DB, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
				kept := time.Since(gone)
				testdb.ErrorIf(t, (kept > timeout*9/10) != (most > 0), "the lock was free after %v", kept)
			})
		}
	}
}

// lock takes a lock in a transaction.
func lock(ctx context.Context, tx *sql.Tx, key txlock.Key) error {
	scope, err := locksqlc.Join(ctx, tx)
	if err != nil {
		return err
	}
	_, err = scope.Lock(ctx, key)
	return err
}

// TestRouterShares proves what connection_sharing=1 does: sessions are shared between transactions, and not in them, so locks hold, under
// load too. But who cancels a wait may end another client's transaction, which says so. Check finds it.
func TestRouterShares(t *testing.T) {
	for _, engine := range testdb.Engines() {
		db := testdb.Open(t, engine)
		if engine == testdb.MariaDB {
			testdb.Fails(t, "the router that shares those of MariaDB", behind(t, newSharing(t, db.Server()), db, 2).PingContext(t.Context()))
			continue
		}
		for name, start := range map[string]func(*testing.T, *testdb.Server) proxy{"shares": newSharing, "does not": newRouter} {
			t.Run(name, func(t *testing.T) { cancels(t, behind(t, start(t, db.Server()), db, 2), name == "shares") })
		}
		t.Run("under load", func(t *testing.T) { restart(t, testdb.Dedicated(t, engine), newSharing) })
	}
}

func cancels(t *testing.T, pool *sql.DB, shares bool) {
	begin := func(conn *sql.Conn, key txlock.Key) (tx *sql.Tx, session int) {
		tx, err := conn.BeginTx(t.Context(), nil)
		if err == nil {
			err = lock(t.Context(), tx, key)
		}
		if err == nil {
			err = tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&session)
		}
		check(t, err)
		return tx, session
	}
	open := func() *sql.Conn {
		conn := testdb.Taken(t, pool)
		return conn
	}
	idle := open()
	tx, first := begin(idle, txlock.Named(t.Name()))
	check(t, tx.Rollback())
	var holds *sql.Tx
	var key txlock.Key
	for session, i := 0, 0; i == 0 || shares && session != first; i++ { // until the first one's is not in use any more
		key = txlock.Named(fmt.Sprint(t.Name(), i))
		holds, session = begin(open(), key)
	}
	waits, _ := begin(idle, txlock.Named(t.Name()))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	wants(t, "a wait that is cancelled", lock(ctx, waits, key), context.DeadlineExceeded)
	_ = waits.Rollback() // its connection is lost
	_, err := holds.ExecContext(t.Context(), "DO 1")
	testdb.ErrorIf(t, shares != (err != nil), "a statement of the one who has the lock: %v", err)
	err = holds.Commit()
	testdb.ErrorIf(t, shares != errors.Is(err, txlock.ErrTxDoomed) || !shares && err != nil, "Commit of the one who has the lock: %v", err)
	err = schema.Check(t.Context(), pool)
	testdb.ErrorIf(t, shares != errors.Is(err, schema.ErrProxy) || !shares && err != nil, "Check: %v", err)
}

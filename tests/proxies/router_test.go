//go:build proxies

package proxies

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
)

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
	connector, err := mysql.NewConnector(cfg)
	check(t, err)
	pool := sql.OpenDB(locksqlc.Connector(connector))
	pool.SetMaxIdleConns(idle)
	t.Cleanup(func() { _ = pool.Close() }) // its connections may be broken
	return pool
}

// TestRouterLists proves what a list of servers does that knows no roles. When the first is
// killed, clients go to the next before it is promoted: nothing is locked or written there. After
// that has become the primary they are at work. When the old one comes back, first-available
// returns to it, and next-available doesn't.
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
		if err != nil {
			t.Fatalf("Run: %v", err)
		}
		return strings.HasSuffix(want.Config().Addr, ":"+port)
	}
	if !at(p.Primary) {
		t.Error("clients are not on the first of the list")
	}
	p.Replicated(t)
	check(t, p.Primary.Kill())
	if port, err := locked(); !errors.Is(err, txlock.ErrReadOnly) {
		t.Errorf("Run before the replica is promoted: on port %s, %v, want ErrReadOnly", port, err)
	}
	p.Promote(t)
	if !at(p.Replica) {
		t.Error("clients are not on the one that was promoted")
	}
	check(t, p.Primary.Restart(t.Context()))
	// The router looks every second for those that it couldn't reach.
	for end := time.Now().Add(10 * time.Second); returns && !at(p.Primary); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("clients have not returned to the first of the list")
		}
	}
	for end := time.Now().Add(4 * time.Second); !returns && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if at(p.Primary) {
			t.Fatal("clients have returned to the first of the list")
		}
	}
}

// TestRouterSilence proves that the router cuts no connection on which nothing is sent: its
// timeouts are for connecting.
func TestRouterSilence(t *testing.T) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		s := &static{Router: NewRouter(t)}
		s.Start(t, listed("first-available", db.Config().Addr)+"\nconnect_timeout = 1\nclient_connect_timeout = 2")
		cfg := db.Config()
		s.lead(cfg)
		client, key := load.NewClient(t, 0, cfg), txlock.Named(t.Name())
		holds := begun(t, client, key)
		held, err := client.Leases.Acquire(t.Context(), key)
		check(t, err)
		granted := make(chan error, 1)
		go func() {
			granted <- locksqlc.Run(t.Context(), client.DB, []txlock.Key{key}, func(*sql.Tx) error { return nil })
		}()
		time.Sleep(3 * cutAfter)
		select {
		case err := <-granted:
			t.Errorf("a wait has ended before the lock was free: %v", err)
		default:
		}
		wants(t, "the lease", errors.Join(held.Err(), held.Release(t.Context())), nil)
		wants(t, "Commit after the silence", holds.Commit(), nil)
		wants(t, "Run that has waited", <-granted, nil)
	})
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
				conn, err := client.DB.Conn(t.Context())
				check(t, err)
				tx, err := conn.BeginTx(t.Context(), nil)
				check(t, err)
				check(t, lock(t.Context(), tx, key))
				gone := time.Now()
				check(t, conn.Raw(func(raw any) error { return raw.(driver.Conn).Close() }))
				_, _ = tx.Rollback(), conn.Close() // they are gone
				direct := load.NewClient(t, 1, db.Config())
				check(t, locksqlc.Run(t.Context(), direct.DB, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
				if kept := time.Since(gone); (kept > timeout*9/10) != (most > 0) {
					t.Errorf("the lock was free after %v", kept)
				}
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

// TestRouterShares proves what connection_sharing=1 does: sessions are given to other clients
// between transactions, and not in them, so locks hold, under load too, while the server is killed.
// But who cancels a wait may end another client's transaction, which says so. Check finds it.
func TestRouterShares(t *testing.T) {
	for _, engine := range testdb.Engines() {
		db := testdb.Open(t, engine)
		if engine == testdb.MariaDB {
			leasetest.Fails(t, "the router that shares those of MariaDB", behind(t, newSharing(t, db.Server()), db, 2).PingContext(t.Context()))
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
		conn, err := pool.Conn(t.Context())
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() }) // it may be lost
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
	if _, err := holds.ExecContext(t.Context(), "DO 1"); shares != (err != nil) {
		t.Errorf("a statement of the one who has the lock: %v", err)
	}
	if err := holds.Commit(); shares != errors.Is(err, txlock.ErrTxDoomed) || !shares && err != nil {
		t.Errorf("Commit of the one who has the lock: %v", err)
	}
	if err := schema.Check(t.Context(), pool); shares != errors.Is(err, schema.ErrProxy) || !shares && err != nil {
		t.Errorf("Check: %v", err)
	}
}

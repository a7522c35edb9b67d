//go:build proxies

package proxies

import (
	"context"
	"database/sql"
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

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
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

// TestFailOver has a proxy before a semi-synchronous pair of MariaDB, whose primary is
// killed, or hangs, under the load of locks, versions, leases and jobs; the replica is promoted
// and the proxy sent there. Nothing that was acknowledged is lost, nothing is done twice, no two
// leases overlap and no token falls.
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
		conn, err := net.Dial("unix", h.socket)
		check(t, err)
		check(t, second(fmt.Fprintln(conn, order)))
		answer, err := io.ReadAll(conn)
		check(t, err)
		_ = conn.Close()
		if text := strings.TrimSpace(string(answer)); text != "" && !strings.Contains(text, "changed from") && !strings.Contains(text, "no need to change") {
			t.Fatalf("%s: %s", order, text)
		}
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
	tx, err := c.DB.BeginTx(t.Context(), nil)
	check(t, err)
	scope, err := locksqlc.Join(t.Context(), tx)
	check(t, err)
	return tx, scope
}

// begun begins a transaction that holds a lock.
func begun(t *testing.T, c *load.Client, key txlock.Key) *sql.Tx {
	t.Helper()
	tx, scope := joined(t, c)
	check(t, second(scope.Lock(t.Context(), key)))
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
			check(t, second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")))
			// Granted when the server has rolled the other back.
			check(t, begun(t, direct, key).Rollback())
			if speaks {
				leasetest.Fails(t, "a statement on a cut connection", second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (2)")))
				wants(t, "the next statement", second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3)")), txlock.ErrTxDoomed)
			}
			if err := tx.Commit(); err == nil || speaks && !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("Commit after the connection was cut: %v", err)
			}
		}
		var n int
		if err := db.Admin().QueryRow("SELECT COUNT(*) FROM " + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are there, %v", n, err)
		}
	})
}

// TestIdleWait proves that a wait for a lock whose connection is cut ends with ErrTxDoomed,
// and leaves nobody behind in the server's queue, and that Run goes on to ask.
func TestIdleWait(t *testing.T) {
	onIdle(t, func(t *testing.T, _ *testdb.DB, cut, direct *load.Client) {
		key := txlock.Named(t.Name())
		holds := begun(t, direct, key)
		tx, scope := joined(t, cut)
		wants(t, "a wait that was cut", second(scope.Lock(t.Context(), key)), txlock.ErrTxDoomed)
		wants(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
		time.AfterFunc(3*cutAfter/2, func() { wants(t, "Rollback", holds.Rollback(), nil) })
		runs := 0
		err := locksqlc.Run(t.Context(), cut.DB, []txlock.Key{key}, func(*sql.Tx) error {
			runs++
			return nil
		})
		if err != nil || runs != 1 {
			t.Errorf("Run: %v, %d runs of its function", err, runs)
		}
		last, scope := joined(t, direct)
		defer func() { _ = last.Rollback() }()
		wants(t, "Lock, for which nobody waits", second(scope.WaitAtMost(time.Minute).Lock(t.Context(), key)), nil)
	})
}

// TestIdleLease proves that a lease is kept whose renewals are rarer than the cuts, that a
// fair wait that is cut goes on, and that Do, which asks its server every second, is not cut.
func TestIdleLease(t *testing.T) {
	onIdle(t, func(t *testing.T, _ *testdb.DB, cut, direct *load.Client) {
		const ttl = 15 * time.Second
		leases, err := lease.NewManager(cut.DB, lease.TTL(ttl)) // renewed every 5 s
		check(t, err)
		t.Cleanup(func() { check(t, leases.Close(context.Background())) })
		key := txlock.Named(t.Name())
		held, err := leases.Acquire(t.Context(), key)
		check(t, err)
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
		err = locksqlc.Do(t.Context(), cut.DB, doing, func(ctx context.Context) error {
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
			if err := held.Err(); err != nil {
				t.Fatalf("the lease is lost after %v: %v", time.Since(begun), err)
			}
		}
		if l, err := direct.Leases.TryAcquire(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
			t.Errorf("somebody else asks for it: %v, %v", l, err)
		}
		check(t, held.Release(t.Context()))
		l := <-taken
		if l == nil {
			return
		}
		if l.Token() <= held.Token() {
			t.Errorf("token %d after %d", l.Token(), held.Token())
		}
		check(t, l.Release(t.Context()))
	})
}

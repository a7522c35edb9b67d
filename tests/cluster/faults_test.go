//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

const (
	clusterTTL = 3 * time.Second
	// callLimit bounds a call of a client, on a node that may hang.
	callLimit = 10 * time.Second
)

// faultsLast is for how long faults are made: CLUSTER_DURATION, or 30 s.
func faultsLast(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("CLUSTER_DURATION")
	if text == "" {
		return 30 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("CLUSTER_DURATION: %v", err)
	}
	return d
}

// client is one that goes to one node.
type client struct {
	number int
	db     *sql.DB
	leases *lease.Manager
}

func newClient(t *testing.T, number int, db *testdb.DB) *client {
	t.Helper()
	connector, err := mysql.NewConnector(db.Config(func(c *mysql.Config) {
		c.Timeout, c.ReadTimeout, c.Logger = 2*time.Second, 2*callLimit, &mysql.NopLogger{}
	}))
	if err != nil {
		t.Fatal(err)
	}
	c := &client{number: number, db: sql.OpenDB(locksqlc.Connector(connector))}
	c.db.SetMaxOpenConns(30)
	if c.leases, err = lease.NewManager(c.db, lease.TTL(clusterTTL)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.leases.Close(ctx); err != nil {
			t.Errorf("client %d: close the manager: %v", number, err)
		}
		if err := c.db.Close(); err != nil {
			t.Errorf("client %d: close the pool: %v", number, err)
		}
	})
	return c
}

// polled acquires a lease by looking again and again, fair by the queue of its node, and
// permit is one of a semaphore.
func (c *client) polled(ctx context.Context, key txlock.Key) (*lease.Lease, error) {
	return c.leases.Acquire(ctx, key)
}

func (c *client) fair(ctx context.Context, key txlock.Key) (*lease.Lease, error) {
	return c.leases.Acquire(ctx, key, lease.Fair())
}

const permits = 2

func (c *client) permit(ctx context.Context, key txlock.Key) (*lease.Lease, error) {
	s, err := c.leases.Semaphore(key, permits)
	if err != nil {
		return nil, err
	}
	return s.Acquire(ctx)
}

// hold acquires the lease, works under it and releases it.
func (c *client) hold(ctx context.Context, h *history, acquire func(context.Context, txlock.Key) (*lease.Lease, error), work func(l *lease.Lease) error) {
	l, err := acquire(ctx, txlock.Named(h.kind))
	if err != nil {
		h.failed(err)
		return
	}
	one := hold{client: c.number, token: l.Token(), begun: time.Since(h.began)}
	held := false
	look := func() bool {
		asked := time.Since(h.began)
		if l.Err() == nil {
			one.end, held = asked, true
			return true
		}
		return false
	}
	for end := time.Now().Add(rand.N(50 * time.Millisecond)); look() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := work(l); err != nil {
		h.failed(err)
	}
	look()
	if held {
		h.add(one)
	}
	if err := l.Release(ctx); err != nil {
		h.failed(err)
	}
}

// guarded writes the token of the lease into a row, and counts where it falls.
func (c *client) guarded(ctx context.Context, g *ledger, l *lease.Lease) error {
	a := &attempts{ledger: g}
	err := locksqlc.Run(ctx, c.db, nil, func(tx *sql.Tx) error {
		return a.mark(ctx, tx, func() error {
			if _, err := tx.ExecContext(ctx, "UPDATE numbers SET falls = falls + (token > ?), token = ?, n = n + 1 WHERE kind = ?", l.Token(), l.Token(), g.kind); err != nil {
				return err
			}
			return l.Guard(ctx, tx)
		})
	})
	a.settle(err)
	return err
}

// TestFaults has clients on all nodes at once, while nodes are killed, hang, and come
// back. Updates under a lock, by versions and under a guarded lease are not lost, what
// was acknowledged stays, what was refused is not there, leases are held by one at a
// time and their tokens rise, also in the data.
func TestFaults(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		db.Exec(t, "CREATE TABLE numbers (kind VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL, token BIGINT UNSIGNED NOT NULL, falls BIGINT NOT NULL)")
		db.Exec(t, "CREATE TABLE marks (id VARCHAR(40) PRIMARY KEY, kind VARCHAR(20) NOT NULL, inside BOOL NOT NULL)")
		db.Grant(t, "numbers", "marks")
		in := inside(t, db)
		locked, optimistic, form, guarded := newLedger("locked", in), newLedger("optimistic", in), newLedger("form", in), newLedger("guarded", in)
		ledgers := []*ledger{locked, optimistic, form, guarded}
		for _, l := range ledgers {
			db.Exec(t, "INSERT INTO numbers VALUES ('"+l.kind+"', 0, 0, 0)")
		}
		polled, fair, semaphore := newHistory("polled", 1), newHistory("fair", 1), newHistory("semaphore", permits)
		var clients []*client
		for i, node := range nodes {
			at := db.At(t, node)
			caughtUp(t, at)
			clients = append(clients, newClient(t, i, at))
		}

		ctx, stop := context.WithCancel(t.Context())
		var working sync.WaitGroup
		var ended atomic.Bool
		defer working.Wait()
		defer stop()
		for _, c := range clients {
			for _, work := range []func(ctx context.Context){
				func(ctx context.Context) { locked.locked(ctx, c.db) },
				func(ctx context.Context) { optimistic.optimistic(ctx, c.db) },
				func(ctx context.Context) { form.form(ctx, c.db) },
				func(ctx context.Context) {
					c.hold(ctx, polled, c.polled, func(l *lease.Lease) error { return c.guarded(ctx, guarded, l) })
				},
				func(ctx context.Context) { c.hold(ctx, fair, c.fair, nothing) },
				func(ctx context.Context) { c.hold(ctx, semaphore, c.permit, nothing) },
			} {
				working.Go(func() {
					for !ended.Load() && ctx.Err() == nil {
						limited, cancel := context.WithTimeout(ctx, callLimit)
						work(limited)
						cancel()
						time.Sleep(rand.N(20 * time.Millisecond))
					}
				})
			}
		}
		faults := make(map[string]int)
		for end := time.Now().Add(faultsLast(t)); time.Now().Before(end) && !t.Failed(); {
			faults[fault(t, db, nodes)]++
			time.Sleep(rand.N(2 * time.Second))
		}
		ended.Store(true)
		working.Wait()
		t.Logf("faults: %v", faults)

		for i, c := range clients { // all is to be had again, by each of them
			for _, opts := range [][]lease.AcquireOption{nil, {lease.Fair()}} {
				acquired, cancel := context.WithTimeout(ctx, time.Minute)
				l, err := c.leases.Acquire(acquired, txlock.Named("polled"), opts...)
				cancel()
				if err != nil {
					t.Fatalf("client %d: Acquire at the end: %v", i, err)
				}
				if err := l.Release(ctx); err != nil {
					t.Errorf("client %d: Release at the end: %v", i, err)
				}
			}
		}
		for _, l := range ledgers {
			t.Logf("%s: errors %v", l.kind, l.errors)
		}
		for i, node := range nodes {
			t.Logf("node %d:", i)
			here := caughtUp(t, db.At(t, node))
			for _, l := range ledgers {
				l.check(t, here)
			}
			var falls int
			if err := here.QueryRow("SELECT falls FROM numbers WHERE kind = 'guarded'").Scan(&falls); err != nil {
				t.Fatal(err)
			}
			if falls != 0 {
				t.Errorf("guarded: the token in the data has fallen %d times", falls)
			}
		}
		polled.check(t)
		fair.check(t)
		semaphore.check(t)
	})
}

func nothing(*lease.Lease) error { return nil }

// fault makes a node fail and come back, and waits until it is whole again.
func fault(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (kind string) {
	t.Helper()
	node := nodes[rand.IntN(len(nodes))]
	if rand.IntN(2) == 0 {
		killed(t, node)
		return "killed"
	}
	hung(t, db.At(t, node))
	return "hung"
}

func killed(t *testing.T, node *testdb.Server) {
	t.Helper()
	if err := node.Kill(); err != nil {
		t.Fatalf("kill: %v", err)
	}
	time.Sleep(rand.N(3 * time.Second))
	if err := node.Restart(t.Context()); err != nil {
		t.Fatalf("rejoin: %v", err)
	}
}

func hung(t *testing.T, at *testdb.DB) {
	t.Helper()
	if err := at.Server().Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("stop: %v", err)
	}
	time.Sleep(rand.N(10 * time.Second)) // it is put out after 5 s
	if err := at.Server().Signal(syscall.SIGCONT); err != nil {
		t.Fatalf("continue: %v", err)
	}
	caughtUp(t, at)
}

// caughtUp returns the administrator's pool of a node that is one of three and shows
// all that was committed on any of them.
func caughtUp(t *testing.T, db *testdb.DB) *sql.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		size, err := 0, db.Server().Ready(ctx)
		if err == nil {
			size, err = clusterSize(ctx, db)
		}
		if err == nil && size == 3 {
			return db.Admin()
		}
		if ctx.Err() != nil {
			t.Fatalf("the node is not one of the cluster again, which has %d: %v", size, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// clusterSize tells how many nodes the cluster has, by a read that waits for what the
// others have committed: on Group Replication the administrator's do.
func clusterSize(ctx context.Context, db *testdb.DB) (size int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	all := " AND (SELECT COUNT(*) FROM " + db.Name() + ".lockstep_leases) >= 0"
	if db.Engine() == testdb.MariaDB {
		err = db.Admin().QueryRowContext(ctx, `SET STATEMENT wsrep_sync_wait = 1 FOR SELECT VARIABLE_VALUE
			FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_cluster_size'`+all).Scan(&size)
		return size, err
	}
	err = db.Admin().QueryRowContext(ctx, `SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'`+all).Scan(&size)
	return size, err
}

// inside is an expression that tells whether it is in a transaction. The application's
// user may ask for it.
func inside(t *testing.T, db *testdb.DB) string {
	t.Helper()
	if db.Engine() == testdb.MariaDB {
		return "@@in_transaction"
	}
	db.Exec(t, "GRANT SELECT ON performance_schema.events_transactions_current TO '"+db.Config().User+"'@'%'")
	return "(SELECT COUNT(*) FROM performance_schema.events_transactions_current WHERE THREAD_ID = PS_CURRENT_THREAD_ID() AND STATE = 'ACTIVE' AND AUTOCOMMIT = 'NO')"
}

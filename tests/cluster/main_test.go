//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/load"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// newPair starts a pair whose programs work.
func newPair(t *testing.T) *load.Pair {
	t.Helper()
	p := load.NewPair(t)
	p.DB.Exec(t, "CREATE TABLE work (who VARCHAR(20) PRIMARY KEY, n BIGINT NOT NULL)")
	p.DB.Grant(t, "work")
	p.Replicated(t)
	return p
}

// holder is a program that goes to one server.
func holder(t *testing.T, db *testdb.DB, ttl time.Duration) (*sql.DB, *lease.Manager) {
	t.Helper()
	pool := openGuarded(t, quiet(db))
	m := testdb.Got(lease.NewManager(pool, lease.TTL(ttl)))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		// Where the server is gone the leases can't be released.
		err := m.Close(ctx)
		testdb.ErrorIf(t, err != nil && db.Server().Running(), "close the manager: %v", err)
	})
	return pool, m
}

func acquire(t *testing.T, m *lease.Manager, key txlock.Key) *lease.Lease {
	t.Helper()
	return testdb.Got(m.Acquire(leasetest.Limited(t, time.Minute), key))(t)
}

// workers are those whose work a database has.
func workers(t *testing.T, db *testdb.DB) (who string) {
	t.Helper()
	check(t, db.Admin().QueryRow("SELECT COALESCE(GROUP_CONCAT(who ORDER BY who), '') FROM work").Scan(&who))
	return who
}

// TestAsynchronousFailover proves what the promotion of a replica loses that lags behind: two hold a lease, with equal tokens, and
// a transaction lock, and what was committed is gone. Guard keeps the work of each holder in its own database.
func TestAsynchronousFailover(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	key := txlock.Named("job")
	oldPool, old := holder(t, p.DB, time.Minute)
	check(t, acquire(t, old, key).Release(t.Context()))
	// A token ahead of the clock, as after a clock was set back: it rises by one.
	p.DB.Exec(t, "UPDATE lockstep_leases SET token = token + 3600000000")
	p.Replicated(t)

	p.Replica.Execute(t, "STOP SLAVE IO_THREAD") // the lag
	oldLease := acquire(t, old, key)
	oldTx := testdb.Got(oldPool.BeginTx(t.Context(), nil))(t)
	defer func() { _ = oldTx.Rollback() }()
	oldGrant := lockAndWork(t, oldTx, key, "old")
	p.Promote(t)

	newPool, fresh := holder(t, p.Copied, time.Minute)
	newLease, err := fresh.TryAcquire(t.Context(), key)
	testdb.FatalIf(t, err != nil, "TryAcquire on the new primary: %v, want the lease that the old holder has, too", err)
	wants(t, "one of two leases", errors.Join(oldLease.Renew(t.Context()), oldLease.Err(), newLease.Err()), nil)
	testdb.Equal(t, "the token of the new lease", newLease.Token(), oldLease.Token())
	newTx := testdb.Got(newPool.BeginTx(t.Context(), nil))(t)
	defer func() { _ = newTx.Rollback() }()
	newGrant := lockAndWork(t, newTx, key, "new")
	testdb.Equal(t, "the key of the old grant", oldGrant.Key(), newGrant.Key())
	for tx, l := range map[*sql.Tx]*lease.Lease{oldTx: oldLease, newTx: newLease} {
		wants(t, "a guarded transaction", errors.Join(l.Guard(t.Context(), tx), tx.Commit()), nil)
	}
	there, here := workers(t, p.DB), workers(t, p.Copied)
	testdb.ErrorIf(t, there != "old" || here != "new", "the old primary has the work of %q, the new one of %q", there, here)
}

// lockAndWork takes the lock of a key and writes under it.
func lockAndWork(t *testing.T, tx *sql.Tx, key txlock.Key, who string) txlock.Grant {
	t.Helper()
	scope := testdb.Got(locksqlc.Join(t.Context(), tx))(t)
	grant, err := scope.TryLock(t.Context(), key)
	testdb.FatalIf(t, err != nil, "TryLock by %s: %v", who, err)
	check(t, testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO work VALUES (?, 1)", who)))
	return grant
}

// TestSemiSynchronousFailover proves that semi-synchronous replication (AFTER_SYNC, without a timeout) keeps what was acknowledged,
// a lease and work under a lock, and that the old primary, cut off, acknowledges nothing: its holder loses the lease first.
func TestSemiSynchronousFailover(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	p, key := newPair(t), txlock.Named("job")
	p.SemiSynchronous(t)
	oldPool, old := holder(t, p.DB, ttl)
	t.Cleanup(func() { p.Primary.WaitNoMore(t) }) // its sessions wait for the replica
	check(t, acquire(t, old, key).Release(t.Context()))
	p.Replicated(t)

	p.Replica.Execute(t, "STOP SLAVE SQL_THREAD") // the lag: received, not executed
	oldLease := acquire(t, old, key)
	check(t, locksqlc.Run(t.Context(), oldPool, nil, func(tx *sql.Tx) error {
		lockAndWork(t, tx, key, "old")
		return nil
	}))
	p.Promote(t)

	_, fresh := holder(t, p.Copied, ttl)
	wants(t, "TryAcquire on the new primary", testdb.Err(fresh.TryAcquire(t.Context(), key)), txlock.ErrBusy)
	testdb.Equal(t, "whose work the new primary has", workers(t, p.Copied), "old")
	newLease := acquire(t, fresh, key)
	wants(t, "the old holder's lease when the new one is granted", oldLease.Err(), txlock.ErrLost)
	leasetest.Higher(t, newLease, oldLease)
	testdb.Fails(t, "Acquire on a primary that is cut off", testdb.Err(old.Acquire(leasetest.Limited(t, time.Second), txlock.Named("another"))))
}

// route is where new connections go, as a name, or an address that moves, does it.
type route struct{ addr atomic.Pointer[string] }

func (r *route) to(server *testdb.Server) {
	addr := server.Config().Addr
	r.addr.Store(&addr)
}

func (r *route) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", *r.addr.Load())
}

// lead has the connections of a client go there.
func (r *route) lead(client *mysql.Config) { client.DialFunc = r.dial }

// TestPromotions has clients on a semi-synchronous pair, whose primary is killed, hangs, is cut off or becomes read only, as that of
// a managed service does; its replica is promoted. What TestFaults promises of a cluster holds of the last primary.
func TestPromotions(t *testing.T) {
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		return
	}
	p, to := load.NewPair(t), new(route)
	work := load.New(t, p.DB)
	p.SemiSynchronous(t)
	p.Replicated(t)
	to.to(p.Primary.Server)
	work.Run(t, load.NewClients(t, 3, p.DB, to.lead), func() {
		faults := make(map[string]int)
		for end := time.Now().Add(load.FaultsLast(t, "CLUSTER_DURATION")); time.Now().Before(end) && !t.Failed(); {
			faults[promotion(t, p, to)]++
			time.Sleep(rand.N(4 * time.Second))
		}
		t.Logf("faults: %v", faults)
	})
	for _, node := range []load.Node{p.Primary, p.Replica} {
		p.Replicated(t)
		work.Check(t, p.DB.At(t, node.Server).Admin())
	}
	work.CheckHolds(t)
}

// promotion makes the primary fail, and promotes its replica.
func promotion(t *testing.T, p *load.Pair, to *route) (kind string) {
	t.Helper()
	kind = []string{"killed", "hung", "cut off", "read only"}[rand.IntN(4)]
	switch kind {
	case "read only":
		p.Primary.Execute(t, "SET GLOBAL read_only = ON")
	case "killed":
		check(t, p.Primary.Kill())
	case "hung":
		check(t, p.Primary.Signal(syscall.SIGSTOP))
	}
	old := p.FailOver(t, to.to)
	if kind == "hung" {
		check(t, old.Signal(syscall.SIGCONT))
	}
	switch kind {
	case "read only":
		left(t, p.DB.At(t, old.Server))
	case "hung", "cut off":
		time.Sleep(rand.N(2 * load.TTL)) // those who are still there are told nothing
	}
	check(t, old.Stop()) // and its data with it
	return kind
}

// left returns when no client has a session any more on a server that refuses writes.
func left(t *testing.T, old *testdb.DB) {
	t.Helper()
	testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool {
		var sessions int
		check(t, old.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+old.Engine().Processes()+" WHERE user = ?", old.Config().User).Scan(&sessions))
		return sessions == 0
	}), "sessions stay on the old primary")
}

// TestSinglePrimary has clients on the one primary of a Group Replication, which is killed, hangs, is cut off, or hands over and
// refuses writes, so that the pools leave it. What TestFaults promises of several primaries holds, on every member.
func TestSinglePrimary(t *testing.T) {
	if slices.Contains(testdb.Engines(), testdb.MySQL) {
		singlePrimary(t, "CLUSTER_DURATION", nil)
	}
}

// singlePrimary leads clients to the primary by a route that follows it, or behind what stands
// before the members.
func singlePrimary(t *testing.T, lasting string, behind func(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (lead func(*mysql.Config))) {
	nodes := testdb.Got(testdb.StartGroup(t.Context(), 3, testdb.Parted(), testdb.Args(
		"--loose-group-replication-single-primary-mode=ON", "--loose-group-replication-enforce-update-everywhere-checks=OFF")))(t)
	db := nodes[0].Open(t)
	t.Cleanup(func() { // before the database is dropped, which only a primary can
		if t.Failed() {
			for i, node := range nodes {
				t.Logf("node %d wrote:\n%s", i, node.Log())
			}
		}
		check(t, testdb.StopAll(nodes))
	})
	work, to := load.New(t, db), new(route)
	to.to(nodes[0])
	following, lead := follow(t, to, nodes), to.lead
	if behind != nil {
		lead = behind(t, db, nodes)
	}
	clients := load.NewClients(t, len(nodes), db, lead)
	work.Run(t, clients, func() {
		faults, elected := make(map[string]int), 0
		turn := 0
		for end := time.Now().Add(load.FaultsLast(t, lasting)); time.Now().Before(end) && !t.Failed(); turn++ {
			before := following.primary()
			if turn%3 == 0 && behind == nil { // a router decides itself when it leaves
				following.handOver(t, db, nodes)
				faults["read only"]++
			} else {
				faults[fault(t, db, before)]++
			}
			if following.primary() != before {
				elected++
			}
			time.Sleep(rand.N(2 * time.Second))
		}
		t.Logf("faults: %v, %d times another primary was elected", faults, elected)
		testdb.ErrorIf(t, elected == 0, "no other primary was elected")
		load.Connected(t, load.Pools(clients)...)
	})
	for i, node := range nodes {
		t.Logf("node %d:", i)
		work.Check(t, caughtUp(t, db.At(t, node)))
	}
	work.CheckHolds(t)
}

// follower knows which member is the primary.
type follower struct {
	mu  sync.Mutex
	now *testdb.Server
}

func (f *follower) primary() *testdb.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// follow routes new connections to the member that a majority has elected, as a router does.
func follow(t *testing.T, to *route, nodes []*testdb.Server) *follower {
	t.Helper()
	f := &follower{now: nodes[0]}
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	t.Cleanup(func() {
		stop()
		following.Wait()
	})
	for _, node := range nodes {
		pool := load.Administrator(t, node, time.Second)
		following.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				var itself bool
				err := pool.QueryRowContext(ctx, `SELECT COALESCE(SUM(MEMBER_ROLE = 'PRIMARY' AND MEMBER_ID = @@server_uuid), 0) AND COUNT(*) >= 2
					FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'`).Scan(&itself)
				if err != nil || !itself {
					continue
				}
				f.mu.Lock()
				f.now = node
				to.to(node)
				f.mu.Unlock()
			}
		})
	}
	return f
}

// handOver makes another member the primary, and returns when the clients have left the old one.
func (f *follower) handOver(t *testing.T, db *testdb.DB, nodes []*testdb.Server) {
	t.Helper()
	old := f.primary()
	next := nodes[(slices.Index(nodes, old)+1+rand.IntN(len(nodes)-1))%len(nodes)]
	var id string
	check(t, db.At(t, next).Admin().QueryRowContext(t.Context(), "SELECT @@server_uuid").Scan(&id))
	before := db.At(t, old)
	before.Exec(t, "DO group_replication_set_as_primary('"+id+"', 2)") // transactions have 2 s to end
	testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool { return f.primary() == next }), "the clients aren't led to the new primary")
	left(t, before)
}

func TestMain(m *testing.M) { testdb.Main(m) }

// clusters are those of this process, of three servers each.
var clusters = map[testdb.Engine]*struct {
	start func(context.Context, int, ...testdb.Option) ([]*testdb.Server, error)
	nodes []*testdb.Server
}{
	testdb.MariaDB: {start: testdb.StartGalera},
	testdb.MySQL:   {start: testdb.StartGroup},
	testdb.TiDB:    {start: testdb.StartTiDB},
}

// cluster returns the nodes of the engine's cluster, of which the first is what testdb gives to tests that know of no cluster. After a test
// that failed the next one has a new cluster.
func cluster(t *testing.T, engine testdb.Engine) []*testdb.Server {
	t.Helper()
	testdb.NeedsServer(t)
	c := clusters[engine]
	if c.nodes == nil {
		nodes := testdb.Got(c.start(context.Background(), 3, testdb.Parted()))(t)
		testdb.AtClose(func() error { return testdb.StopAll(nodes) })
		c.nodes = nodes
	}
	check(t, os.Setenv(engine.DSNVariable(), c.nodes[0].Config().FormatDSN()))
	nodes := c.nodes
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for i, node := range nodes {
			t.Logf("node %d wrote:\n%s", i, node.Log())
			wants(t, "kill", node.Kill(), nil)
		}
		c.nodes = nil
	})
	return nodes
}

// clientsOf opens a client of each node, which has caught up.
func clientsOf(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (clients []*load.Client) {
	t.Helper()
	for i, node := range nodes {
		clients = append(clients, load.NewClient(t, i, caughtUpConfig(t, db, node)))
	}
	return clients
}

// onAll runs a test on each.
func onAll(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	onSome(t, test, testdb.MariaDB, testdb.MySQL, testdb.TiDB)
}

// onClusters runs a test on those whose nodes have copies of the rows, and refuse a COMMIT that
// collides with one on another.
func onClusters(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	onSome(t, test, testdb.MariaDB, testdb.MySQL)
}

// onTiDB runs a test on TiDB servers over one store.
func onTiDB(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	onSome(t, test, testdb.TiDB)
}

func onSome(t *testing.T, test func(t *testing.T, nodes []*testdb.Server), engines ...testdb.Engine) {
	t.Helper()
	for _, engine := range testdb.Engines() {
		if slices.Contains(engines, engine) {
			t.Run(string(engine), func(t *testing.T) { test(t, cluster(t, engine)) })
		}
	}
}

var check, wants = testdb.Must, testdb.Wants

// TestSuite shows the behaviours of locks through one node: there all hold, but for
// shared locks, which are refused.
func TestSuite(t *testing.T) {
	for _, engine := range testdb.Engines() {
		cluster(t, engine)
	}
	adapters := []locksuite.Adapter{
		{Name: "guarded", Guarded: true, Open: locksuite.OpenSQL(true, locksuite.BeginTx)},
		{Name: "plain", Open: locksuite.OpenSQL(false, locksuite.BeginTx)},
	}
	locksuite.Run(t, adapters...)
	locksuite.RunPreparing(t, adapters...)
}

package quorum_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var must, wants, higher, limited = testdb.Must, testdb.Wants, leasetest.Higher, leasetest.Limited

// inner is what package lease does for lockstep's own packages.
var inner = lease.Internal(bridge.Pass{})

// newNodes makes empty databases, which are the nodes, on the servers in turn.
func newNodes(t testing.TB, n int) []*testdb.DB {
	t.Helper()
	engines := testdb.Engines()
	var nodes []*testdb.DB
	for i := range n {
		db := testdb.Fresh(t, engines[i%len(engines)])
		createLeases(t, db)
		db.Grant(t, "lockstep_leases")
		nodes = append(nodes, db)
	}
	return nodes
}

// createLeases makes the one table that is needed.
func createLeases(t testing.TB, db *testdb.DB) {
	t.Helper()
	statements := testdb.Got(schema.Statements())(t)
	for _, s := range statements {
		if strings.Contains(s, "lockstep_leases") {
			db.Exec(t, s)
		}
	}
}

// newLeases makes the managers of the nodes.
func newLeases(t testing.TB, nodes []*testdb.DB, options ...lease.ManagerOption) []*lease.Manager {
	t.Helper()
	var managers []*lease.Manager
	for _, db := range nodes {
		m := testdb.Got(lease.NewManager(leasetest.Pool(t, db, true), append([]lease.ManagerOption{lease.PurgeEvery(0, time.Hour)}, options...)...))(t)
		t.Cleanup(func() { closeIt(t, m) })
		managers = append(managers, m)
	}
	return managers
}

// newQuorum makes a manager over managers of its own, which is closed before them.
func newQuorum(t testing.TB, nodes []*testdb.DB, options ...lease.ManagerOption) *quorum.Manager {
	t.Helper()
	leases := newLeases(t, nodes, options...)
	terms := testdb.Got(inner.Terms(leases[0]))(t)
	m := newManager(t, leases, quorum.NodeTimeout(terms.TTL/3)) // a busy machine's nodes answer late
	must(t, m.Install(t.Context()))
	return m
}

func newManager(t testing.TB, managers []*lease.Manager, options ...quorum.Option) *quorum.Manager {
	t.Helper()
	m := testdb.Got(quorum.New(managers, options...))(t)
	t.Cleanup(func() { closeIt(t, m) })
	return m
}

func closeIt(t testing.TB, m interface{ Close(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wants(t, fmt.Sprintf("close %T", m), m.Close(ctx), nil)
}

// named is a key of this test alone.
func named() txlock.Key { return txlock.Named("quorum:" + rand.Text()) }

func acquire(t testing.TB, m *quorum.Manager, key txlock.Key, options ...lease.AcquireOption) *quorum.Lease {
	t.Helper()
	return testdb.Got(m.Acquire(limited(t, time.Minute), key, options...))(t)
}

func release(t testing.TB, l interface{ Release(context.Context) error }) {
	t.Helper()
	must(t, l.Release(context.Background()))
}

// held counts the nodes where somebody holds the lease.
func held(t testing.TB, nodes []*testdb.DB, key txlock.Key) (n int) {
	t.Helper()
	for _, db := range nodes {
		n += int(db.Number(t, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND holders <> LEFT('-', 0) AND expires_us > UNIX_TIMESTAMP() * 1000000", key.String()))
	}
	return n
}

// await asks until the answer is yes, for a minute.
func await(t testing.TB, what string, ask func() bool) {
	t.Helper()
	testdb.FatalIf(t, !testdb.Await(time.Minute, ask), "%s: not within a minute", what)
}

// poolOf returns the pool of a manager.
func poolOf(m *lease.Manager) *sql.DB { return inner.Identity(m).(*sql.DB) }

// job is a key of the tests in memory, each of which has nodes of its own.
var job = txlock.Named("job")

// memory are nodes in memory, for a test in a bubble: time passes when everybody waits.
type memory struct {
	t     *testing.T
	nodes []*memstore.Server
	begun time.Time
}

// inMemory runs a test without servers, on so many nodes.
func inMemory(t *testing.T, n int, test func(t *testing.T, db *memory)) {
	t.Helper()
	leasetest.InBubble(t, 72*time.Hour, func(t *testing.T) {
		db := &memory{t: t, begun: time.Now()}
		for range n {
			db.nodes = append(db.nodes, memstore.New())
		}
		test(t, db)
	})
}

// leases returns the managers of a process's leases on the nodes, and its ways to them.
func (db *memory) leases() (leases []*lease.Manager, stores []*memstore.Store) {
	db.t.Helper()
	for _, node := range db.nodes {
		s := node.Store()
		m := testdb.Got(lease.NewManager(s.Pool(), lease.PurgeEvery(0, time.Hour)))(db.t)
		db.t.Cleanup(func() {
			closeIt(db.t, m)
			must(db.t, s.Pool().Close())
		})
		leases, stores = append(leases, m), append(stores, s)
	}
	return leases, stores
}

// process returns a manager of a process of its own, and its ways to the nodes.
func (db *memory) process(options ...quorum.Option) (*quorum.Manager, []*memstore.Store) {
	db.t.Helper()
	leases, stores := db.leases()
	return newManager(db.t, leases, options...), stores
}

// installed is process on nodes that count.
func (db *memory) installed(options ...quorum.Option) (*quorum.Manager, []*memstore.Store) {
	db.t.Helper()
	m, stores := db.process(options...)
	must(db.t, m.Install(db.t.Context()))
	return m, stores
}

// manager is the manager of installed.
func (db *memory) manager() *quorum.Manager {
	db.t.Helper()
	m, _ := db.installed()
	return m
}

// force takes the lease away in one node.
func (db *memory) force(node int) {
	db.t.Helper()
	pool := db.nodes[node].Store().Pool()
	operator := testdb.Got(lease.NewManager(pool, lease.PurgeEvery(0, time.Hour)))(db.t)
	must(db.t, errors.Join(operator.ForceRelease(db.t.Context(), job), operator.Close(db.t.Context()), pool.Close()))
}

// held counts the nodes where somebody holds the lease.
func (db *memory) held() (n int) {
	db.t.Helper()
	for _, node := range db.nodes {
		seen := testdb.Got(node.Store().Look(db.t.Context(), store.Row{Key: job.String()}))(db.t)
		if seen.Left > 0 {
			n++
		}
	}
	return n
}

// holds checks on how many nodes somebody holds the lease when all have done what they do.
func (db *memory) holds(what string, want int) {
	db.t.Helper()
	synctest.Wait()
	testdb.Equal(db.t, "nodes that hold it "+what, db.held(), want)
}

// within checks how much time has passed in the test.
func (db *memory) within(what string, least, most time.Duration) {
	db.t.Helper()
	took := time.Since(db.begun)
	testdb.ErrorIf(db.t, took < least || took > most, "%s after %v, want %v to %v", what, took, least, most)
}

// late lets the calls of a node arrive later.
func late(d time.Duration) memstore.Fault {
	return func(_ context.Context, _ string, _ store.Row, call func() error) error {
		time.Sleep(d)
		return call()
	}
}

// hangs lets the calls of a node wait until their callers give them up.
func hangs(ctx context.Context, _ string, _ store.Row, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

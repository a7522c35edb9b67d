//go:build cluster

package cluster

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

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

// cluster returns the nodes of the engine's cluster: Galera, a Group Replication, or TiDB servers
// over one store. The first of them is what testdb gives to the tests that know of no cluster. What a failed
// test leaves may lack a node, or answer nothing: the next one has a new cluster.
func cluster(t *testing.T, engine testdb.Engine) []*testdb.Server {
	t.Helper()
	testdb.NeedsServer(t)
	c := clusters[engine]
	if c.nodes == nil {
		nodes := leasetest.Got(c.start(context.Background(), 3, testdb.Parted()))(t)
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

var check, wants = leasetest.Must, leasetest.Wants

func second[T any](_ T, err error) error { return err }

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

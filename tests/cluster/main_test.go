//go:build cluster

package cluster

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
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
		nodes, err := c.start(context.Background(), 3, testdb.Parted())
		check(t, err)
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
			if err := node.Kill(); err != nil {
				t.Error(err)
			}
		}
		c.nodes = nil
	})
	return nodes
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

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

//go:build cluster

package cluster

import (
	"context"
	"os"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// clusters are those of this process, of three primaries each.
var clusters = map[testdb.Engine]*struct {
	start func(context.Context, int, ...testdb.Option) ([]*testdb.Server, error)
	nodes []*testdb.Server
}{
	testdb.MariaDB: {start: testdb.StartGalera},
	testdb.MySQL:   {start: testdb.StartGroup},
}

// cluster returns the nodes of the engine's cluster: Galera, or a Group Replication. The
// first of them is what testdb gives to the tests that know of no cluster. What a failed
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

// onClusters runs a test on each.
func onClusters(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) { test(t, cluster(t, engine)) })
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

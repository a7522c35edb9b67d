//go:build cluster

package cluster

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// started are the clusters of this process, of three primaries each. The first of them
// is what testdb gives to the tests that know of no cluster.
var started = map[testdb.Engine]func() ([]*testdb.Server, error){
	testdb.MariaDB: once(testdb.MariaDB, testdb.StartGalera),
	testdb.MySQL:   once(testdb.MySQL, testdb.StartGroup),
}

func once(engine testdb.Engine, start func(context.Context, int, ...testdb.Option) ([]*testdb.Server, error)) func() ([]*testdb.Server, error) {
	return sync.OnceValues(func() ([]*testdb.Server, error) {
		nodes, err := start(context.Background(), 3)
		if err != nil {
			return nil, err
		}
		testdb.AtClose(func() error { return testdb.StopAll(nodes) })
		return nodes, os.Setenv(engine.DSNVariable(), nodes[0].Config().FormatDSN())
	})
}

// cluster returns the nodes of the engine's cluster: Galera, or a Group Replication.
func cluster(t *testing.T, engine testdb.Engine) []*testdb.Server {
	t.Helper()
	testdb.NeedsServer(t)
	nodes, err := started[engine]()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i, node := range nodes {
			if t.Failed() {
				t.Logf("node %d wrote:\n%s", i, node.Log())
			}
		}
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

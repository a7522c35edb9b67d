//go:build cluster

package cluster

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/dca00107/lockstep/internal/testdb"
)

// TestMain makes MariaDB the only engine: Galera is a part of that.
func TestMain(m *testing.M) {
	if err := os.Setenv("LOCKSTEP_ENGINES", string(testdb.MariaDB)); err != nil {
		panic(err)
	}
	testdb.Main(m)
}

// started is the cluster of this process. Its first node is what testdb gives to the
// tests that know of no cluster.
var started = sync.OnceValues(func() ([]*testdb.Server, error) {
	nodes, err := testdb.StartGalera(context.Background(), 3)
	if err != nil {
		return nil, err
	}
	testdb.AtClose(func() error { return testdb.StopAll(nodes) })
	return nodes, os.Setenv(testdb.MariaDB.DSNVariable(), nodes[0].Config().FormatDSN())
})

// galera returns the nodes of the cluster.
func galera(t *testing.T) []*testdb.Server {
	t.Helper()
	nodes, err := started()
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

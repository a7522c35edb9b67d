//go:build cluster

package cluster

import (
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestCheckOfNodes proves that lockstep check warns of several primaries, and compares the
// clocks of the nodes.
func TestCheckOfNodes(t *testing.T) {
	onClusters(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		found, err := ops.New(db.Connect(t)).Check(t.Context(), db.At(t, nodes[1]).Admin(), db.At(t, nodes[2]).Admin())
		if err != nil {
			t.Fatal(err)
		}
		states := make(map[string]ops.State)
		for _, f := range found {
			states[f.Name] = f.State
		}
		for name, want := range map[string]ops.State{"cluster": ops.Warn, "tables": ops.OK, "clock of node 1": ops.OK, "clock of node 2": ops.OK} {
			if states[name] != want {
				t.Errorf("%s is %q, want %q, of %+v", name, states[name], want, found)
			}
		}
	})
}

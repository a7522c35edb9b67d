//go:build tidb

package job

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestTiDBProcesses proves what TestProcesses does, on processes that go to two TiDB servers over one
// store, which are killed in turn, too.
func TestTiDBProcesses(t *testing.T) {
	nodes := testdb.Got(testdb.StartTiDB(t.Context(), 3))(t)
	t.Cleanup(func() { must(t, testdb.StopAll(nodes)) })
	db, calls := nodes[0].OpenLeases(t), 0
	playProcesses(t, func() {
		if calls++; calls%4 == 0 {
			must(t, nodes[1+calls/4%2].Restart(t.Context()))
		}
	}, db, db.At(t, nodes[1]), db.At(t, nodes[2]))
	t.Logf("servers were killed %d times", calls/4)
}

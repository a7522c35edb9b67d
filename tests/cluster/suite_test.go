//go:build cluster

package cluster

import (
	"testing"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

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

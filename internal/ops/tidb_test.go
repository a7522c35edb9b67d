//go:build tidb

package ops_test

import (
	"slices"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// TestTiDB: Check finds no fault, and says that nobody's locks can be shown.
func TestTiDB(t *testing.T) {
	t.Parallel()
	found, err := ops.New(testdb.Open(t, testdb.TiDB).Connect(t)).Check(t.Context())
	testdb.FatalIf(t, err != nil, "%v", err)
	i := slices.IndexFunc(found, func(f ops.Finding) bool { return f.State == ops.Error })
	testdb.ErrorIf(t, i >= 0, "%+v", found)
	testdb.ErrorIf(t, !slices.ContainsFunc(found, func(f ops.Finding) bool { return f.Name == "sight" && f.State == ops.Warn }),
		"it doesn't say what can't be seen: %+v", found)
}

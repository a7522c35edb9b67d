//go:build tidb || vitess

package schema_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
)

// TestOnOtherEngines: Install makes what Check finds right, twice, on pools of both kinds, and
// InstallViews says that there are none.
func TestOnOtherEngines(t *testing.T) {
	t.Parallel()
	engine := testdb.Engines()[0]
	db := testdb.Fresh(t, engine)
	demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrTable, "run schema.Install")
	guarded := testdb.Got(locksqlc.Open(db.DSN()))(t)
	t.Cleanup(func() { _ = guarded.Close() })
	for range 2 {
		demand(t, schema.Install(t.Context(), db.Admin()), nil)
		demand(t, schema.Check(t.Context(), db.Connect(t)), nil)
		demand(t, schema.Check(t.Context(), guarded), nil)
	}
	demand(t, schema.InstallViews(t.Context(), db.Admin()), schema.ErrEngine, "no views")
	wrong := map[testdb.Engine]struct {
		params map[string]string
		says   string
	}{
		testdb.TiDB:   {map[string]string{"tidb_txn_mode": "'optimistic'"}, "set pessimistic"},
		testdb.Vitess: {map[string]string{"workload": "'olap'"}, "set oltp"},
	}[engine]
	demand(t, schema.Check(t.Context(), db.Connect(t, func(cfg *mysql.Config) { cfg.Params = wrong.params })), schema.ErrSession, wrong.says)
	db.Exec(t, "ALTER TABLE lockstep_locks MODIFY conn_id INT NOT NULL")
	demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrTable, "ALTER TABLE lockstep_locks MODIFY conn_id BIGINT UNSIGNED NOT NULL")
}

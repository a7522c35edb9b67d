//go:build tidb

package schema_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// TestTiDB: Install makes what Check finds right, twice, and InstallViews says that there are none.
func TestTiDB(t *testing.T) {
	t.Parallel()
	db := testdb.Fresh(t, testdb.TiDB)
	demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrTable, "run schema.Install")
	for range 2 {
		demand(t, schema.Install(t.Context(), db.Admin()), nil)
		demand(t, schema.Check(t.Context(), db.Connect(t)), nil)
	}
	demand(t, schema.InstallViews(t.Context(), db.Admin()), schema.ErrEngine, "no views")
	demand(t, schema.Check(t.Context(), db.Connect(t, func(cfg *mysql.Config) {
		cfg.Params = map[string]string{"tidb_txn_mode": "'optimistic'"}
	})), schema.ErrSession, "set pessimistic")
	db.Exec(t, "ALTER TABLE lockstep_locks MODIFY conn_id INT NOT NULL")
	demand(t, schema.Check(t.Context(), db.Connect(t)), schema.ErrTable, "ALTER TABLE lockstep_locks MODIFY conn_id BIGINT UNSIGNED NOT NULL")
}

// TestTiDBPrivileges: Check says what this user may not do.
func TestTiDBPrivileges(t *testing.T) {
	t.Parallel()
	db := testdb.Fresh(t, testdb.TiDB)
	demand(t, schema.Install(t.Context(), db.Admin()), nil)
	for _, privilege := range []string{"INSERT", "UPDATE", "DELETE"} {
		user := "only_" + strings.ToLower(rand.Text())
		db.Exec(t, "CREATE USER "+user)
		db.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON `"+db.Name()+"`.* TO "+user)
		db.Exec(t, "REVOKE "+privilege+" ON `"+db.Name()+"`.* FROM "+user)
		demand(t, schema.Check(t.Context(), db.Connect(t, func(cfg *mysql.Config) { cfg.User, cfg.Passwd = user, "" })), schema.ErrPrivilege, "GRANT "+privilege+" ON `"+db.Name())
		db.Exec(t, "DROP USER "+user)
	}
}

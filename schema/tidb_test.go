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

package locksqlc_test

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// edits are what instrumentation does to a text.
var edits = map[string]func(query string) string{
	"before":      func(query string) string { return "/* app='shop', CALL COMMIT (NULL, 0) */ " + query },
	"line before": func(query string) string { return "-- app='shop'\n" + query },
	"behind":      func(query string) string { return query + " /* traceparent='00-1-1-00', (NULL, 0) */" },
	"line behind": func(query string) string { return query + " -- traceparent='00-1-1-00'" },
}

// editors are wrappers that change texts, and some that don't.
func editors() map[string]func(connection) driver.Conn {
	all := map[string]func(connection) driver.Conn{
		"commenter":  wrappers["commenter"],
		"unchecked":  wrappers["unchecked"],
		"unexecuted": wrappers["unexecuted"],
	}
	for name, edit := range edits {
		all[name] = func(c connection) driver.Conn { return edited{c, edit} }
		all["shown, "+name] = func(c connection) driver.Conn { return shown{edited{c, edit}} }
	}
	all["unexecuted, before"] = func(c connection) driver.Conn { return wrappers["unexecuted"](edited{c, edits["before"]}) }
	return all
}

// onEdited runs a test on guarded pools of one connection with each of these wrappers, around
// the guards, under them and between two.
func onEdited(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, without := range []bool{false, true} {
			if without && !hasProcedures(engine) {
				continue
			}
			db := testdb.Shared(t, engine).OpenNamed(t, hashed.Key(1).Slot())
			if without {
				db.DropProcedures(t)
			}
			all := editors()
			for i, name := range slices.Sorted(maps.Keys(all)) {
				wrap := all[name]
				for j, place := range []func(func(connection) driver.Conn) func(driver.Connector) driver.Connector{around, under, between} {
					if !testdb.Meet(i, j, without) {
						continue
					}
					t.Run(fmt.Sprintf("%s/without procedures=%t/%s %s", engine, without, name, []string{"around", "under", "between"}[j]), func(t *testing.T) {
						t.Parallel()
						pool := single(openPool(t, db.Config(), place(wrap)))
						test(t, db, pool)
					})
				}
			}
		}
	}
}

// TestOpenerStaysEdited proves that what stays prepared is what the wrapper has made of it.
func TestOpenerStaysEdited(t *testing.T) {
	onMariaDB(t, func(t *testing.T, _ *testdb.DB) {
		db := testdb.Shared(t, testdb.MariaDB).OpenNamed(t)
		db.Exec(t, "CREATE TABLE tenant_locks LIKE lockstep_locks")
		pool := openPool(t, db.AdminConfig(), around(func(c connection) driver.Conn {
			return edited{c, strings.NewReplacer("lockstep_locks", "tenant_locks").Replace}
		}))
		pool.SetMaxOpenConns(1)
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "tenant")
		runs(t, pool, table, key, 20)
		wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM lockstep_locks")
	})
}

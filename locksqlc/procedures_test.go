package locksqlc_test

import (
	"database/sql"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOptimisticWithoutItsEnd drops the procedure that would compare the version and
// commit, after the one that has read the version: the transaction ends by statements, once.
func TestOptimisticWithoutItsEnd(t *testing.T) {
	t.Parallel()
	if testdb.WithoutProcedures() {
		t.Skip("without procedures")
	}
	for _, engine := range testdb.Engines() {
		if engine == testdb.MariaDB {
			continue
		}
		for _, name := range []string{"lockstep_compare_1", "lockstep_raise_1"} {
			db := testdb.Shared(t, engine).Open(t)
			table := db.CreateTable(t, "ends", "id INT PRIMARY KEY, n INT NOT NULL")
			db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
			pool, err := locksqlc.Open(db.DSN())
			check(t, err)
			defer func() { check(t, pool.Close()) }()
			key := uniqueKey(t, name)
			runs := 0
			check(t, locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
				runs++
				if runs == 1 {
					db.DropProcedures(t, name)
				}
				_, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = n + 1 WHERE id = 1")
				return err
			}))
			var n int
			check(t, db.Admin().QueryRowContext(t.Context(), "SELECT n FROM "+table).Scan(&n))
			version, err := txlock.ReadVersion(t.Context(), pool, key)
			check(t, err)
			if runs != 1 || n != 1 || version == 0 {
				t.Errorf("without %s: %d runs, %d updates, version %d", name, runs, n, version)
			}
		}
	}
}

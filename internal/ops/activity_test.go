package ops_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestActivity proves that MySQL shows the last statement of the program in the transaction of an
// idle holder, not a later one of lockstep's, and none from an earlier transaction.
func TestActivity(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if db.Engine() != testdb.MySQL {
			return // MariaDB tells no last statement
		}
		pool := db.Connect(t, func(c *mysql.Config) { c.InterpolateParams = true }) // else the ten are of two locks
		pool.SetMaxOpenConns(1)
		must(t, txlock.Ensure(t.Context(), pool, txlock.Named("activity:1"), txlock.Named("activity:2")))
		_, err := pool.ExecContext(t.Context(), "DO 41")
		must(t, err)
		tx, scope := beginTx(t, pool)
		session := uint64(testdb.ConnID(t, tx))
		shows := func(want string) {
			t.Helper()
			lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return p.Sessions[session].Statement == want })
		}
		lock(t, scope, "activity:1")
		must(t, second(tx.ExecContext(t.Context(), "DO 42")))
		lock(t, scope, "activity:2")
		shows("DO 42")
		must(t, tx.Rollback())

		tx, scope = beginTx(t, pool)
		lock(t, scope, "activity:1")
		shows("lockstep LockNamed")
		must(t, tx.Rollback())
	})
}

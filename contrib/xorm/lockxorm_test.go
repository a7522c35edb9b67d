package lockxorm_test

import (
	"testing"

	"xorm.io/xorm"

	lockxorm "github.com/dca00107/lockstep/contrib/xorm"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var check, wants = testdb.Must, testdb.Wants

// TestJoin proves what Join refuses. That the lock excludes, on a pool that is guarded, is recipes.TestSales's.
func TestJoin(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		ctx, server := t.Context(), testdb.Open(t, engine)
		db := testdb.Got(xorm.NewEngine(locksqlc.DriverName, server.DSN()))(t)
		t.Cleanup(func() { check(t, db.Close()) })
		session := db.NewSession().Context(ctx)
		defer func() { check(t, session.Close()) }()
		refused := func(when string) {
			t.Helper()
			_, err := lockxorm.Join(ctx, session)
			wants(t, "Join "+when, err, txlock.ErrNoTransaction)
		}
		refused("before Begin")
		check(t, session.Begin())
		locks := testdb.Got(lockxorm.Join(ctx, session))(t)
		testdb.Got(locks.Lock(ctx, txlock.Named("xorm")))(t)
		check(t, session.Commit())
		refused("after Commit")
	})
	_, err := lockxorm.Join(t.Context(), nil)
	testdb.Fails(t, "Join of no session", err)
}

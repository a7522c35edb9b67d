package lockxorm_test

import (
	"database/sql"
	"testing"

	"xorm.io/xorm"

	lockxorm "github.com/dca00107/lockstep/contrib/xorm"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var pieces = txlock.NewFamily[int64]("xorm")

var check, wants = leasetest.Must, leasetest.Wants

// TestJoin proves that an engine which is opened by name has a guarded pool, that the lock of a
// session excludes until its Commit, and what Join refuses. That no sale is lost is recipes.TestSales's.
func TestJoin(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		ctx, server := t.Context(), testdb.Open(t, engine)
		db := leasetest.Got(xorm.NewEngine(locksqlc.DriverName, server.DSN()))(t)
		t.Cleanup(func() { check(t, db.Close()) })
		check(t, txlock.CheckGuarded(ctx, db.DB().DB))
		session := db.NewSession().Context(ctx)
		defer func() { check(t, session.Close()) }()
		refused := func(when string) {
			t.Helper()
			_, err := lockxorm.Join(ctx, session)
			wants(t, "Join "+when, err, txlock.ErrNoTransaction)
		}
		refused("before Begin")
		check(t, session.Begin())
		locks := leasetest.Got(lockxorm.Join(ctx, session))(t)
		leasetest.Got(locks.Lock(ctx, pieces.Key(1)))(t)
		another := func() error {
			return locksqlc.Run(ctx, db.DB().DB, nil, func(tx *sql.Tx) error {
				locks := leasetest.Got(locksqlc.Join(ctx, tx))(t)
				_, err := locks.TryLock(ctx, pieces.Key(1))
				return err
			})
		}
		wants(t, "another transaction", another(), txlock.ErrBusy)
		check(t, session.Commit())
		check(t, another())
		refused("after Commit")
	})
	_, err := lockxorm.Join(t.Context(), nil)
	leasetest.Fails(t, "Join of no session", err)
}

package wired_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/dca00107/lockstep/examples/wired"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Stock makes the keys of products.
var Stock = txlock.NewFamily[int64]("stock")

// openResolved opens a primary with a replica. Both pools are guarded.
func openResolved(primary, replica string, options ...gorm.Option) (*gorm.DB, *dbresolver.DBResolver, error) {
	db, err := lockgorm.Open(primary, options...)
	if err != nil {
		return nil, nil, err
	}
	pools := dbresolver.Register(dbresolver.Config{
		Replicas: []gorm.Dialector{lockgorm.Dialector(replica)},
	})
	return db, pools, db.Use(pools)
}

// sellByGORM sells one piece. What is read in the transaction is read on the primary.
func sellByGORM(ctx context.Context, db *gorm.DB, id int64) error {
	return lockgorm.Transaction(db.WithContext(ctx), Stock.Keys(id), func(tx *gorm.DB) error {
		var n int64
		if err := tx.Table("stock").Select("n").Where("id = ?", id).Scan(&n).Error; err != nil {
			return err
		}
		return tx.Table("stock").Where("id = ?", id).Update("n", n-1).Error
	})
}

// Locks is the module for fx. When the program stops, its jobs end, and its leases are
// released, so that no other process waits for their TTL.
var Locks = fx.Module("locks", fx.Provide(
	func(stopping fx.Lifecycle, db *gorm.DB) (*lease.Manager, error) {
		leases, _, err := wired.NewLeases(db)
		if err == nil {
			stopping.Append(fx.StopHook(leases.Close))
		}
		return leases, err
	},
	func(stopping fx.Lifecycle, db *gorm.DB, leases *lease.Manager) (*job.Jobs, error) {
		jobs, _, err := wired.NewJobs(db, leases)
		if err == nil {
			stopping.Append(fx.StopHook(jobs.Close))
		}
		return jobs, err
	},
))

// noGoroutine returns the one time to live of statements for which GORM starts no goroutine that
// outlives the pool.
func noGoroutine() *gorm.Config { return &gorm.Config{PrepareStmtTTL: 10 * 365 * 24 * time.Hour} }

func TestMain(m *testing.M) { testdb.Main(m) }

var check = testdb.Must

// TestDBResolver proves that no sale is lost on a primary with a replica, and that the pool of
// the primary is guarded.
func TestDBResolver(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		primary, replica := testdb.Fresh(t, engine), testdb.Fresh(t, engine)
		db, pools, err := openResolved(primary.AdminDSN(), replica.AdminDSN(), noGoroutine())
		check(t, err)
		defer func() { check(t, pools.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() })) }()
		pool := testdb.Got(db.DB())(t)
		check(t, txlock.CheckGuarded(t.Context(), pool))
		check(t, schema.Install(t.Context(), pool))
		primary.Exec(t, "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
		primary.Exec(t, "INSERT INTO stock VALUES (1, 40)")
		var selling sync.WaitGroup
		for range 4 {
			selling.Go(func() {
				for range 10 {
					testdb.Wants(t, "sellByGORM", sellByGORM(t.Context(), db, 1), nil)
				}
			})
		}
		selling.Wait()
		var left int
		check(t, pool.QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = 1").Scan(&left))
		testdb.Equal(t, "pieces left", left, 0)
	})
}

// TestOnlyAGORMDB proves that what fx and wire make of a *gorm.DB holds leases, that they
// exclude each other, that they are released when the program stops, and that a plain pool is refused.
func TestOnlyAGORMDB(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		ctx := t.Context()
		db := testdb.Got(lockgorm.Open(testdb.Open(t, engine).DSN(), noGoroutine()))(t)
		pool := testdb.Got(db.DB())(t)
		defer func() { check(t, pool.Close()) }()
		key := txlock.Named("wired")
		var held *lease.Lease
		app := fxtest.New(t, fx.Supply(db), Locks, fx.Invoke(func(leases *lease.Manager, _ *job.Jobs) (err error) {
			held, err = leases.TryAcquire(ctx, key)
			return err
		}))
		app.RequireStart()
		other, cleanup, err := wired.NewProgram(db)
		check(t, err)
		defer cleanup()
		_, err = other.Leases.TryAcquire(ctx, key)
		testdb.Wants(t, "TryAcquire while the app runs", err, txlock.ErrBusy)
		app.RequireStop()
		testdb.ErrorIf(t, held.Valid(), "the lease is held when the app has stopped")
		testdb.Got(other.Leases.TryAcquire(ctx, key))(t)

		plain := testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: testdb.Open(t, engine).Connect(t)}), noGoroutine()))(t)
		_, _, err = wired.NewProgram(plain)
		testdb.Wants(t, "a plain pool", err, txlock.ErrUnguarded)
	})
}

package lockgorm_test

import (
	"database/sql"
	"errors"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestTrips counts round trips: a transaction with a lock has no more of them than the
// same transaction without. MySQL needs procedures for that.
func TestTrips(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		trips, count := testdb.CountTrips(t)
		db := e.openDSN(t, e.DSN(count, func(c *driver.Config) { c.InterpolateParams = true }))
		pool := poolOf(t, db)
		pool.SetMaxOpenConns(1)
		key := newKey()
		noError(t, txlock.Ensure(t.Context(), pool, key))
		write := func(tx *gorm.DB) error { return tx.Create(&Note{N: 1}).Error }
		one := func(run func() error) int {
			noError(t, run()) // what a process asks a server once
			before := trips.Count()
			noError(t, run())
			return trips.Count() - before
		}
		without := one(func() error { return db.Transaction(write) })
		bare := without
		if e.Engine() == testdb.MySQL && testdb.WithoutProcedures() {
			without++ // BEGIN
		}
		if got := one(func() error { return lockgorm.Transaction(db, []txlock.Key{key}, write) }); got != without {
			t.Errorf("Transaction has %d round trips, without the lock %d", got, without)
		}
		if got := one(func() error {
			return lockgorm.Transaction(db, []txlock.Key{key}, write, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		}); got != without+(without-bare) { // the level, too
			t.Errorf("Transaction at READ COMMITTED has %d round trips, without the lock %d", got, without)
		}
		first := 0
		if got := one(func() error {
			_, err := lockgorm.Once(db, newKey(), func(tx *gorm.DB) error { first++; return write(tx) })
			return err
		}); got != without || first != 2 {
			t.Errorf("Once has %d round trips and was first %d times, without it %d", got, first, without)
		}
		shared := func(tx *gorm.DB) error {
			scope, err := lockgorm.Join(tx)
			if err != nil {
				return err
			}
			if _, err := scope.RLock(t.Context(), key); err != nil {
				return err
			}
			return write(tx)
		}
		if got := one(func() error { return db.Transaction(shared) }); got != without {
			t.Errorf("a transaction with RLock has %d round trips, without it %d", got, without)
		}
		without += without - bare // the version is compared before COMMIT
		if got := one(func() error { return lockgorm.Optimistic(db, key, write) }); got != without {
			t.Errorf("Optimistic has %d round trips, without it %d", got, without)
		}
		if got := one(func() error { return db.Transaction(func(*gorm.DB) error { return nil }) }); got != 0 {
			t.Errorf("a transaction without statements has %d round trips", got)
		}
	})
}

// TestTripsOfConditions counts the round trips of updates: those whose rows are known have one
// for the lock, which a transaction of their own merges with BEGIN, and others two more.
func TestTripsOfConditions(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		trips, count := testdb.CountTrips(t)
		db := e.openDSN(t, e.DSN(count, func(c *driver.Config) { c.InterpolateParams = true }))
		plain := e.openDSN(t, e.DSN(count, func(c *driver.Config) { c.InterpolateParams = true }))
		poolOf(t, db).SetMaxOpenConns(2)
		noError(t, db.Use(lockgorm.New()))
		var open [2]*sql.Conn // which a busy machine may not do while the rows are read beside a transaction
		for i := range open {
			conn, err := poolOf(t, db).Conn(t.Context())
			noError(t, err)
			open[i] = conn
		}
		noError(t, errors.Join(open[0].Close(), open[1].Close()))
		id := newID()
		noError(t, db.Create([]*Parcel{{ID: id, N: id}, {ID: id + 1, N: id}}).Error)
		second := func(write func(tx *gorm.DB) error) func(db *gorm.DB) error {
			return func(db *gorm.DB) error {
				return db.Transaction(func(tx *gorm.DB) error { return errors.Join(tx.Exec("DO 1").Error, write(tx)) })
			}
		}
		added := func(what string, write func(tx *gorm.DB) error, want int) {
			t.Helper()
			var took [2]int
			for i, db := range []*gorm.DB{plain, db} {
				for range 3 { // what a process asks a server once, or prepares at the second time
					before := trips.Count()
					noError(t, write(db))
					took[i] = trips.Count() - before
				}
			}
			if took[1]-took[0] != want {
				t.Errorf("%s: %d round trips, without the plugin %d; want %d more", what, took[1], took[0], want)
			}
		}
		begin := 0
		if e.Engine() == testdb.MySQL && testdb.WithoutProcedures() {
			begin = 1
		}
		for what, rows := range map[string]int{"id = ?": 0, "id IN (?, 77)": 0, "n = ?": 2, "n = - ?": 2} {
			write := func(tx *gorm.DB) error {
				return tx.Model(&Parcel{}).Where(what, id).Update("n", gorm.Expr("n + 0")).Error
			}
			locks := 1
			if what == "n = - ?" { // no row
				locks = 0
			}
			added(what, write, rows+begin*locks)
			added(what+", in a transaction", second(write), rows+locks)
		}
	})
}

package lockgorm_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

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
		equal(t, "Transaction", one(func() error { return lockgorm.Transaction(db, []txlock.Key{key}, write) }), without)
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
		equal(t, "a transaction with RLock", one(func() error { return db.Transaction(shared) }), without)
		without += without - bare // the version is compared before COMMIT
		equal(t, "Optimistic", one(func() error { return lockgorm.Optimistic(db, key, write) }), without)
		equal(t, "no statements", one(func() error { return db.Transaction(func(*gorm.DB) error { return nil }) }), 0)
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
			equal(t, what+": more round trips than without the plugin", took[1]-took[0], want)
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

// Audited has a hook that runs after its writes.
type Audited struct {
	ID int64
	N  int64
}

// AfterSave would be called behind the COMMIT.
func (*Audited) AfterSave(*gorm.DB) error { return errors.New("behind the commit") }

// TestTwoTrips proves that a read with On takes its lock with it, that a write with CommitWith
// commits, and that both are one round trip each, by GORM's models and by Raw and Exec.
func TestTwoTrips(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		trips, count := testdb.CountTrips(t)
		db := used(t, e.openDSN(t, e.DSN(count, func(c *driver.Config) { c.InterpolateParams = true })))
		poolOf(t, db).SetMaxOpenConns(1)
		note := Note{ID: newID(), N: 100}
		noError(t, db.Create(&note).Error)
		key, table := newKey(), "`"+e.names.TableName("Note")+"`"
		noError(t, txlock.Ensure(t.Context(), poolOf(t, db), key))
		ways := map[string]func(tx *gorm.DB) error{
			"models": func(tx *gorm.DB) error {
				var n Note
				if err := tx.Clauses(lockgorm.On(key)).First(&n, note.ID).Error; err != nil {
					return err
				}
				noError(t, lockgorm.AssertLocked(tx, key)) // by the read
				return tx.Model(&n).Clauses(lockgorm.On(lockgorm.NoLock...), lockgorm.CommitWith(1)).Update("n", n.N-1).Error
			},
			"Raw and Exec": func(tx *gorm.DB) error {
				var n int64
				if err := tx.Clauses(lockgorm.On(key)).Raw("SELECT n FROM "+table+" WHERE id = ?", note.ID).Scan(&n).Error; err != nil {
					return err
				}
				return tx.Clauses(lockgorm.CommitWith(1)).Exec("UPDATE "+table+" SET n = ? WHERE id = ?", n-1, note.ID).Error
			},
		}
		for name, sell := range ways {
			noError(t, lockgorm.Transaction(db, nil, sell))
			before := trips.Count()
			noError(t, lockgorm.Transaction(db, nil, sell))
			if got, want := trips.Count()-before, 2; got != want && (e.Engine() == testdb.MariaDB || !testdb.WithoutProcedures()) {
				t.Errorf("%s: %d round trips, want %d", name, got, want)
			}
		}
		var left Note
		noError(t, db.First(&left, note.ID).Error)
		equal(t, "left", left.N, int64(100-2*len(ways)))
		wantError(t, "no row", lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			return tx.Clauses(lockgorm.CommitWith(1)).Where("id = -1").Delete(&Note{}).Error
		}), txlock.ErrRows)
	})
}

// TestCommitWithRefused proves that a write isn't the last of its transaction where GORM or the
// plugin sends more behind it, or where something else isn't a write.
func TestCommitWithRefused(t *testing.T) {
	eachGuarded(t, []string{"Order", "Item", "Note"}, func(t *testing.T, e *env) {
		e.names.tables["Audited"] = e.names.tables["Note"]
		db := e.openPlugin(t)
		order := Order{ID: newID(), Name: "a"}
		noError(t, db.Create(&order).Error)
		last := lockgorm.CommitWith(1)
		for name, write := range map[string]func(tx *gorm.DB) error{
			"a hook":                func(tx *gorm.DB) error { return tx.Clauses(last).Create(&Audited{N: 1}).Error },
			"a hook of an update":   func(tx *gorm.DB) error { return tx.Clauses(last).Model(&Audited{ID: 1}).Update("n", 2).Error },
			"associations":          func(tx *gorm.DB) error { return tx.Clauses(last).Model(&order).Update("n", 2).Error },
			"associations of a new": func(tx *gorm.DB) error { return tx.Clauses(last).Create(&Order{ID: newID()}).Error },
			"a query":               func(tx *gorm.DB) error { return tx.Clauses(last).First(&order, order.ID).Error },
			"a row":                 func(tx *gorm.DB) error { return tx.Clauses(last).Raw("SELECT 1").Row().Err() },
		} {
			err := lockgorm.Transaction(db, nil, write)
			wantCure(t, fmt.Errorf("%s: %w", name, err), txlock.ErrInvalidOption, "CommitWith")
		}
		wantError(t, "Optimistic", lockgorm.Optimistic(db, newKey(), func(tx *gorm.DB) error { return tx.Clauses(last).Create(&Note{N: 1}).Error }), txlock.ErrInvalidOption)
		for name, nested := range outermost {
			inner := func(tx *gorm.DB) error {
				return nested(tx, newKey(), func(tx *gorm.DB) error {
					return tx.Clauses(last).Exec("INSERT INTO `" + e.names.TableName("Note") + "` (n) VALUES (1)").Error
				})
			}
			wantError(t, name+" in Transaction", lockgorm.Transaction(db, nil, inner), txlock.ErrInvalidOption)
			wantError(t, name+" in a transaction", db.Transaction(inner), txlock.ErrInvalidOption)
		}
		wantError(t, "Save", lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			return tx.Clauses(lockgorm.CommitWith(txlock.AnyRows)).Save(&Note{ID: newID(), N: 1}).Error
		}), txlock.ErrInvalidOption)
		for name, session := range map[string]gorm.Session{"": {}, "SkipDefaultTransaction": {SkipDefaultTransaction: true}, "DisableNestedTransaction": {DisableNestedTransaction: true}} {
			err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
				notes := []Note{{ID: newID(), N: 1}, {ID: newID(), N: 2}, {ID: newID(), N: 3}}
				return tx.Session(&session).Clauses(lockgorm.CommitWith(txlock.AnyRows)).CreateInBatches(notes, 2).Error
			})
			if name != "" || err == nil { // GORM's savepoint is refused then
				wantError(t, "CreateInBatches "+name, err, txlock.ErrInvalidOption)
			}
		}
		e.wantRows(t, "rows", 0, "Note", "n > 0")
		note := Note{ID: newID()}
		noError(t, db.Create(&note).Error)
		noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			return tx.Clauses(last).Omit(clause.Associations).Model(&order).Update("n", 3).Error
		}))
		noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{SkipHooks: true}).Clauses(last).Model(&Audited{ID: note.ID}).Update("n", 4).Error
		}))
		e.wantRows(t, "orders", 1, "Order", "n = 3")
		errBehind := errors.New("behind")
		err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			noError(t, tx.Clauses(last).Model(&note).Update("n", 9).Error)
			return errBehind
		})
		if n := e.count(t, "Note", "n = 9"); n != 1 || !errors.Is(err, errBehind) || !strings.Contains(err.Error(), "by CommitWith") {
			t.Errorf("%d rows, %v", n, err)
		}
	})
}

func scopeOf(t *testing.T, tx *gorm.DB) *txlock.Scope {
	t.Helper()
	scope, err := lockgorm.Join(tx)
	noError(t, err)
	return scope
}

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

// counting is a pool that can use a number of connections, and counts its round trips.
func (e *env) counting(t *testing.T, connections int) (*gorm.DB, *testdb.Trips) {
	t.Helper()
	trips, count := testdb.CountTrips(t)
	db := e.openDSN(t, e.DSN(count, func(c *driver.Config) { c.InterpolateParams = true }))
	poolOf(t, db).SetMaxOpenConns(connections)
	return db, trips
}

// TestTrips counts round trips: a transaction with a lock has no more of them than the same
// transaction without, for which MySQL needs procedures. A read with On takes its lock with it, a
// write with CommitWith commits, and both are one round trip each, by GORM's models and by Raw and Exec.
func TestTrips(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, trips := e.counting(t, 1)
		key, table := newKey(), "`"+e.names.TableName("Note")+"`"
		noError(t, txlock.Ensure(t.Context(), poolOf(t, db), key))
		write := func(tx *gorm.DB) error { return tx.Create(&Note{N: 1}).Error }
		one := func(run func() error) int {
			noError(t, run()) // what a process asks a server once
			before := trips.Count()
			noError(t, run())
			return trips.Count() - before
		}
		without, begin := one(func() error { return db.Transaction(write) }), 0
		if e.Engine() == testdb.MySQL && testdb.WithoutProcedures() {
			begin = 1
		}
		first := 0
		for what, want := range map[string]struct {
			trips int
			run   func() error
		}{
			"Transaction": {without + begin, func() error { return lockgorm.Transaction(db, []txlock.Key{key}, write) }},
			"Transaction at READ COMMITTED": {without + 2*begin, func() error { // the level, too
				return lockgorm.Transaction(db, []txlock.Key{key}, write, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			}},
			"Once": {without + begin, func() error {
				return second(lockgorm.Once(db, newKey(), func(tx *gorm.DB) error { first++; return write(tx) }))
			}},
			"a transaction with RLock": {without + begin, func() error {
				return db.Transaction(func(tx *gorm.DB) error {
					return errors.Join(second(scopeOf(t, tx).RLock(t.Context(), key)), write(tx))
				})
			}},
			"Optimistic":    {without + 2*begin, func() error { return lockgorm.Optimistic(db, key, write) }}, // the version is compared before COMMIT
			"no statements": {0, func() error { return db.Transaction(func(*gorm.DB) error { return nil }) }},
		} {
			equal(t, what, one(want.run), want.trips)
		}
		equal(t, "calls of the function of Once", first, 2)

		noError(t, db.Use(lockgorm.New()))
		note := Note{ID: newID(), N: 100}
		noError(t, db.Create(&note).Error)
		for name, sell := range map[string]func(tx *gorm.DB) error{
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
		} {
			if got := one(func() error { return lockgorm.Transaction(db, nil, sell) }); got != 2 && begin == 0 {
				t.Errorf("%s: %d round trips, want 2", name, got)
			}
		}
		e.wantRows(t, "two writes each", 1, "Note", "id = ? AND n = 96", note.ID)
		wantError(t, "no row", lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			return tx.Clauses(lockgorm.CommitWith(1)).Where("id = -1").Delete(&Note{}).Error
		}), txlock.ErrRows)
	})
}

// TestTripsOfConditions counts the round trips of updates: those whose rows are known have one
// for the lock, which a transaction of their own merges with BEGIN, and others two more.
func TestTripsOfConditions(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		plain, tripsOfPlain := e.counting(t, 2)
		db, trips := e.counting(t, 2)
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
					before := trips.Count() + tripsOfPlain.Count()
					noError(t, write(db))
					took[i] = trips.Count() + tripsOfPlain.Count() - before
				}
			}
			equal(t, what+": more round trips than without the plugin", took[1]-took[0], want)
		}
		without := e.Engine() == testdb.MySQL && testdb.WithoutProcedures()
		for what, c := range map[string]struct{ rows, keys int }{"id = ?": {0, 1}, "id IN (?, 77)": {0, 2}, "n = ?": {2, 2}, "n = - ?": {2, 0}} {
			write := func(tx *gorm.DB) error {
				return tx.Model(&Parcel{}).Where(what, id).Update("n", gorm.Expr("n + 0")).Error
			}
			locks, begun := 0, min(1, c.keys)
			if without && c.keys > 0 { // a statement for each key, and two for what the transaction has seen
				locks, begun = c.keys, c.keys+2
			}
			added(what, write, c.rows+locks)
			added(what+", in a transaction", second(write), c.rows+begun)
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

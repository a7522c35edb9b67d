package lockgorm_test

import (
	"errors"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// renamed is a dialect on which there are no locks. It is MySQL's, so that any lock would show;
// tests/gormgen/sqlite has a real one.
type renamed struct{ gorm.Dialector }

func (renamed) Name() string { return "sqlite" }

// TestUnlocked proves that nothing is locked on a dialect of Unlocked, and that all other
// dialects are refused, with the cure.
func TestUnlocked(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		open := func(dialect gorm.Dialector, options ...lockgorm.Option) (*gorm.DB, error) {
			db, err := gorm.Open(dialect, e.config())
			noError(t, err)
			closeAfter(t, db)
			return db, db.Use(lockgorm.New(options...))
		}
		other, id := renamed{mysql.Open(e.DSN())}, newID()
		parcel := parcels.Key(id)
		db, err := open(other, lockgorm.Unlocked("postgres", "sqlite"), lockgorm.Check(&Note{}))
		noError(t, err)
		noError(t, db.Create(&Parcel{ID: id, N: 1}).Error)
		noError(t, lockgorm.Transaction(db, []txlock.Key{parcel}, func(tx *gorm.DB) error {
			_, err := lockgorm.Lock(lockgorm.WaitAtMost(tx, 1), parcel)
			noError(t, errors.Join(err, lockgorm.AssertLocked(tx, parcel)))
			noError(t, tx.Clauses(lockgorm.On(parcel)).Take(new(Parcel)).Error)
			noError(t, tx.Model(new(Parcel)).Where("n = 1").Update("n", 2).Error)
			noError(t, tx.Clauses(lockgorm.Loaded(&Parcel{ID: id})).Model(new(Parcel)).UpdateColumn("n", 3).Error)
			if e.held(t, parcel) {
				t.Error("a lock was taken")
			}
			return tx.Model(&Parcel{ID: id}).Clauses(lockgorm.CommitWith(1)).Update("n", 4).Error
		}))
		wantError(t, "Optimistic", lockgorm.Optimistic(db, parcel, func(tx *gorm.DB) error {
			noError(t, tx.Delete(new(Parcel), id).Error)
			return errInner
		}), errInner)
		e.wantRows(t, "the row was not written, or is gone", 1, "Parcel", "n = 4")
		for cure, err := range map[string]error{
			`lockgorm.Unlocked("sqlite")`:                       second(open(other)),
			`lockgorm.New(lockgorm.Unlocked("sqlite"))`:         second(open(other, lockgorm.Unlocked("postgres"))),
			`Unlocked("mysql") would lock nothing on MySQL and`: second(open(mysql.Open(e.DSN()), lockgorm.Unlocked("sqlite", "mysql"))),
		} {
			wantCure(t, err, txlock.ErrInvalidOption, cure)
		}
	})
}

var errRan = errors.New("the function was called")

// onOtherEngine are calls that a server on which there are no locks refuses, and writes of a model,
// of which there is the one with the number 1.
func onOtherEngine[M any](model func(id int64) *M) map[string]func(db *gorm.DB) error {
	byCondition := func(db *gorm.DB) error { return db.Model(new(M)).Where("n = 1").Update("n", 9).Error }
	calls := map[string]func(db *gorm.DB) error{
		"Lock": func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error { return second(lockgorm.Lock(tx, newKey())) })
		},
		"a create":         func(db *gorm.DB) error { return db.Create(model(newID())).Error },
		"an update":        func(db *gorm.DB) error { return db.Model(model(1)).Update("n", 9).Error },
		"a delete":         func(db *gorm.DB) error { return db.Delete(model(1)).Error },
		"by condition":     byCondition,
		"in a transaction": func(db *gorm.DB) error { return db.Transaction(byCondition) },
	}
	for name, run := range outermost {
		if name != "Transaction, no key" {
			calls[name] = func(db *gorm.DB) error { return run(db, newKey(), func(*gorm.DB) error { return errRan }) }
		}
	}
	return calls
}

// TestOtherEngine: on a server that answers as TiDB and Vitess do, the first call of each kind
// is refused, and nothing is written.
func TestOtherEngine(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		noError(t, e.open(t).Create(&Order{ID: 1, N: 1}).Error)
		_, mutate := testdb.Rewritten(t, locksuite.AsAnotherEngine)
		pool := openPool(e.guarded, false)(t, e.Config(mutate)).DB()
		db, err := gorm.Open(mysql.New(mysql.Config{Conn: pool, SkipInitializeWithVersion: true}), e.config())
		noError(t, err)
		noError(t, db.Use(lockgorm.New()))
		for name, call := range onOtherEngine(func(id int64) *Order { return &Order{ID: id} }) {
			if err := call(db.WithContext(t.Context())); !errors.Is(err, schema.ErrEngine) || errors.Is(err, errRan) {
				t.Errorf("%s: %v, want ErrEngine", name, err)
			}
		}
		e.wantRows(t, "as it was", 1, "Order", "n = 1")
		e.wantRows(t, "all", 1, "Order", "1 = 1")
	})
}

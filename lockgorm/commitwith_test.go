package lockgorm_test

import (
	"errors"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

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
				if _, held := scopeOf(t, tx).Held(key); !held {
					t.Error("the read hasn't taken the lock")
				}
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
		if want := int64(100 - 2*len(ways)); left.N != want {
			t.Errorf("%d are left, want %d", left.N, want)
		}
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
			if !errors.Is(err, txlock.ErrInvalidOption) || !strings.Contains(err.Error(), "CommitWith") {
				t.Errorf("%s: %v", name, err)
			}
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

package lockgorm_test

import (
	"errors"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// undone are the ways in which the write of a model is rolled back without the model
// noticing.
var undone = map[string]func(db *gorm.DB, write func(tx *gorm.DB) error) error{
	"Transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return db.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
	},
	"lockgorm.Transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
	},
	"a panic": func(db *gorm.DB, write func(tx *gorm.DB) error) (err error) {
		defer func() { err = errors.Join(err, recover().(error)) }()
		return db.Transaction(func(tx *gorm.DB) error {
			err = write(tx)
			panic(errInner)
		})
	},
	"by hand": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		tx := db.Begin()
		return errors.Join(write(tx), tx.Rollback().Error, errInner)
	},
	"a nested transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		var inner error
		err := db.Transaction(func(tx *gorm.DB) error {
			inner = tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
			return nil
		})
		return errors.Join(err, inner)
	},
	"a savepoint": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return errors.Join(errInner, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.SavePoint("s").Error, write(tx), tx.RollbackTo("s").Error)
		}))
	},
	"a savepoint as text": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return errors.Join(errInner, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Exec("SAVEPOINT s").Error, write(tx), tx.Exec("ROLLBACK TO SAVEPOINT s").Error)
		}))
	},
	"DisableNestedTransaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return db.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
		})
	},
}

// TestVersionOfUndoneCreates proves the same for models that were created, deleted softly, or created
// with their parent, and for uncommitted versions that were read.
func TestVersionOfUndoneCreates(t *testing.T) {
	eachGuarded(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for _, end := range []string{"Transaction", "a savepoint"} { // TestVersionAfterRollback has all
			undo := func(write func(tx *gorm.DB) error) {
				t.Helper()
				wantError(t, end, undone[end](db, write), errInner)
			}
			// The same primary key is given to another's row. The server makes no such number.
			mine, parent := &Doc{ID: -newID()}, &Doc{Pages: []Page{{}}}
			undo(func(tx *gorm.DB) error { return errors.Join(tx.Create(mine).Error, tx.Create(parent).Error) })
			noError(t, errors.Join(db.Create(&Doc{ID: mine.ID}).Error, db.Create(&Page{ID: parent.Pages[0].ID, N: 5}).Error))
			wantError(t, end+", a create", db.Model(mine).Update("name", "mine").Error, txlock.ErrConflict)
			wantError(t, end+", a child", db.Model(&parent.Pages[0]).Update("n", 6).Error, txlock.ErrConflict)

			sheet := &Sheet{ID: newID()}
			noError(t, db.Create(sheet).Error)
			kept := *sheet
			undo(func(tx *gorm.DB) error { return tx.Delete(sheet).Error })
			noError(t, db.Model(&kept).Update("n", 1).Error)
			wantError(t, end+", a soft delete", db.Unscoped().Model(sheet).Update("n", 2).Error, txlock.ErrConflict)

			written, seen := newDoc(t, db), new(Doc)
			undo(func(tx *gorm.DB) error { return errors.Join(anyOf(tx, written.ID), tx.First(seen, written.ID).Error) })
			noError(t, db.Model(written).Update("n", 2).Error)
			wantError(t, end+", an uncommitted read", db.Model(seen).Update("n", 3).Error, txlock.ErrConflict)
			e.is(t, end, written, written.Version, 2)
		}
	})
}

func sqlMode(mode string) func(*driver.Config) {
	return func(cfg *driver.Config) { cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"} }
}

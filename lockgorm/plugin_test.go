package lockgorm_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestWritesAreLocked runs every write of a model, and checks by another session that its
// key is held when its hooks run.
func TestWritesAreLocked(t *testing.T) {
	writes := map[string]func(db *gorm.DB, id int64) error{
		"Create":          func(db *gorm.DB, id int64) error { return db.Create(&Order{ID: -id}).Error },
		"Create, a slice": func(db *gorm.DB, id int64) error { return db.Create([]Order{{ID: -id}}).Error },
		"CreateInBatches": func(db *gorm.DB, id int64) error { return db.CreateInBatches([]*Order{{ID: -id}}, 10).Error },
		"CreateBatchSize": func(db *gorm.DB, id int64) error {
			return db.Session(&gorm.Session{CreateBatchSize: 1}).Create([]*Order{{ID: -id}, {ID: -id - 1<<40}}).Error
		},
		"Save, an insert": func(db *gorm.DB, id int64) error { return db.Save(&Order{ID: -id}).Error },
		"Save, an update": func(db *gorm.DB, id int64) error { return db.Save(&Order{ID: id, N: 1}).Error },
		"Save, many":      func(db *gorm.DB, id int64) error { return db.Save([]*Order{{ID: id, N: 1}}).Error },
		"FirstOrCreate":   func(db *gorm.DB, id int64) error { return db.FirstOrCreate(&Order{}, Order{ID: -id}).Error },
		"Upsert": func(db *gorm.DB, id int64) error {
			return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&Order{ID: id, N: 1}).Error
		},
		"Update":          func(db *gorm.DB, id int64) error { return db.Model(&Order{ID: id}).Update("n", 1).Error },
		"Updates, itself": func(db *gorm.DB, id int64) error { return db.Updates(&Order{ID: id, N: 1}).Error },
		"Updates, many":   func(db *gorm.DB, id int64) error { return db.Model([]*Order{{ID: id}}).Updates(Order{N: 1}).Error },
		"Assign": func(db *gorm.DB, id int64) error {
			return db.Where(Order{ID: id}).Assign(Order{N: 1}).FirstOrCreate(&Order{}).Error
		},
		"Delete": func(db *gorm.DB, id int64) error { return db.Delete(&Order{ID: id}).Error },
	}
	eachSetting(t, []string{"Order"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for what, write := range writes {
				id, saw := newID(), 0
				noError(t, e.inTransaction(db, func(tx *gorm.DB) error { return tx.Create(&Order{ID: id}).Error }))
				err := e.inTransaction(db, func(tx *gorm.DB) error {
					return write(withHook(tx, func(_ *gorm.DB, id int64) error {
						saw++
						if !e.held(t, orders.Key(id)) {
							t.Errorf("%s, %s: the hook of %d runs without the lock", name, what, id)
						}
						return nil
					}), id)
				})
				if err != nil || saw == 0 {
					t.Errorf("%s, %s: %v, %d hooks", name, what, err, saw)
				}
				e.wantSoonFree(t, name+", "+what+": the lock outlives the statement", orders.Key(id), orders.Key(-id))
				if e.count(t, "Order", "id = ? OR n = 1 AND id = ?", -id, id)+1-e.count(t, "Order", "id = ?", id) == 0 {
					t.Errorf("%s, %s: nothing was written", name, what)
				}
			}
		}
	})
}

// Wrong is a model whose LockKeys names no key.
type Wrong struct {
	ID   int64
	Want string `gorm:"-"`
}

var errWrong = errors.New("LockKeys fails")

// wrongKeys are the keys that a Wrong may want, each of which is refused.
var wrongKeys = map[string][]txlock.Key{"nil": nil, "empty": {}, "zero": {{}}, "copy of NoLock": slices.Clone(lockgorm.NoLock)}

func (w Wrong) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	if keys, ok := wrongKeys[w.Want]; ok {
		return keys, nil
	} else if w.Want == "error" {
		return []txlock.Key{newKey()}, errWrong
	}
	return lockgorm.NoLock, nil
}

func TestLockKeysWrong(t *testing.T) {
	eachGuarded(t, []string{"Note"}, func(t *testing.T, e *env) {
		e.names.tables["Wrong"] = e.names.tables["Note"]
		db := e.openPlugin(t)
		for _, want := range append(slices.Collect(maps.Keys(wrongKeys)), "error") {
			wantErr := map[bool]error{true: errWrong, false: txlock.ErrInvalidKey}[want == "error"]
			wantError(t, want, db.Create(&Wrong{ID: 1, Want: want}).Error, wantErr)
			wantError(t, want+" in a batch", db.Create([]Wrong{{ID: 1}, {ID: 2, Want: want}}).Error, wantErr)
			wantError(t, want+", update", db.Model(&Wrong{ID: 3, Want: want}).Update("id", 4).Error, wantErr)
			wantError(t, want+", delete", db.Delete(&Wrong{ID: 3, Want: want}).Error, wantErr)
		}
		noError(t, db.Create(&Wrong{ID: 3}).Error)
		e.wantRows(t, "rows, want the one of NoLock", 1, "Note", "1 = 1")
	})
}

package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestBypass proves what the package page and lockvet's check bypass say: a write by Exec, Raw, or
// Table without a model is sent without a lock, and On locks the keys that it names.
func TestBypass(t *testing.T) {
	eachGuarded(t, []string{"Tally"}, func(t *testing.T, e *env) {
		db, tallies, table := e.openPlugin(t), txlock.NewFamily[int64]("tally"), e.names.tables["Tally"]
		for what, write := range map[string]func(db *gorm.DB, id int64) error{
			"Exec": func(db *gorm.DB, id int64) error { return db.Exec("UPDATE "+table+" SET n = 2 WHERE id = ?", id).Error },
			"Exec of a model": func(db *gorm.DB, id int64) error {
				return db.Model(&Tally{ID: id}).Exec("UPDATE "+table+" SET n = 2 WHERE id = ?", id).Error
			},
			"Raw": func(db *gorm.DB, id int64) error {
				return drained(db.Raw("DELETE FROM "+table+" WHERE id = ?", id).Rows())
			},
			"Update": func(db *gorm.DB, id int64) error { return db.Table(table).Where("id = ?", id).Update("n", 2).Error },
			"UpdateColumn": func(db *gorm.DB, id int64) error {
				return db.Table(table+" o").Where("o.id = ?", id).UpdateColumn("n", 2).Error
			},
			"Updates": func(db *gorm.DB, id int64) error {
				return db.Table(table).Where("id = ?", id).Updates(map[string]any{"n": 2}).Error
			},
			"another model": func(db *gorm.DB, id int64) error { return db.Table(table).Model(&Note{ID: id}).Update("n", 2).Error },
			"Create":        func(db *gorm.DB, id int64) error { return db.Table(table).Create(map[string]any{"id": -id}).Error },
			"Delete":        func(db *gorm.DB, id int64) error { return db.Table(table).Where("id = ?", id).Delete(&Note{}).Error },
		} {
			id := newID()
			key := tallies.Key(id)
			noError(t, db.Create(&Tally{ID: id}).Error)
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if err := write(tx, id); err != nil || e.held(t, key) {
					t.Errorf("%s: %v, or it has locked %v: lockvet is wrong", what, err, key)
				}
				return nil
			}))
			noError(t, db.Exec("DELETE FROM "+table).Error)
			e.lockedBy(t, db, what+" with On", key, func(tx *gorm.DB) error {
				return write(tx.Clauses(lockgorm.On(key)), id)
			})
		}
		id := newID()
		for what, write := range map[string]func(tx *gorm.DB) error{
			"Create":          func(tx *gorm.DB) error { return tx.Table(table).Create(&Tally{ID: id}).Error },
			"Update":          func(tx *gorm.DB) error { return tx.Table(table).Model(&Tally{ID: id}).Update("n", 2).Error },
			"Delete":          func(tx *gorm.DB) error { return tx.Table(table).Where("id = ?", id).Delete(&Tally{}).Error },
			"CreateInBatches": func(tx *gorm.DB) error { return tx.Table(table).CreateInBatches([]*Tally{{ID: id}}, 1).Error },
		} {
			noError(t, db.Exec("DELETE FROM "+table).Error)
			e.lockedBy(t, db, what+" with the model", tallies.Key(id), write)
		}
	})
}

//go:build !race

package lockgorm_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
)

// forms are GORM's ways to write, right ones and wrong ones, beside writes and what
// TestVersionIsNeeded, TestVersionOfDeletes and TestGenericsVersion have.
var forms = map[string]func(tx *gorm.DB, l, rival *Ledger) error{
	"Save by value": func(tx *gorm.DB, l, _ *Ledger) error { return tx.Save(*l).Error },
	"Save, Select":  func(tx *gorm.DB, l, _ *Ledger) error { l.N = 5; return tx.Select("N").Save(l).Error },
	"Save, Omit":    func(tx *gorm.DB, l, _ *Ledger) error { l.N = 5; return tx.Omit("Version", "DeletedAt").Save(l).Error },
	"Save, Where":   func(tx *gorm.DB, l, _ *Ledger) error { l.N = 5; return tx.Where("n > 100").Save(l).Error },
	"Save, DoNothing": func(tx *gorm.DB, l, _ *Ledger) error {
		l.N = 5
		return tx.Clauses(clause.OnConflict{DoNothing: true}).Save(l).Error
	},
	"Save, SkipHooks": func(tx *gorm.DB, l, _ *Ledger) error {
		l.N = 5
		return tx.Session(&gorm.Session{SkipHooks: true}).Save(l).Error
	},
	"FirstOrInit, Save": func(tx *gorm.DB, l, _ *Ledger) error {
		return errors.Join(tx.Session(&gorm.Session{NewDB: true}).Where(Ledger{ID: l.ID}).Assign(Ledger{N: 5, Kept: l.Kept}).FirstOrInit(l).Error, tx.Session(&gorm.Session{NewDB: true}).Save(l).Error)
	},
	"FirstOrCreate": func(tx *gorm.DB, l, _ *Ledger) error { return tx.Where("n = 100").FirstOrCreate(l).Error },
	"Updates of another": func(tx *gorm.DB, l, rival *Ledger) error {
		return tx.Model(l).Updates(Ledger{ID: rival.ID, N: 5}).Error
	},
	"Updates by another": func(tx *gorm.DB, l, rival *Ledger) error {
		return tx.Model(rival).Where("id = ?", l.ID).Updates(Ledger{N: 5}).Error
	},
	"Updates, no model": func(tx *gorm.DB, l, _ *Ledger) error { return tx.Model(&Ledger{}).Updates(l).Error },
	"Updates, its id": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Model(l).Updates(map[string]any{"id": l.ID, "n": 5}).Error
	},
	"Updates, an id": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Model(l).Updates(map[string]any{"id": gorm.Expr("id + 1000"), "n": 5}).Error
	},
	"Updates, Limit": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Model([]*Ledger{l, l}).Order("id DESC").Limit(1).Update("n", 5).Error
	},
	"Updates, Joins": func(tx *gorm.DB, l, _ *Ledger) error { return tx.Model(l).Joins("JOIN x").Update("n", 5).Error },
	"UpdateColumns": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Model(l).UpdateColumns(map[string]any{"n": 5, "deleted_at": nil}).Error
	},
	"Returning": func(tx *gorm.DB, l, _ *Ledger) error { return tx.Clauses(clause.Returning{}).Delete(l).Error },
	"Returning, good": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Clauses(clause.Returning{}).Unscoped().Delete(l).Error
	},
	"Returning, some": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Clauses(clause.Returning{Columns: []clause.Column{{Name: "n"}}}).Unscoped().Delete(&[]Ledger{*l}).Error
	},
	"Delete, OR":         func(tx *gorm.DB, l, _ *Ledger) error { return tx.Delete(l, "n = 0 OR n = 3").Error },
	"Delete, of a model": func(tx *gorm.DB, l, _ *Ledger) error { return tx.Model(l).Delete(&Ledger{}).Error },
	"Delete, of another": func(tx *gorm.DB, l, rival *Ledger) error { return tx.Model(rival).Delete(l).Error },
	"Create, IGNORE": func(tx *gorm.DB, l, _ *Ledger) error {
		l.N = 5
		return tx.Clauses(clause.Insert{Modifier: "IGNORE"}).Create(l).Error
	},
	"a hidden upsert": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Clauses(clause.OnConflict{DoNothing: true, DoUpdates: clause.Assignments(map[string]any{"n": 5})}).Create(l).Error
	},
	"upserts in batch": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Clauses(clause.OnConflict{UpdateAll: true}).CreateInBatches([]*Ledger{l, l}, 1).Error
	},
	"a savepoint": func(tx *gorm.DB, l, _ *Ledger) error {
		return tx.Transaction(func(tx *gorm.DB) error {
			err := tx.SavePoint("a").Error
			err = errors.Join(err, tx.Model(l).Update("n", 5).Error)
			return errors.Join(err, tx.RollbackTo("a").Error, skipConflict(tx.Model(l).Update("n", 6).Error))
		})
	},
	"in batches": func(tx *gorm.DB, l, _ *Ledger) error {
		var found []*Ledger
		return tx.Where("id = ?", l.ID).FindInBatches(&found, 1, func(tx *gorm.DB, _ int) error {
			*found[0] = *l
			err := tx.Model(found[0]).Update("n", 5).Error
			*l = *found[0]
			return err
		}).Error
	},
}

func skipConflict(err error) error {
	if err == nil {
		return errors.New("a version that was undone is that of the row")
	}
	return nil
}

// TestEveryForm writes a record in every form. Either it is written with a new version,
// which its model has then, or not at all. It is never written from an old version, and
// no other record changes.
func TestEveryForm(t *testing.T) {
	each(t, []string{"Ledger"}, func(t *testing.T, e *env) {
		table := e.names.tables["Ledger"]
		rowOf := func(id int64) (version lockgorm.Version, text string) {
			err := e.Admin().QueryRowContext(t.Context(), "SELECT version, CONCAT_WS(',', id, n, deleted_at) FROM "+table+" WHERE id = ?", id).Scan(&version, &text)
			if err != nil {
				return 0, "gone"
			}
			return version, text
		}
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for i, form := range slices.Sorted(maps.Keys(forms)) {
				write := forms[form]
				for _, old := range []bool{false, true} {
					inside := name == "PrepareStmt"
					if !testdb.Meet(i, old, inside, e.guarded) {
						continue
					}
					what := fmt.Sprintf("%s, %s, old=%t, inside=%t", name, form, old, inside)
					l, rival := &Ledger{}, &Ledger{}
					noError(t, errors.Join(db.Create(l).Error, db.Create(rival).Error))
					if old {
						other := *l
						noError(t, db.Model(&other).Update("n", 3).Error)
					}
					rows := e.count(t, "Ledger", "1 = 1")
					id := l.ID
					version, text := rowOf(id)
					rivalVersion, rivalText := rowOf(rival.ID)
					var err error
					if inside {
						err = db.Transaction(func(tx *gorm.DB) error { return write(tx, l, rival) })
					} else {
						err = write(db, l, rival)
					}
					now, is := rowOf(id)
					if v, is := rowOf(rival.ID); v != rivalVersion || is != rivalText {
						t.Errorf("%s: another's row is %s: %v", what, is, err)
					}
					switch changed := now != version || is != text; {
					case (old || err != nil) && changed:
						t.Errorf("%s: the row is %s, %d, it was %s, %d: %v", what, is, now, text, version, err)
					case is != text && now == version:
						t.Errorf("%s: the row is %s of the same version: %v", what, is, err)
					case changed && is != "gone" && now != l.Version:
						t.Errorf("%s: the model has version %d, the row %d", what, l.Version, now)
					case !changed && !old && l.Version != version && form != "a savepoint":
						t.Errorf("%s: nothing has happened, and the model has version %d: %v", what, l.Version, err)
					}
					if n := e.count(t, "Ledger", "1 = 1"); n > rows || n < rows-1 {
						t.Errorf("%s: %d rows, there were %d: %v", what, n, rows, err)
					}
				}
			}
		}
	})
}

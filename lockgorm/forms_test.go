//go:build !race

package lockgorm_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
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

// rightForms are those that write 5, under the lock of the record.
var rightForms = map[string]func(tx *gorm.DB, l *Ledger) error{
	"Save":                   func(db *gorm.DB, l *Ledger) error { l.N = 5; return db.Save(l).Error },
	"Unscoped, UpdateColumn": func(db *gorm.DB, l *Ledger) error { return db.Unscoped().Model(l).UpdateColumn("n", 5).Error },
	"an OR in parentheses": func(db *gorm.DB, l *Ledger) error {
		return db.Model(l).Where("(n = 0 OR n = 7)").Update("n", 5).Error
	},
	"conditions": func(db *gorm.DB, l *Ledger) error {
		return db.Model(l).Where("n < ? OR n > ?", 5, 6).Not("n = 3").Where(map[string]any{"n": []int{0, 1}}).Update("n", 5).Error
	},
	"a scope": func(db *gorm.DB, l *Ledger) error {
		return db.Model(l).Scopes(func(tx *gorm.DB) *gorm.DB { return tx.Where("n = 0") }).Update("n", 5).Error
	},
	"Table": func(db *gorm.DB, l *Ledger) error {
		return db.Table("? AS x", clause.Table{Name: db.NamingStrategy.TableName("Ledger")}).Model(l).Where("x.n = 0").Update("n", 5).Error
	},
	"a comment": func(db *gorm.DB, l *Ledger) error {
		return db.Model(l).Clauses(behind("UPDATE", "/* why */"), behind("WHERE", "/* why */")).Where("n = 0").Update("n", 5).Error
	},
	"a subquery": func(db *gorm.DB, l *Ledger) error {
		return db.Model(l).Where("n <> ALL (?)", db.Session(&gorm.Session{NewDB: true}).Table("lockstep_locks").Select("1").Where("1 = 0").Or("1 = 0")).Update("n", 5).Error
	},
	"a transaction": func(db *gorm.DB, l *Ledger) error {
		return lockgorm.Transaction(db, ledgers.Keys(l.ID), func(tx *gorm.DB) error { return tx.Model(l).Update("n", 5).Error })
	},
	"Optimistic": func(db *gorm.DB, l *Ledger) error {
		return lockgorm.Optimistic(db, ledgers.Key(l.ID), func(tx *gorm.DB) error { return tx.Model(l).Update("n", 5).Error })
	},
	"On": func(db *gorm.DB, l *Ledger) error {
		return db.Clauses(lockgorm.On(ledgers.Key(l.ID))).Model(l).Update("n", 5).Error
	},
	"reused": func(db *gorm.DB, l *Ledger) error {
		chain := db.Model(l)
		if err := chain.Update("n", 4).Error; err != nil {
			return err
		}
		return chain.Update("n", 5).Error
	},
}

func skipConflict(err error) error {
	if err == nil {
		return errors.New("a version that was undone is that of the row")
	}
	return nil
}

// TestEveryForm writes a record, which is locked and has a version, in every form. Either it is
// written under its lock with a new version, which its model has then, or not at all. It is never
// written from an old version, and no other record changes.
func TestEveryForm(t *testing.T) {
	forms := maps.Clone(forms)
	for form, write := range rightForms {
		forms[form] = func(tx *gorm.DB, l, _ *Ledger) error { return write(tx, l) }
	}
	each(t, []string{"Ledger"}, func(t *testing.T, e *env) {
		rowOf := func(l *Ledger) (version lockgorm.Version, text string) {
			err := e.Admin().QueryRowContext(t.Context(), "SELECT version, CONCAT_WS(',', id, n, deleted_at) FROM "+e.names.tables["Ledger"]+" WHERE id = ?", l.ID).Scan(&version, &text)
			if err != nil {
				return 0, "gone"
			}
			return version, text
		}
		for name, configure := range map[string]func(*gorm.Config){
			"PrepareStmt, CreateBatchSize": func(cfg *gorm.Config) { cfg.PrepareStmt, cfg.CreateBatchSize = true, 2 },
			"FullSaveAssociations, QueryFields, TranslateError": func(cfg *gorm.Config) {
				cfg.FullSaveAssociations, cfg.QueryFields, cfg.TranslateError = true, true, true
			},
		} {
			db := used(t, e.open(t, configure))
			for i, form := range slices.Sorted(maps.Keys(forms)) {
				for _, old := range []bool{false, true} {
					inside := strings.HasPrefix(name, "PrepareStmt")
					if !testdb.Meet(i, old, inside, e.guarded) {
						continue
					}
					what := fmt.Sprintf("%s, %s, old=%t, inside=%t", name, form, old, inside)
					write := func(tx *gorm.DB, l, rival *Ledger) error {
						return forms[form](withHook(tx, func(_ *gorm.DB, id int64) error {
							e.wantHeld(t, what+", its hook", ledgers.Key(id))
							return nil
						}), l, rival)
					}
					l, rival := &Ledger{}, &Ledger{}
					noError(t, errors.Join(db.Create(l).Error, db.Create(rival).Error))
					if old {
						other := *l
						noError(t, db.Model(&other).Update("n", 3).Error)
					}
					rows, made, others := e.count(t, "Ledger", "1 = 1"), *l, *rival
					version, text := rowOf(&made)
					_, rivalText := rowOf(&others)
					var err error
					if inside {
						err = db.Transaction(func(tx *gorm.DB) error { return write(tx, l, rival) })
					} else {
						err = write(db, l, rival)
					}
					now, is := rowOf(&made)
					if v, is := rowOf(&others); v != others.Version || is != rivalText {
						t.Errorf("%s: another's row is %s: %v", what, is, err)
					}
					switch changed := now != version || is != text; {
					case rightForms[form] != nil && (old != errors.Is(err, txlock.ErrConflict) || !old && (err != nil || is != fmt.Sprintf("%d,5", made.ID))):
						t.Errorf("%s: the row is %s: %v", what, is, err)
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

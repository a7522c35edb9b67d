//go:build !race

package lockgorm_test

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestAssignmentsAreOne: the value for one column of a record that is locked or compared can't set another, and every single expression is allowed.
func TestAssignmentsAreOne(t *testing.T) {
	eachGuarded(t, []string{"Order", "Doc", "Note"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		noError(t, db.Create(&Note{}).Error)
		notes := e.open(t).Table(e.names.tables["Note"])
		innocent := map[string]any{
			"a number":     gorm.Expr("n + ?", 5),
			"a function":   gorm.Expr("GREATEST(n, ?, 2)", 5),
			"a subquery":   gorm.Expr("(SELECT 5 FROM ? LIMIT 1)", clause.Table{Name: e.names.tables["Note"]}),
			"a handle":     notes.Select("MAX(5), id").Where("n = 0 OR n = 1").Limit(1).Select("5").Session(&gorm.Session{}),
			"a text":       gorm.Expr("FIELD('a,b', 'x, y', '1 -- ', \"it's\", 'c', 'a,b')"),
			"a comment":    gorm.Expr("5 /* not 1, 2 or 3) */"),
			"a CASE":       gorm.Expr("CASE WHEN n IN (1, 2) OR n = 3 THEN 0 ELSE 5 END"),
			"an operator":  gorm.Expr("n = 7 OR 0 XOR 1"),
			"a column":     clause.Column{Name: "n"},
			"GORM's value": valuer{"LEAST(5, 6)"},
		}
		for way, assign := range assignments {
			order, doc := &Order{ID: newID()}, newDoc(t, db)
			noError(t, db.Create(order).Error)
			refused := func(what string, value any) {
				t.Helper()
				wantError(t, what+", locked", assign(db.Model(&Order{ID: order.ID}), value).Error, txlock.ErrInvalidKey)
				wantError(t, what+", compared", assign(db.Model(load(t, db, doc.ID)), value).Error, lockgorm.ErrVersion)
				if way != "Assign" && way != "a hook" {
					refuses(t, what+", compared", db, lockgorm.ErrVersion, func(tx *gorm.DB) error { return assign(tx.Model(doc), value).Error })
				}
				wantError(t, what+", of any version", assign(db.Clauses(lockgorm.AnyVersion).Model(load(t, db, doc.ID)), value).Error, lockgorm.ErrVersion)
				e.wantRows(t, what+": it was written", 1, "Order", "id = ? AND n = 0 AND name = ''", order.ID)
				e.wantRows(t, what+": it was written", 1, "Doc", "id = ? AND version = ? AND n = 0", doc.ID, doc.Version)
			}
			for name, value := range smuggled {
				if way != "Assign" || name != "in a slice" && name != "a set" { // GORM makes no assignment of it
					refused(way+", "+name, value)
				}
			}
			for name, value := range innocent {
				if name == "a handle" && (way == "clause.Set" || way == "a column with it" || way == "a hook") {
					continue // GORM puts it in parentheses only among values
				}
				wantError(t, way+", "+name, assign(db.Model(&Order{ID: order.ID}), value).Error, nil)
				wantError(t, way+", "+name, assign(db.Model(load(t, db, doc.ID)), value).Error, nil)
			}
		}
		order := &Order{ID: newID()}
		noError(t, db.Create(order).Error)
		for _, name := range []string{"n = 1, id", "n`, `id", "a.b.c.d", "n AS x"} {
			set := clause.Set{{Column: clause.Column{Name: name, Raw: true}, Value: 777}}
			wantError(t, name, db.Model(order).Clauses(set).Updates(map[string]any{}).Error, txlock.ErrInvalidKey)
		}
		halves := map[string]any{"n": gorm.Expr("IF(1"), "name": gorm.Expr("2, 3), id = 777")}
		wantError(t, "two halves", db.Model(order).Updates(halves).Error, txlock.ErrInvalidKey)
	}))
}

func TestVersionOfEveryUpdate(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		for name, configure := range configs {
			for _, found := range []bool{false, true} {
				db := used(t, e.openDSN(t, e.DSN(func(cfg *driver.Config) { cfg.ClientFoundRows = found }), configure))
				for i, way := range slices.Sorted(maps.Keys(writes)) {
					write := writes[way]
					if !testdb.Meet(i, found, e.guarded) {
						continue
					}
					what := fmt.Sprintf("%s/found=%t/%s", name, found, way)
					d := newDoc(t, db)
					first := d.Version
					result := write(db, d)
					testdb.ErrorIf(t, result.Error != nil || result.RowsAffected != 1 || d.Version <= first || d.N != 5 && way != "expression" && way != "a set of SETs",
						"%s: %+v, %d rows: %v", what, *d, result.RowsAffected, result.Error)
					e.is(t, what, d, d.Version, 5)

					mine := load(t, db, d.ID)
					touch(t, db, d.ID)
					touched := e.version(t, d.ID)
					err := write(db, mine).Error
					wantError(t, what+" of a lost race", err, txlock.ErrConflict)
					testdb.ErrorIf(t, mine.Version != d.Version || txlock.Retryable(err), "%s: version %d after a lost race: %v", what, mine.Version, err)
					e.is(t, what, d, touched, 5)

					mine = load(t, db, d.ID)
					noError(t, db.Delete(load(t, db, d.ID)).Error)
					wantError(t, what+" of a deleted row", write(db, mine).Error, gorm.ErrRecordNotFound)
					testdb.Equal(t, what+" of a deleted row, version", mine.Version, touched)
					e.wantRows(t, what+" of a deleted row", 0, "Doc", "id = ?", d.ID)
				}
			}
		}
	})
}

// TestVersionOfARowMadeAnew: somebody who has loaded a row can't overwrite the row that was created in its place from another copy.
func TestVersionOfARowMadeAnew(t *testing.T) {
	deletes := map[string]func(tx *gorm.DB, d *Doc) error{
		"Delete":     func(tx *gorm.DB, d *Doc) error { return tx.Delete(d).Error },
		"Unscoped":   func(tx *gorm.DB, d *Doc) error { return tx.Unscoped().Delete(d).Error },
		"AnyVersion": func(tx *gorm.DB, d *Doc) error { return tx.Clauses(lockgorm.AnyVersion).Delete(&Doc{}, d.ID).Error },
		"Exec": func(tx *gorm.DB, d *Doc) error {
			return tx.Exec("DELETE FROM ? WHERE id = ?", clause.Table{Name: tx.NamingStrategy.TableName("Doc")}, d.ID).Error
		},
	}
	eachSetting(t, append([]string{"Shelf"}, versionedModels...), func(t *testing.T, e *env) {
		eachPair(t, e, recreates, deletes, func(what string, db *gorm.DB, create, remove func(tx *gorm.DB, d *Doc) error) {
			mine := newDoc(t, db)
			others := load(t, db, mine.ID)
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				return errors.Join(remove(tx, mine), create(tx.Session(&gorm.Session{NewDB: true}), mine))
			}))
			now := e.version(t, mine.ID)
			testdb.ErrorIf(t, now == others.Version || now == 1,
				"%s: the row that was made again has version %d, the earlier one had %d", what, now, others.Version)
			wantError(t, what, db.Model(others).Update("n", 9).Error, txlock.ErrConflict)
			if !strings.HasPrefix(what, "an association") {
				noError(t, db.Model(mine).Update("n", 5).Error)
				e.is(t, what, mine, mine.Version, 5)
			}
		})
	})
}

// eachPair calls fn with each pair of two tables, with one of the two configurations: each entry meets both.
func eachPair[A, B any](t *testing.T, e *env, as map[string]A, bs map[string]B, fn func(what string, db *gorm.DB, a A, b B)) {
	for c, name := range slices.Sorted(maps.Keys(configs)) {
		db := used(t, e.open(t, configs[name]))
		for i, a := range slices.Sorted(maps.Keys(as)) {
			for j, b := range slices.Sorted(maps.Keys(bs)) {
				if (i+j+c)%2 == 0 {
					fn(a+", "+b+", "+name, db, as[a], bs[b])
				}
			}
		}
	}
}

// TestVersionAfterRollback: a model whose write was rolled back, in whatever way, has no version that another's commit has.
func TestVersionAfterRollback(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		eachPair(t, e, writes, undone, func(what string, db *gorm.DB, write func(tx *gorm.DB, d *Doc) *gorm.DB, undo undoing) {
			mine := newDoc(t, db)
			others := load(t, db, mine.ID)
			wantError(t, what, undo(db, func(tx *gorm.DB) error { return write(tx, mine).Error }), errInner)
			noError(t, db.Model(others).Update("name", "changed by another").Error)
			err := db.Model(mine).Update("name", "mine").Error
			wantError(t, what, err, txlock.ErrConflict)
			testdb.ErrorIf(t, txlock.Retryable(err), "%s: a conflict that would be found again is retryable", what)
			e.wantRows(t, what+": the other's change is lost", 1, "Doc", "id = ? AND name = ?", mine.ID, "changed by another")
		})
	})
}

// TestVersionColumnTooSmall: the first create fails if the column can't hold the versions, and without strict mode no update is lost.
func TestVersionColumnTooSmall(t *testing.T) {
	const layout = serial + "name VARCHAR(50) NOT NULL DEFAULT '', n BIGINT NOT NULL DEFAULT 0, author_id BIGINT, shelf_id BIGINT, version "
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		for _, kind := range []string{"TINYINT", "SMALLINT UNSIGNED", "MEDIUMINT", "INT", "INT UNSIGNED"} {
			table := e.CreateTable(t, "small", layout+kind+" NOT NULL DEFAULT 1")
			wantFailure(t, kind+", the first version", e.openPlugin(t).Table(table).Create(&Doc{}).Error)
			db := used(t, e.openDSN(t, e.DSN(func(cfg *driver.Config) { cfg.Params = map[string]string{"sql_mode": "''"} })))
			noError(t, db.Exec("INSERT INTO "+table+" (id) VALUES (1)").Error)
			// Once a version is refused, all are: it stays the largest number.
			n, saved, refused := 0, 0, 0
			for ; n < 40 && refused < 3; n++ {
				var one, two Doc
				noError(t, errors.Join(db.Table(table).First(&one, 1).Error, db.Table(table).First(&two, 1).Error))
				err := db.Table(table).Model(&one).Update("n", 10+2*n).Error
				if errors.Is(err, lockgorm.ErrVersion) {
					refused++
				} else if err == nil {
					saved++
				}
				testdb.FatalIf(t, err == nil && db.Table(table).Model(&two).Update("n", 11+2*n).Error == nil, "%s: both have saved version %d", kind, one.Version)
			}
			testdb.ErrorIf(t, refused == 0 || saved+refused != n, "%s: %d saved, %d refused", kind, saved, refused)
		}
		// BIGINT holds them, signed or unsigned, also when they reach the largest and start again.
		for _, kind := range []string{"BIGINT", "BIGINT UNSIGNED"} {
			table := e.CreateTable(t, "large", layout+kind+" NOT NULL DEFAULT 1")
			db := e.openPlugin(t)
			for _, version := range []lockgorm.Version{1<<62 - 1, 1 << 62, 1<<62 + 1<<30, 1<<63 - 1} {
				d := &Doc{Version: version}
				noError(t, db.Table(table).Clauses(lockgorm.KeepVersion).Create(d).Error)
				for range 3 {
					before := d.Version
					noError(t, db.Table(table).Model(d).Update("n", gorm.Expr("n + 1")).Error)
					testdb.ErrorIf(t, d.Version == before, "%s: version %d was not raised", kind, before)
				}
				fresh := new(Doc)
				noError(t, db.Table(table).First(fresh, d.ID).Error)
				testdb.Equal(t, fmt.Sprintf("%s: after %d", kind, version), [2]int64{int64(fresh.Version), fresh.N}, [2]int64{int64(d.Version), 3})
			}
		}
	})
}

// forms are GORM's ways to write, right ones and wrong ones, beside writes and what
// TestVersionIsNeeded, TestKeepVersion, TestVersionOfDeletes and TestGenericsVersion have.
var forms = map[string]func(tx *gorm.DB, l, rival *Ledger) *gorm.DB{
	"Save by value": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Save(*l) },
	"Save, Select":  func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Select("N").Save(l) },
	"Save, Omit":    func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Omit("Version", "DeletedAt").Save(l) },
	"Save, Where":   func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Where("n > 100").Save(l) },
	"Save, DoNothing": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Clauses(clause.OnConflict{DoNothing: true}).Save(l)
	},
	"Save, SkipHooks": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Session(&gorm.Session{SkipHooks: true}).Save(l) },
	"FirstOrInit, Save": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		tx = tx.Session(&gorm.Session{NewDB: true})
		return &gorm.DB{Error: errors.Join(tx.Where(Ledger{ID: l.ID}).Assign(Ledger{N: 5, Kept: l.Kept}).FirstOrInit(l).Error, tx.Save(l).Error)}
	},
	"FirstOrCreate":      func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Where("n = 100").FirstOrCreate(l) },
	"Updates of another": func(tx *gorm.DB, l, rival *Ledger) *gorm.DB { return tx.Model(l).Updates(Ledger{ID: rival.ID, N: 5}) },
	"Updates by another": func(tx *gorm.DB, l, rival *Ledger) *gorm.DB {
		return tx.Model(rival).Where("id = ?", l.ID).Updates(Ledger{N: 5})
	},
	"Updates, no model": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Model(&Ledger{}).Updates(l) },
	"Updates, its id": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Model(l).Updates(map[string]any{"id": l.ID, "n": 5})
	},
	"Updates, an id": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Model(l).Updates(map[string]any{"id": gorm.Expr("id + 1000"), "n": 5})
	},
	"Updates, Limit": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Model([]*Ledger{l, l}).Order("id DESC").Limit(1).Update("n", 5)
	},
	"Updates, Joins": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Model(l).Joins("JOIN x").Update("n", 5) },
	"UpdateColumns": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Model(l).UpdateColumns(map[string]any{"n": 5, "deleted_at": nil})
	},
	"Returning":       func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Clauses(clause.Returning{}).Delete(l) },
	"Returning, good": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Clauses(clause.Returning{}).Unscoped().Delete(l) },
	"Returning, some": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Clauses(clause.Returning{Columns: []clause.Column{{Name: "n"}}}).Unscoped().Delete(&[]Ledger{*l})
	},
	"Delete, OR":         func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Delete(l, "n = 0 OR n = 3") },
	"Delete, of a model": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return tx.Model(l).Delete(&Ledger{}) },
	"Delete, of another": func(tx *gorm.DB, l, rival *Ledger) *gorm.DB { return tx.Model(rival).Delete(l) },
	"Create, IGNORE": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Clauses(clause.Insert{Modifier: "IGNORE"}).Create(l)
	},
	"upserts in batch": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return tx.Clauses(clause.OnConflict{UpdateAll: true}).CreateInBatches([]*Ledger{l, l}, 1)
	},
	"a savepoint": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		return &gorm.DB{Error: tx.Transaction(func(tx *gorm.DB) error {
			err := errors.Join(tx.SavePoint("a").Error, tx.Model(l).Update("n", 5).Error, tx.RollbackTo("a").Error)
			if err != nil || tx.Model(l).Update("n", 6).Error != nil {
				return err
			}
			return errors.New("a version that was undone is that of the row")
		})}
	},
	"in batches": func(tx *gorm.DB, l, _ *Ledger) *gorm.DB {
		var found []*Ledger
		return tx.Where("id = ?", l.ID).FindInBatches(&found, 1, func(tx *gorm.DB, _ int) error {
			*found[0] = *l
			err := tx.Model(found[0]).Update("n", 5).Error
			*l = *found[0]
			return err
		})
	},
}

// rightForms are those that write 5, under the lock of the record.
var rightForms = map[string]func(tx *gorm.DB, l *Ledger) *gorm.DB{
	"Save":                   func(db *gorm.DB, l *Ledger) *gorm.DB { return db.Save(l) },
	"Unscoped, UpdateColumn": func(db *gorm.DB, l *Ledger) *gorm.DB { return db.Unscoped().Model(l).UpdateColumn("n", 5) },
	"an OR in parentheses":   func(db *gorm.DB, l *Ledger) *gorm.DB { return db.Model(l).Where("(n = 0 OR n = 7)").Update("n", 5) },
	"conditions": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return db.Model(l).Where("n < ? OR n > ?", 5, 6).Not("n = 3").Where(map[string]any{"n": []int{0, 1}}).Update("n", 5)
	},
	"a scope": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return db.Model(l).Scopes(func(tx *gorm.DB) *gorm.DB { return tx.Where("n = 0") }).Update("n", 5)
	},
	"Table": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return db.Table("? AS x", clause.Table{Name: db.NamingStrategy.TableName("Ledger")}).Model(l).Where("x.n = 0").Update("n", 5)
	},
	"a comment": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return db.Model(l).Clauses(behind("UPDATE", "/* why */"), behind("WHERE", "/* why */")).Where("n = 0").Update("n", 5)
	},
	"a subquery": func(db *gorm.DB, l *Ledger) *gorm.DB {
		none := db.Session(&gorm.Session{NewDB: true}).Table("lockstep_locks").Select("1").Where("1 = 0").Or("1 = 0")
		return db.Model(l).Where("n <> ALL (?)", none).Update("n", 5)
	},
	"a transaction": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return &gorm.DB{Error: lockgorm.Transaction(db, ledgers.Keys(l.ID), func(tx *gorm.DB) error { return tx.Model(l).Update("n", 5).Error })}
	},
	"Optimistic": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return &gorm.DB{Error: lockgorm.Optimistic(db, ledgers.Key(l.ID), func(tx *gorm.DB) error { return tx.Model(l).Update("n", 5).Error })}
	},
	"On": func(db *gorm.DB, l *Ledger) *gorm.DB {
		return db.Clauses(lockgorm.On(ledgers.Key(l.ID))).Model(l).Update("n", 5)
	},
	"reused": func(db *gorm.DB, l *Ledger) *gorm.DB {
		chain := db.Model(l)
		if result := chain.Update("n", 4); result.Error != nil {
			return result
		}
		return chain.Update("n", 5)
	},
}

// TestEveryForm writes a record, which is locked and has a version, in every form.
func TestEveryForm(t *testing.T) {
	forms := maps.Clone(forms)
	for form, write := range rightForms {
		forms[form] = func(tx *gorm.DB, l, _ *Ledger) *gorm.DB { return write(tx, l) }
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
						}), l, rival).Error
					}
					l, rival := &Ledger{}, &Ledger{}
					noError(t, errors.Join(db.Create(l).Error, db.Create(rival).Error))
					if old {
						other := *l
						noError(t, db.Model(&other).Update("n", 3).Error)
					}
					rows, made, others := e.count(t, "Ledger", "1 = 1"), *l, *rival
					l.N = 5
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
					n := e.count(t, "Ledger", "1 = 1")
					testdb.ErrorIf(t, n > rows || n < rows-1, "%s: %d rows, there were %d: %v", what, n, rows, err)
				}
			}
		}
	})
}

// TestSuitePreparing is TestSuite with a driver that prepares each statement: the race
// detector watches each behaviour with each adapter and kind of key in TestSuite.
func TestSuitePreparing(t *testing.T) { locksuite.RunPreparing(t, adapters...) }

// atoms are texts for conditions, valid and invalid ones.
var atoms = []string{
	"n = 0", "n = 7", "id > 0", "id < 8", "n >= 0", "name = 'a'", // understood
	"n = 0", "n = 7", "id = 1", "id > 3", "id = 2", "TRUE", "1", "0", "NOT id = 1", "n IN (0, 7)", "n BETWEEN 0 AND 5", "n BETWEEN 0",
	"name = 'a OR b'", "name <> 'it''s'", "name <> \"x OR\"", "`id` = 1", "(n = 0 OR n = 7)", "(id = 1) OR (id = 2)", "id = 1) OR (id = 2", "(id = 1", "id = 1)",
	"id = 1 -- x", "id = 1 --\n", "id = 1 #", "id = 1 #\n", "id = 1 /*", "*/ id = 1", "/* x */ id = 1", "/*! id = 1 OR */ id = 2", "/*!99999 ( */ id = 1",
	"name = 'a\\' OR id = 1 OR name = 'b'", "name = 'a' 'b'", "name = \"a\" OR \"b\" = \"b\"", "id = 1 ORDER BY id", "id = 1 LIMIT 5", "id = 1 RETURNING id",
	"CASE WHEN id = 1 OR id = 2 THEN 1 ELSE 0 END", "CASE WHEN 1 THEN 1", "@x := 1", "@x := id = 1", "id = 1;", "id = 1 UNION SELECT 1", "", " ", "EXISTS (SELECT 1)", "id",
	"id IS NOT NULL", "n LIKE '%'", "n = 0 COLLATE utf8mb4_bin", "! id = 1", "- id", "id = ALL (SELECT 1)", "id = 1 AND", "AND id = 1", "OR", "OR id = 1", "id = 1 OR",
}

const understood = 18

var glue = []string{" AND ", " OR ", "\nOR\n", " or ", "\tOr\t", "||", " || ", " XOR ", "\nxor\n", " && ", "\nAND\n", ", ", " ", "OR(", "/**/OR/**/", "/*!OR*/", "\u00a0OR\u00a0"}

// fuzzer makes random conditions.
type fuzzer struct {
	*rand.Rand
	db *gorm.DB
}

func (f fuzzer) text() string {
	text := f.atom()
	for f.IntN(3) == 0 {
		text += glue[f.IntN(len(glue))] + f.atom()
	}
	return text
}

// atom returns a random atom, most often one that servers understand.
func (f fuzzer) atom() string {
	if f.IntN(4) > 0 {
		return atoms[f.IntN(understood)]
	}
	return atoms[f.IntN(len(atoms))]
}

// oneOf calls one of several functions at random.
func oneOf[T any](f fuzzer, of ...func() T) T { return of[f.IntN(len(of))]() }

func (f fuzzer) expr() clause.Expression {
	type e = clause.Expression
	if f.IntN(6) == 0 {
		return clause.Expr{SQL: f.text(), WithoutParentheses: f.IntN(2) == 0}
	}
	return oneOf(f,
		func() e { return clause.Eq{Column: clause.Column{Name: f.text(), Raw: true}, Value: 1} },
		func() e { return clause.Or(f.expr(), f.expr()) },
		func() e { return clause.Or(f.expr()) },
		func() e { return clause.And(f.expr(), f.expr()) },
		func() e { return clause.Not(f.expr(), f.expr()) },
		func() e { return clause.Not(f.expr()) },
		func() e { return clause.IN{Column: "n", Values: []any{f.value(), f.value()}} },
		func() e { return clause.Eq{Column: f.text(), Value: f.value()} },
		func() e {
			return clause.NamedExpr{SQL: f.text() + " AND n = @n", Vars: []any{map[string]any{"n": f.value()}}}
		},
		func() e { return clause.Neq{Column: "id", Value: f.value()} },
	)
}

func (f fuzzer) value() any {
	return oneOf(f,
		func() any { return gorm.Expr(f.text()) },
		func() any { return []any{0, 7, gorm.Expr(f.text())} },
		func() any {
			return f.db.Session(&gorm.Session{NewDB: true}).Table("lockstep_locks").Select("1").Where(f.text())
		},
		func() any { return f.IntN(8) },
		func() any { return f.IntN(8) },
	)
}

// condition adds a random condition to a chain.
func (f fuzzer) condition(tx *gorm.DB) *gorm.DB {
	type db = *gorm.DB
	return oneOf(f,
		func() db { return tx.Where(f.text()) },
		func() db { return tx.Where("?", gorm.Expr(f.text())) },
		func() db { return tx.Where("(?)", gorm.Expr(f.text())) },
		func() db { return tx.Where("n = ?", f.value()) },
		func() db { return tx.Where("n", f.value()) },
		func() db { return tx.Where(map[string]any{"n": f.value(), "id": f.value()}) },
		func() db { return tx.Where(map[string]any{f.text(): f.value()}) },
		func() db { return tx.Not(f.text()) },
		func() db { return tx.Not(map[string]any{"n": f.value()}) },
		func() db { return tx.Or(f.text()) },
		func() db { return tx.Or("n = ?", f.value()) },
		func() db { return tx.Where(f.db.Session(&gorm.Session{NewDB: true}).Where(f.text()).Or(f.text())) },
		func() db { return tx.Where("n = @n OR "+f.text(), map[string]any{"n": f.value()}) },
		func() db { return tx.Clauses(clause.Where{Exprs: []clause.Expression{f.expr(), f.expr()}}) },
		func() db { return tx.Where(f.expr()) },
		func() db { return tx.Scopes(func(tx *gorm.DB) *gorm.DB { return tx.Or(f.text()) }) },
		func() db { return tx.Order(f.text()).Limit(f.IntN(3) + 1) },
		func() db { return tx.Not(f.expr()) },
	)
}

// write sends a random write of the model or the slice.
func (f fuzzer) write(tx *gorm.DB, model any) error {
	type db = *gorm.DB
	return oneOf(f,
		func() db { return tx.Delete(model) },
		func() db { return tx.Model(model).Updates(map[string]any{"n": gorm.Expr("n + 1")}) },
		func() db {
			return tx.Model(model).Clauses(clause.Set{{Column: clause.Column{Name: "n"}, Value: 5}}).Updates(map[string]any{})
		},
		func() db { return tx.Model(model).UpdateColumn("n", 6) },
		func() db {
			return tx.Model(model).Update("n", gorm.Expr("8 /* "+strings.ReplaceAll(f.text(), "*/", "")+" */"))
		},
		func() db { return tx.Model(model).Update("n", gorm.Expr("(9 + 0 * (?))", gorm.Expr(f.text()))) },
		func() db {
			return tx.Model(model).Updates(map[string]any{[]string{"id", "`id`", "n"}[f.IntN(3)]: f.IntN(12) + 1})
		},
		func() db { return tx.Model(model).Update("n", 9) },
	).Error
}

// hook lets the hook of a model add a condition to the current statement.
func (f fuzzer) hook(tx *gorm.DB, _ int64) error {
	if f.IntN(4) == 0 {
		tx.Statement.AddClause(clause.Where{Exprs: []clause.Expression{f.expr()}})
	}
	return nil
}

// TestRandomConditions writes models under random conditions: only their own rows change, whose keys are locked.
func TestRandomConditions(t *testing.T) {
	const rows = 9
	tries, seed := testdb.Long(200, 2000), testdb.Seed()
	t.Logf("LOCKSTEP_SEED=%d", seed)
	// Others lock the same keys at the same time, which makes the snapshot stale.
	committed := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	each(t, []string{"Order", "Doc", "Page", "Author"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for id := range rows {
			n := int64(id % 2 * 7)
			noError(t, db.Create(&Order{ID: int64(id) + 1, Name: "a", N: n}).Error)
			noError(t, db.Create(&Doc{ID: int64(id) + 1, Name: "a", N: n}).Error)
		}
		for _, model := range []string{"Order", "Doc"} {
			changed, refused := 0, 0
			for try := range tries {
				f := fuzzer{rand.New(rand.NewPCG(seed, uint64(try))), db}
				ids := []int64{int64(f.IntN(rows)) + 1, int64(f.IntN(rows)) + 1}[:1+f.IntN(2)]
				text := &traced{Interface: logger.Discard}
				noError(t, skipInner(db.Transaction(func(tx *gorm.DB) error {
					before := e.content(t, tx, model)
					chain := withHook(tx, f.hook)
					chain = chain.Session(&gorm.Session{AllowGlobalUpdate: f.IntN(2) == 0, Logger: text})
					if f.IntN(6) == 0 {
						chain = chain.Table(e.names.tables[model] + " AS x")
					}
					for range f.IntN(3) + 1 {
						chain = f.condition(chain)
					}
					err := f.write(chain, models(t, tx, model, ids))
					after := e.content(t, tx, model)
					for id, was := range before {
						testdb.ErrorIf(t, after[id] != was && !slices.Contains(ids, id),
							"LOCKSTEP_SEED=%d, try %d: row %d was changed beside %v by %q", seed, try, id, ids, text.texts)
					}
					for id := range after {
						testdb.ErrorIf(t, before[id] == "" && model == "Order",
							"LOCKSTEP_SEED=%d, try %d: row %d was made out of %v by %q", seed, try, id, ids, text.texts)
					}
					if err != nil {
						refused++
					} else if !maps.Equal(before, after) {
						changed++
					}
					return errInner
				}, committed)))
				if t.Failed() {
					return
				}
			}
			t.Logf("%s: %d tries, %d have changed rows of their models, %d are errors", model, tries, changed, refused)
			testdb.ErrorIf(t, changed < tries/50 || refused < tries/50, "%s: of %d tries %d have changed rows, %d were refused", model, tries, changed, refused)
		}
	}))
}

// models returns one loaded model, or a slice of several.
func models(t *testing.T, tx *gorm.DB, model string, ids []int64) any {
	t.Helper()
	if model == "Doc" {
		var docs []*Doc
		noError(t, tx.Session(&gorm.Session{NewDB: true}).Find(&docs, ids).Error)
		if len(docs) == 1 {
			return docs[0]
		}
		return docs
	}
	if len(ids) == 1 {
		return &Order{ID: ids[0]}
	}
	return []*Order{{ID: ids[0]}, {ID: ids[1]}}
}

// content returns the rows of a model's table as texts.
func (e *env) content(t *testing.T, tx *gorm.DB, model string) map[int64]string {
	t.Helper()
	var rows []Order
	noError(t, tx.Session(&gorm.Session{NewDB: true}).Raw("SELECT id, n, name FROM "+e.names.tables[model]).Scan(&rows).Error)
	content := make(map[int64]string)
	for _, row := range rows {
		content[row.ID] = fmt.Sprint(row.N, row.Name)
	}
	return content
}

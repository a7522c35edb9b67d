package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestFormOfAnOlderVersion proves that the values of a form are refused, and not sent, if
// somebody else has changed the record since the form was filled in.
func TestFormOfAnOlderVersion(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		d := newDoc(t, db)
		old := d.Version
		noError(t, db.Model(d).Update("n", 2).Error)
		for name, write := range map[string]func(tx *gorm.DB) error{
			"a struct":            func(tx *gorm.DB) error { return tx.Model(d).Updates(Doc{N: 3, Version: old}).Error },
			"selected columns":    func(tx *gorm.DB) error { return tx.Model(d).Select("N").Updates(&Doc{N: 3, Version: old}).Error },
			"UpdateColumns":       func(tx *gorm.DB) error { return tx.Model(d).UpdateColumns(Doc{N: 3, Version: old}).Error },
			"a struct of another": func(tx *gorm.DB) error { return tx.Model(d).Updates(struct{ N, Version int64 }{3, int64(old)}).Error },
		} {
			refuses(t, name, db, txlock.ErrConflict, write)
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				load(t, tx, d.ID)
				err := write(tx)
				if wantError(t, name+", inside", err, txlock.ErrConflict); txlock.Retryable(err) {
					t.Errorf("%s, inside: the conflict is retryable", name)
				}
				return nil
			}))
			e.is(t, name, d, d.Version, 2)
		}
	})
}

// TestLoadedChildrenAreRefusedFirst proves that a write which would also save loaded
// models with a version is refused before anything is written, and that a transaction
// goes on.
func TestLoadedChildrenAreRefusedFirst(t *testing.T) {
	full := func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{FullSaveAssociations: true}) }
	notes := func(tx *gorm.DB) *gorm.Association { return tx.Model(&Shelf{ID: 1}).Association("Notes") }
	eachSetting(t, append([]string{"Shelf", "ShelfNote"}, versionedModels...), func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		stored := &Doc{ID: 1, Pages: []Page{{ID: 1, N: 1}}, Author: &Author{ID: 1, Name: "old"}}
		noError(t, db.Create(stored).Error)
		noError(t, db.Create(&Shelf{ID: 1}).Error)
		loaded := func() *Doc {
			d := new(Doc)
			noError(t, db.Preload("Pages").Preload("Author").First(d, 1).Error)
			d.N, d.Author.Name = 9, "new"
			return d
		}
		for name, write := range map[string]func(tx *gorm.DB, d *Doc) error{
			"Save":                  func(tx *gorm.DB, d *Doc) error { return tx.Save(d).Error },
			"Update":                func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Update("n", 9).Error },
			"Save, in full":         func(tx *gorm.DB, d *Doc) error { return full(tx).Omit("Pages").Save(d).Error },
			"Create":                func(tx *gorm.DB, d *Doc) error { return tx.Create(&Doc{ID: 2, Pages: d.Pages}).Error },
			"Create, in full":       func(tx *gorm.DB, d *Doc) error { return full(tx).Create(&Doc{ID: 2, Author: d.Author}).Error },
			"Append, of no version": func(tx *gorm.DB, d *Doc) error { return tx.Model(&Shelf{ID: 1}).Association("Docs").Append(d) },
			"Create, of no version": func(tx *gorm.DB, d *Doc) error { return tx.Create(&Shelf{ID: 2, Docs: []*Doc{d}}).Error },
			"Create, of grandchildren": func(tx *gorm.DB, d *Doc) error {
				return tx.Create(&Shelf{ID: 2, Docs: []*Doc{{ID: 2, Pages: d.Pages}}}).Error
			},
			"Delete, of no version": func(tx *gorm.DB, _ *Doc) error { return tx.Select("Notes", "Docs").Delete(&Shelf{ID: 1}).Error },
			"Delete":                func(tx *gorm.DB, d *Doc) error { return tx.Select("Pages").Delete(d).Error },
		} {
			d := loaded()
			refuses(t, name, db, lockgorm.ErrVersion, func(tx *gorm.DB) error { return write(tx, d) })
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				wantError(t, name+", inside", write(tx, loaded()), lockgorm.ErrVersion)
				return nil
			}))
			if e.count(t, "Doc", "id > 1 OR n = 9") != 0 || e.count(t, "Shelf", "id = 1 AND n = 0") != 1 || e.count(t, "Shelf", "id > 1") != 0 || e.count(t, "Author", "name <> 'old'") != 0 {
				t.Fatalf("%s: something was written", name)
			}
		}
		for name, write := range map[string]func(tx *gorm.DB, d *Doc) error{
			"omitted": func(tx *gorm.DB, d *Doc) error { return tx.Omit("Pages").Save(d).Error },
			"omitted below": func(tx *gorm.DB, d *Doc) error {
				return tx.Omit("Docs.Pages").Create(&Shelf{ID: 20, Docs: []*Doc{{ID: 20, Pages: d.Pages}}}).Error
			},
			"columns only": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Select("n").Updates(d).Error },
			"not selected below": func(tx *gorm.DB, d *Doc) error {
				return tx.Select("ID", "Docs.ID", "Docs").Create(&Shelf{ID: 21, Docs: []*Doc{{ID: 21, Pages: d.Pages}}}).Error
			},
			"that it belongs to": func(tx *gorm.DB, d *Doc) error { return tx.Create(&Doc{ID: 22, Author: d.Author}).Error },
			"new ones":           func(tx *gorm.DB, d *Doc) error { d.Pages = []Page{{N: 5}}; return tx.Save(d).Error },
			"in a circle": func(tx *gorm.DB, _ *Doc) error {
				d := &Doc{ID: 23}
				s := &Shelf{ID: 23, Docs: []*Doc{d}}
				d.Shelf = s
				return tx.Create(s).Error
			},
			"versions that it keeps": func(tx *gorm.DB, _ *Doc) error {
				return tx.Clauses(lockgorm.KeepVersion).Create(&Doc{ID: 24, Version: 5, Pages: []Page{{ID: 24, Lock: 6}}}).Error
			},
			"Replace of others":             func(tx *gorm.DB, _ *Doc) error { return notes(tx).Replace(&ShelfNote{}) },
			"Clear of others":               func(tx *gorm.DB, _ *Doc) error { return notes(tx).Clear() },
			"Replace of what it belongs to": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Association("Author").Replace(&Author{}) },
			"Replace whose hook updates another": func(tx *gorm.DB, d *Doc) error {
				return notes(withHook(tx, func(tx *gorm.DB, id int64) error {
					if id != 0 {
						return nil // a hook of that
					}
					return tx.Session(&gorm.Session{NewDB: true}).Omit("Pages", "Author").Updates(d).Error
				})).Replace(&ShelfNote{})
			},
			"Delete of others": func(tx *gorm.DB, _ *Doc) error { return tx.Select("Notes").Delete(&Shelf{ID: 1}).Error },
		} {
			wantError(t, name, write(db, loaded()), nil)
		}
	})
}

// Shelf has docs with a version, and notes, but no version itself.
type Shelf struct {
	ID    int64
	N     int64
	Docs  []*Doc
	Notes []ShelfNote
}

// ShelfNote has no version either.
type ShelfNote struct {
	ID      int64
	ShelfID *int64
}

func (n *ShelfNote) BeforeCreate(tx *gorm.DB) error { return hooked(tx, n.ID) }

func init() {
	columns["Shelf"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0"
	columns["ShelfNote"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, shelf_id BIGINT"
}

// TestUpdateOfNothing proves that an update that sets nothing, which GORM doesn't send,
// is compared all the same.
func TestUpdateOfNothing(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		d := newDoc(t, db)
		first := d.Version
		nothing := map[string]func(tx *gorm.DB, d *Doc) error{
			"a struct":     func(tx *gorm.DB, d *Doc) error { return tx.Updates(&Doc{ID: d.ID, Version: d.Version}).Error },
			"zero values":  func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Updates(Doc{}).Error },
			"an empty map": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Updates(map[string]any{}).Error },
			"all omitted":  func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Omit("n").Update("n", 1).Error },
			"not selected": func(tx *gorm.DB, d *Doc) error { return tx.Model(d).Select("name").UpdateColumn("n", 1).Error },
			"a batch": func(tx *gorm.DB, d *Doc) error {
				return tx.Transaction(func(tx *gorm.DB) error { return tx.Model([]*Doc{d}).Updates(map[string]any{}).Error })
			},
			"what it links": func(tx *gorm.DB, d *Doc) error {
				return tx.Model(&Doc{ID: d.ID, Version: d.Version}).Association("Pages").Append(&Page{N: 1})
			},
		}
		for name, write := range nothing {
			if err := write(db, d); err != nil || d.Version != first {
				t.Errorf("%s: %v, version %d, want %d", name, err, d.Version, first)
			}
		}
		pages := e.count(t, "Page", "TRUE")
		touch(t, db, d.ID)
		for name, write := range nothing {
			wantError(t, "stale, "+name, write(db, &Doc{ID: d.ID, Version: first}), txlock.ErrConflict)
			wantError(t, "gone, "+name, write(db, &Doc{ID: 77, Version: first}), gorm.ErrRecordNotFound)
		}
		e.wantRows(t, "a page was linked to a stale doc", pages, "Page", "TRUE")
		noError(t, db.Model(d).Clauses(lockgorm.AnyVersion).Updates(map[string]any{}).Error)
		if d.Version != first {
			t.Errorf("nothing was sent, and the version became %d", d.Version)
		}
	})
}

// TestDeleteOfTheModel proves that the model is compared and locked if the value has no
// primary key.
func TestDeleteOfTheModel(t *testing.T) {
	eachSetting(t, append([]string{"Order"}, versionedModels...), func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		d, other := newDoc(t, db), newDoc(t, db)
		stale := &Doc{ID: d.ID, Version: d.Version + 1}
		wantError(t, "a stale model", db.Model(stale).Delete(&Doc{}).Error, txlock.ErrConflict)
		noError(t, db.Model(d).Delete(&Doc{}).Error)
		e.wantRows(t, "not that doc was deleted", 0, "Doc", "id = ?", d.ID)
		e.wantRows(t, "not that doc was deleted", 1, "Doc", "id = ?", other.ID)
		id, another := newID(), newID()
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Create(&Order{ID: another}).Error)
			return tx.Create(&Order{ID: id}).Error
		}))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Model(&Order{ID: id}).Delete(&Order{}).Error)
			e.wantHeld(t, "the key of the model is free", orders.Key(id))
			return nil
		}))
		e.wantRows(t, "not that order was deleted", 0, "Order", "id = ?", id)
		e.wantRows(t, "not that order was deleted", 1, "Order", "id = ?", another)
	})
}

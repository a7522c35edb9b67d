package lockgorm_test

import (
	"errors"
	"fmt"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// recreates are the ways to create a row again from a model that was loaded before.
var recreates = map[string]func(tx *gorm.DB, d *Doc) error{
	"Create":  func(tx *gorm.DB, d *Doc) error { return tx.Create(d).Error },
	"a slice": func(tx *gorm.DB, d *Doc) error { return tx.Create([]*Doc{d}).Error },
	"a slice by value": func(tx *gorm.DB, d *Doc) error {
		docs := []Doc{*d}
		err := tx.Create(&docs).Error
		*d = docs[0]
		return err
	},
	"CreateInBatches": func(tx *gorm.DB, d *Doc) error { return tx.CreateInBatches([]*Doc{d, {}, {}}, 2).Error },
	"CreateBatchSize": func(tx *gorm.DB, d *Doc) error {
		return tx.Session(&gorm.Session{CreateBatchSize: 1}).Create([]*Doc{{}, d}).Error
	},
	"SkipHooks":     func(tx *gorm.DB, d *Doc) error { return tx.Session(&gorm.Session{SkipHooks: true}).Create(d).Error },
	"FirstOrCreate": func(tx *gorm.DB, d *Doc) error { return tx.FirstOrCreate(d).Error },
	"FirstOrCreate with Attrs": func(tx *gorm.DB, d *Doc) error {
		return tx.Where("id = ?", d.ID).Attrs(Doc{ID: d.ID, Version: d.Version}).FirstOrCreate(d).Error
	},
	"FirstOrInit": func(tx *gorm.DB, d *Doc) error {
		fresh := new(Doc)
		err := tx.Where(Doc{ID: d.ID, Version: d.Version}).FirstOrInit(fresh).Error
		err = errors.Join(err, tx.Session(&gorm.Session{NewDB: true}).Create(fresh).Error)
		*d = *fresh
		return err
	},
	"Select":             func(tx *gorm.DB, d *Doc) error { return tx.Select("ID", "Name").Create(d).Error },
	"Select all":         func(tx *gorm.DB, d *Doc) error { return tx.Select("*").Create(d).Error },
	"Select the version": func(tx *gorm.DB, d *Doc) error { return tx.Select("ID", "Version").Create(d).Error },
	"Omit":               func(tx *gorm.DB, d *Doc) error { return tx.Omit("Version").Create(d).Error },
	"Omit by column":     func(tx *gorm.DB, d *Doc) error { return tx.Omit("N", "version").Create(d).Error },
	"Unscoped":           func(tx *gorm.DB, d *Doc) error { return tx.Unscoped().Create(d).Error },
	"DoNothing": func(tx *gorm.DB, d *Doc) error {
		return errors.Join(tx.Clauses(clause.OnConflict{DoNothing: true}).Create(d).Error, tx.Session(&gorm.Session{NewDB: true}).First(d).Error)
	},
	"generics":       func(tx *gorm.DB, d *Doc) error { return gorm.G[Doc](tx).Create(tx.Statement.Context, d) },
	"an association": func(tx *gorm.DB, d *Doc) error { return tx.Create(&shelf{Docs: []*Doc{{ID: d.ID}}}).Error },
	"a map": ofMap(func(tx *gorm.DB, d *Doc) error {
		return tx.Create(map[string]any{"id": d.ID, "version": d.Version}).Error
	}),
	"a map of fields": ofMap(func(tx *gorm.DB, d *Doc) error {
		return tx.Create(&map[string]any{"ID": d.ID, "Version": uint64(d.Version)}).Error
	}),
	"a map, Select": ofMap(func(tx *gorm.DB, d *Doc) error { return tx.Select("id").Create(map[string]any{"id": d.ID}).Error }),
	"a map, Omit": ofMap(func(tx *gorm.DB, d *Doc) error {
		return tx.Omit("version").Create(map[string]any{"id": d.ID, "version": d.Version}).Error
	}),
}

// ofMap creates a row from a map, and loads it into the model.
func ofMap(create func(tx *gorm.DB, d *Doc) error) func(tx *gorm.DB, d *Doc) error {
	return func(tx *gorm.DB, d *Doc) error { return errors.Join(create(tx.Model(&Doc{}), d), tx.First(d).Error) }
}

// shelf has many docs by the column of their author.
type shelf struct {
	ID   int64
	Docs []*Doc `gorm:"foreignKey:AuthorID"`
}

// TestKeepVersion writes versions as an import does.
func TestKeepVersion(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		keep := db.Clauses(lockgorm.KeepVersion).Session(&gorm.Session{})
		id := newID()
		one, rest := &Doc{ID: id, Version: 12}, []*Doc{{ID: newID(), Version: 13}, {ID: newID()}, {ID: newID(), Version: 14}}
		noError(t, keep.Create(one).Error)
		noError(t, keep.CreateInBatches(rest, 2).Error)
		e.is(t, "one", one, 12, 0)
		e.is(t, "a batch", rest[0], 13, 0)
		e.is(t, "without one", rest[1], rest[1].Version, 0)
		e.is(t, "the next batch", rest[2], 14, 0)
		if rest[1].Version < 15 {
			t.Errorf("what carries none has version %d", rest[1].Version)
		}
		values := map[string]any{"id": newID(), "version": 15}
		noError(t, keep.Model(&Doc{}).Create(values).Error)
		e.is(t, "a map", &Doc{ID: values["id"].(int64)}, 15, 0)
		last := &Doc{ID: newID(), Version: 17}
		noError(t, gorm.G[Doc](db, lockgorm.KeepVersion).Create(t.Context(), last))
		e.is(t, "generics", last, 17, 0)
		graph := &Doc{ID: newID(), Version: 18, Pages: []Page{{ID: newID(), Lock: 19}}}
		wantError(t, "children that carry one", db.Create(graph).Error, lockgorm.ErrVersion)
		noError(t, keep.Create(graph).Error)
		e.wantRows(t, "a child has another version than it carries", 1, "Page", "id = ? AND row_version = 19", graph.Pages[0].ID)
		wantFailure(t, "an import of what is there", keep.Create(graph).Error)
		equal(t, "its version", graph.Version, 18)
		noError(t, db.Model(one).Update("n", 5).Error)
		wantError(t, "an upsert", keep.Clauses(clause.OnConflict{UpdateAll: true}).Create(&Doc{ID: id, Version: 12}).Error, lockgorm.ErrVersion)

		// What the callbacks have changed in the statement is restored.
		values = map[string]any{"id": newID(), "version": 15}
		chain := db.Model(&Doc{}).Select("id").Omit("version")
		noError(t, chain.Create(values).Error)
		equal(t, "afterwards", fmt.Sprint(values["version"], chain.Statement.Selects, chain.Statement.Omits), "15 [id] [version]")
		for what, write := range map[string]func(tx *gorm.DB) error{
			"by value":      func(tx *gorm.DB) error { return tx.Create(Doc{ID: newID(), Version: 3}).Error },
			"by value, new": func(tx *gorm.DB) error { return tx.Create(Doc{ID: newID()}).Error },
			"never written": func(tx *gorm.DB) error { return tx.Create(&readOnly{ID: newID()}).Error },
			"a hidden upsert": func(tx *gorm.DB) error {
				return tx.Clauses(clause.OnConflict{DoNothing: true, UpdateAll: true}).Create(&Doc{ID: id, N: 9}).Error
			},
		} {
			wantError(t, what, write(db), lockgorm.ErrVersion)
		}
		wantFailure(t, "KeepVersion without the plugin", e.open(t).Clauses(lockgorm.KeepVersion).Create(&Doc{}).Error)
	}))
}

// readOnly has a version that GORM may not write.
type readOnly struct {
	ID      int64
	Version lockgorm.Version `gorm:"<-:update"`
}

func (readOnly) TableName() string { return "nowhere" }

// TestVersionOfAnUpsertOfAHook proves that a create which a hook turns into an upsert is
// refused, too.
func TestVersionOfAnUpsertOfAHook(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		s := &Sheet{ID: newID()}
		noError(t, db.Create(s).Error)
		upserts := always(func(tx *gorm.DB) { tx.Statement.AddClause(clause.OnConflict{UpdateAll: true}) })
		wantError(t, "a hook", withHook(db, upserts).Create(&Sheet{ID: s.ID, N: 5}).Error, lockgorm.ErrVersion)
		chain := db.Clauses(clause.OnConflict{DoNothing: true})
		for range 2 { // GORM leaves an empty assignment in it
			noError(t, chain.Create(&Sheet{ID: s.ID, N: 5}).Error)
		}
		e.wantRows(t, "the row was changed", 1, "Sheet", "n = 0")
	}))
}

// TestFormOfAnOlderVersion proves that the values of a form are refused, and not sent, if
// somebody else has changed the record since the form was filled in.
func TestFormOfAnOlderVersion(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
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
			within(t, db, func(tx *gorm.DB) {
				load(t, tx, d.ID)
				err := write(tx)
				if wantError(t, name+", inside", err, txlock.ErrConflict); txlock.Retryable(err) {
					t.Errorf("%s, inside: the conflict is retryable", name)
				}
			})
			e.is(t, name, d, d.Version, 2)
		}
	}))
}

// TestLoadedChildrenAreRefusedFirst proves that a write which would also save loaded
// models with a version is refused before anything is written, and that a transaction
// goes on.
func TestLoadedChildrenAreRefusedFirst(t *testing.T) {
	full := func(tx *gorm.DB) *gorm.DB { return tx.Session(&gorm.Session{FullSaveAssociations: true}) }
	notes := func(tx *gorm.DB) *gorm.Association { return tx.Model(&Shelf{ID: 1}).Association("Notes") }
	eachSetting(t, append([]string{"Shelf", "ShelfNote"}, versionedModels...), withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
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
			within(t, db, func(tx *gorm.DB) {
				wantError(t, name+", inside", write(tx, loaded()), lockgorm.ErrVersion)
			})
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
	}))
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

// TestUpdateOfNothing proves that an update that sets nothing, which GORM doesn't send,
// is compared all the same.
func TestUpdateOfNothing(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
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
		equal(t, "the version, where nothing was sent", d.Version, first)
	}))
}

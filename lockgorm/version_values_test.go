package lockgorm_test

import (
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestVersionOfAReusedChain proves that each statement of a reused *gorm.DB is compared
// by itself.
func TestVersionOfAReusedChain(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for name, chainOf := range map[string]func(d *Doc) *gorm.DB{
			"Model":            func(d *Doc) *gorm.DB { return db.Model(d) },
			"Model and Where":  func(d *Doc) *gorm.DB { return db.Model(d).Where("n >= ?", 0) },
			"Where first":      func(d *Doc) *gorm.DB { return db.Where("n >= 0 OR n < 0").Model(d) },
			"a slice":          func(d *Doc) *gorm.DB { return db.Model([]*Doc{d}) },
			"Select":           func(d *Doc) *gorm.DB { return db.Model(d).Select("n", "name") },
			"Omit":             func(d *Doc) *gorm.DB { return db.Model(d).Omit("author_id") },
			"a session":        func(d *Doc) *gorm.DB { return db.Model(d).Session(&gorm.Session{}) },
			"after a conflict": func(d *Doc) *gorm.DB { return db.Model(d).Where("1 = 1") },
			"AnyVersion":       func(d *Doc) *gorm.DB { return db.Model(&Doc{}).Where("id = ?", d.ID).Clauses(lockgorm.AnyVersion) },
		} {
			d := newDoc(t, db)
			chain := chainOf(d)
			if name == "after a conflict" {
				touch(t, db, d.ID)
				wantError(t, name, chain.Update("n", 9).Error, txlock.ErrConflict)
				chain.Error = nil
				*d = *load(t, db, d.ID)
			}
			for n := 1; n <= 4; n++ {
				before := e.version(t, d.ID)
				result := chain.Update("n", n)
				if result.Error != nil || result.RowsAffected != 1 || e.version(t, d.ID) == before {
					t.Errorf("%s, update %d: %d rows: %v", name, n, result.RowsAffected, result.Error)
				}
				e.is(t, name, d, e.version(t, d.ID), n)
			}
			if name == "AnyVersion" {
				continue
			}
			touch(t, db, d.ID)
			wantError(t, name+", a lost race", chain.Update("n", 9).Error, txlock.ErrConflict)
		}
		order := db.Model(newDoc(t, db))
		noError(t, order.Update("n", 1).Error)
		noError(t, order.Delete(order.Statement.Model).Error)
	})
}

// TestVersionedChildrenAreRefusedFirst proves that a change of an association by a where
// clause is refused before anything is written, in the database or to the versions in
// memory, and that AnyVersion allows it.
func TestVersionedChildrenAreRefusedFirst(t *testing.T) {
	changes := map[string]func(a *gorm.Association, loaded *Doc) error{
		"Replace by a new one": func(a *gorm.Association, _ *Doc) error { return a.Replace(&Page{N: 9}) },
		"Replace, unscoped":    func(a *gorm.Association, _ *Doc) error { return a.Unscoped().Replace(&Page{N: 9}) },
		"Clear":                func(a *gorm.Association, _ *Doc) error { return a.Clear() },
		"Clear, unscoped":      func(a *gorm.Association, _ *Doc) error { return a.Unscoped().Clear() },
		"Delete":               func(a *gorm.Association, loaded *Doc) error { return a.Delete(&loaded.Pages[0]) },
		"Delete, unscoped":     func(a *gorm.Association, loaded *Doc) error { return a.Unscoped().Delete(&loaded.Pages[0]) },
	}
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for name, change := range changes {
			d := &Doc{Pages: []Page{{N: 1}, {N: 2}}}
			noError(t, db.Create(d).Error)
			fresh := func() *Doc {
				loaded := new(Doc)
				noError(t, db.Preload("Pages").First(loaded, d.ID).Error)
				return loaded
			}
			loaded, seen := fresh(), fresh()
			refuses(t, name, db, lockgorm.ErrVersion, func(tx *gorm.DB) error { return change(tx.Model(loaded).Association("Pages"), seen) })
			e.wantRows(t, name+": pages were changed", 2, "Page", "doc_id = ? AND n < 3", d.ID)
			e.wantRows(t, name+": pages were changed", 0, "Page", "n = 9 AND doc_id = ?", d.ID)
			old := fresh()
			noError(t, change(db.Clauses(lockgorm.AnyVersion).Session(&gorm.Session{}).Model(loaded).Association("Pages"), old))
			left := e.count(t, "Page", "doc_id = ? AND n < 3", d.ID)
			if want := map[bool]int{true: 1}[strings.HasPrefix(name, "Delete")]; left != want {
				t.Errorf("%s with AnyVersion: %d of the pages are left, want %d", name, left, want)
			}
			wantError(t, name+": a page that was unlinked", db.Model(&old.Pages[0]).Update("n", 4).Error, map[bool]error{
				true: gorm.ErrRecordNotFound, false: txlock.ErrConflict,
			}[strings.HasSuffix(name, "unscoped")])
		}
		for says, tx := range map[string]*gorm.DB{`Association("Pages")`: db, "an association of Doc": db.Session(&gorm.Session{FullSaveAssociations: true})} {
			wantCure(t, tx.Model(newDoc(t, db)).Association("Pages").Replace(&Page{}), lockgorm.ErrVersion, says)
		}
	})
}

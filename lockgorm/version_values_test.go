package lockgorm_test

import (
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

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

// TestVersionIsNotSet proves that an update whose values set the version, however it is
// written, is refused before anything is sent.
func TestVersionIsNotSet(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		table := e.names.tables["Doc"]
		d := newDoc(t, db)
		first := d.Version
		for name, update := range map[string]func(tx *gorm.DB) error{
			"qualified":         func(tx *gorm.DB) error { return tx.Model(d).Updates(map[string]any{table + ".version": 41}).Error },
			"quoted":            func(tx *gorm.DB) error { return tx.Model(d).Updates(map[string]any{"`version`": 41}).Error },
			"qualified, quoted": func(tx *gorm.DB) error { return tx.Model(d).Update("`"+table+"`.`version`", 41).Error },
			"capitals":          func(tx *gorm.DB) error { return tx.Model(d).Update("VERSION", 41).Error },
			"blanks":            func(tx *gorm.DB) error { return tx.Model(d).Update(" version ", 41).Error },
			"UpdateColumn":      func(tx *gorm.DB) error { return tx.Model(d).UpdateColumn("Version", gorm.Expr("version + 1")).Error },
			"an alias":          func(tx *gorm.DB) error { return tx.Table(table+" AS ps").Model(d).Update("ps.version", 41).Error },
			"clause.Set": func(tx *gorm.DB) error {
				return tx.Model(d).Clauses(clause.Set{{Column: clause.Column{Name: "version"}, Value: 41}}).Updates(map[string]any{}).Error
			},
			"clause.Set, qualified": func(tx *gorm.DB) error {
				return tx.Model(d).Clauses(clause.Set{{Column: clause.Column{Table: table, Name: "version"}, Value: 41}}).Updates(map[string]any{}).Error
			},
			"clause.Set, raw": func(tx *gorm.DB) error {
				return tx.Model(d).Clauses(clause.Set{{Column: clause.Column{Name: "n = 5, version", Raw: true}, Value: 41}}).Updates(map[string]any{}).Error
			},
			"any version": func(tx *gorm.DB) error {
				return tx.Clauses(lockgorm.AnyVersion).Model(&Doc{}).Where("id = ?", d.ID).Update("version", 41).Error
			},
		} {
			sent := watch(db)
			wantError(t, name, update(sent.db), lockgorm.ErrVersion)
			if sent.n != 0 {
				t.Errorf("%s: %d statements were sent", name, sent.n)
			}
		}
		e.is(t, "after all", d, first, 0)
		wantError(t, "in an expression", db.Model(d).Update("n", gorm.Expr("5 WHERE id = 0 OR version = 1 -- ")).Error, lockgorm.ErrVersion)
		e.is(t, "in an expression", d, first, 0)
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
			loaded := fresh()
			sent := watch(db)
			wantError(t, name, change(sent.db.Model(loaded).Association("Pages"), fresh()), lockgorm.ErrVersion)
			if sent.n != 0 {
				t.Errorf("%s: %d statements were sent", name, sent.n)
			}
			if e.count(t, "Page", "doc_id = ? AND n < 3", d.ID) != 2 || e.count(t, "Page", "n = 9 AND doc_id = ?", d.ID) != 0 {
				t.Errorf("%s: pages were changed", name)
			}
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
	})
}

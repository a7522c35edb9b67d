package lockgorm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Doc has a version, hooks that a test can watch, and pages with versions.
type Doc struct {
	ID       int64
	Name     string
	N        int64
	Version  lockgorm.Version
	Pages    []Page
	AuthorID *int64
	Author   *Author
	ShelfID  *int64
	Shelf    *Shelf
}

func (d *Doc) BeforeUpdate(tx *gorm.DB) error { return hooked(tx, d.ID) }
func (d *Doc) AfterCreate(tx *gorm.DB) error  { return hooked(tx, d.ID) }
func (d *Doc) AfterUpdate(tx *gorm.DB) error  { return hooked(tx, -d.ID) }
func (d *Doc) AfterDelete(tx *gorm.DB) error  { return hooked(tx, -d.ID) }

// Page has a version column of another name.
type Page struct {
	ID    int64
	DocID *int64
	N     int64
	Lock  lockgorm.Version `gorm:"column:row_version"`
}

// Author has many docs.
type Author struct {
	ID      int64
	Name    string
	Version lockgorm.Version
}

// Sheet is deleted softly.
type Sheet struct {
	ID        int64 `gorm:"autoIncrement:false"`
	N         int64
	DeletedAt gorm.DeletedAt // stands before the version, so that its clauses are built first
	Version   lockgorm.Version
}

func (s *Sheet) BeforeCreate(tx *gorm.DB) error { return hooked(tx, s.ID) }

var versionedModels = []string{"Doc", "Page", "Author", "Sheet"}

// newDoc creates a Doc and returns it.
func newDoc(t *testing.T, db *gorm.DB) *Doc {
	t.Helper()
	d := &Doc{Name: "new"}
	noError(t, db.Create(d).Error)
	testdb.FatalIf(t, d.Version == 0, "a new Doc has no version")
	return d
}

// load returns a Doc in its present state.
func load(t *testing.T, db *gorm.DB, id int64) *Doc {
	t.Helper()
	d := new(Doc)
	noError(t, db.First(d, id).Error)
	return d
}

// is fails the test unless the row of a Doc has these values.
func (e *env) is(t *testing.T, what string, d *Doc, version lockgorm.Version, n int) {
	t.Helper()
	e.wantRows(t, what, 1, "Doc", "id = ? AND version = ? AND n = ?", d.ID, version, n)
}

// version returns the version in the row of a Doc.
func (e *env) version(t *testing.T, id int64) (v lockgorm.Version) {
	t.Helper()
	noError(t, e.Admin().QueryRowContext(t.Context(), "SELECT version FROM "+e.names.tables["Doc"]+" WHERE id = ?", id).Scan(&v))
	return v
}

// touch changes a row as somebody else would.
func touch(t *testing.T, db *gorm.DB, id int64) {
	t.Helper()
	noError(t, db.Model(load(t, db, id)).UpdateColumn("name", "touched").Error)
}

// writes are the ways to change a loaded Doc to n = 5.
var writes = map[string]func(tx *gorm.DB, d *Doc) *gorm.DB{
	"Update":                func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Update("n", 5) },
	"UpdateColumn":          func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).UpdateColumn("n", 5) },
	"UpdateColumns":         func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).UpdateColumns(Doc{N: 5}) },
	"map":                   func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Updates(map[string]any{"n": 5}) },
	"struct":                func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Updates(Doc{N: 5}) },
	"struct of its version": func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Updates(&Doc{N: 5, Version: d.Version}) },
	"another struct":        func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Updates(struct{ N int64 }{5}) },
	"expression":            func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Update("n", gorm.Expr("n + ?", 5)) },
	"itself": func(tx *gorm.DB, d *Doc) *gorm.DB {
		n := d.N
		d.N = 5
		result := tx.Updates(d)
		if result.Error != nil {
			d.N = n
		}
		return result
	},
	"Save":   func(tx *gorm.DB, d *Doc) *gorm.DB { d.N = 5; return tx.Save(d) },
	"Select": func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Select("n").Updates(Doc{N: 5, Name: "x"}) },
	"Select all": func(tx *gorm.DB, d *Doc) *gorm.DB {
		return tx.Model(d).Select("*").Omit("ID").Updates(Doc{N: 5, Name: "x"})
	},
	"Omit":         func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Omit("version", "name").Updates(Doc{N: 5}) },
	"Unscoped":     func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Unscoped().Model(d).Update("n", 5) },
	"slice":        func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(&[]*Doc{d}).Update("n", 5) },
	"where":        func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Where("n < ?", 5).Update("n", 5) },
	"where in one": func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Where("n < 5 OR n > 6").Update("n", 5) },
	"a set of SETs": func(tx *gorm.DB, d *Doc) *gorm.DB {
		return tx.Model(d).Clauses(clause.Set{{Column: clause.Column{Name: "n"}, Value: 5}}).Updates(map[string]any{})
	},
}

func TestVersionOfDeletes(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, remove := range map[string]func(tx *gorm.DB, d *Doc) *gorm.DB{
			"Delete":   func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Delete(d) },
			"slice":    func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Delete([]*Doc{d}) },
			"Unscoped": func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Unscoped().Delete(d) },
			"by id":    func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Delete(d, d.ID) },
			"Model":    func(tx *gorm.DB, d *Doc) *gorm.DB { return tx.Model(d).Delete(&Doc{}) }, // what has no primary key
		} {
			d := newDoc(t, db)
			first := d.Version
			touch(t, db, d.ID)
			wantError(t, name+" of a lost race", remove(db, d).Error, txlock.ErrConflict)
			leasetest.Equal(t, name+" of a lost race, the version", d.Version, first)
			e.wantRows(t, name+" of a lost race", 1, "Doc", "id = ?", d.ID)
			d = load(t, db, d.ID)
			affects(t, name, remove(db, d), 1)
			e.wantRows(t, name, 0, "Doc", "id = ?", d.ID)
			wantError(t, name+" of a deleted row", remove(db, d).Error, gorm.ErrRecordNotFound)
		}
		id := newID()
		s := &Sheet{ID: id}
		noError(t, db.Create(s).Error)
		stale := *s
		noError(t, db.Model(s).Update("n", 1).Error)
		wantError(t, "a soft delete of a lost race", db.Delete(&stale).Error, txlock.ErrConflict)
		before := *s
		e.wantRows(t, "a soft delete of a lost race", 1, "Sheet", "version = ? AND deleted_at IS NULL", before.Version)
		leasetest.Equal(t, "the version after a lost soft delete", stale.Version == before.Version, false)
		noError(t, db.Delete(s).Error)
		if s.Version <= before.Version || e.count(t, "Sheet", "id = ? AND version = ? AND deleted_at IS NOT NULL", id, s.Version) != 1 {
			t.Errorf("after a soft delete: %+v", *s)
		}
		wantError(t, "a second soft delete", db.Delete(&before).Error, gorm.ErrRecordNotFound)
		wantError(t, "an update of what was deleted softly", db.Model(&before).Update("n", 2).Error, gorm.ErrRecordNotFound)
		wantError(t, "an unscoped update of an old version", db.Unscoped().Model(&before).Update("n", 2).Error, txlock.ErrConflict)
		noError(t, db.Unscoped().Model(s).Update("deleted_at", nil).Error)
		e.wantRows(t, "brought back", 1, "Sheet", "id = ? AND version = ? AND deleted_at IS NULL", id, s.Version)
		noError(t, db.Unscoped().Delete(s).Error)
		e.wantRows(t, "an unscoped delete leaves the row", 0, "Sheet", "id = ?", id)
	}))
}

func TestVersionOfBatches(t *testing.T) {
	eachGuarded(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		docs := []Doc{{Name: "a"}, {Name: "b"}, {Name: "c"}}
		noError(t, db.Create(&docs).Error)
		versions := func() string { return fmt.Sprint(docs[0].Version, docs[1].Version, docs[2].Version) }
		rows := func() string {
			return fmt.Sprint(e.version(t, docs[0].ID), e.version(t, docs[1].ID), e.version(t, docs[2].ID))
		}
		noError(t, db.Model(&docs[1]).Update("n", 1).Error)
		noError(t, db.Model(&docs).Update("n", 2).Error)
		before := versions()
		leasetest.Equal(t, "versions after a batch", before, rows())
		e.wantRows(t, "after a batch", 3, "Doc", "n = 2")
		touch(t, db, docs[1].ID)
		touched := rows()
		for name, write := range map[string]func() error{
			"update": func() error { return db.Model(&docs).Update("n", 9).Error },
			"delete": func() error { return db.Delete(&docs).Error },
		} {
			wantError(t, name+" with a lost race", write(), txlock.ErrConflict)
			leasetest.Equal(t, name+" with a lost race, versions", [2]string{versions(), rows()}, [2]string{before, touched})
			e.wantRows(t, name+" with a lost race", 3, "Doc", "n = 2")
		}
		docs[1] = *load(t, db, docs[1].ID)
		before = versions()
		noError(t, db.Delete(load(t, db, docs[2].ID)).Error)
		wantError(t, "a batch with a row that is gone", db.Model(&docs).Update("n", 9).Error, gorm.ErrRecordNotFound)
		wantError(t, "a delete with a row that is gone", db.Delete(&docs).Error, gorm.ErrRecordNotFound)
		leasetest.Equal(t, "versions with a row that is gone", versions(), before)
		e.wantRows(t, "with a row that is gone", 2, "Doc", "n = 2")
		auto := used(t, e.open(t, func(cfg *gorm.Config) { cfg.SkipDefaultTransaction = true }))
		wantError(t, "a batch in autocommit", auto.Model(&docs).Update("n", 9).Error, txlock.ErrNoTransaction)
		wantError(t, "a delete in autocommit", auto.Delete(&docs).Error, txlock.ErrNoTransaction)
		two := docs[:2]
		noError(t, auto.Transaction(func(tx *gorm.DB) error { return tx.Delete(&two).Error }))
		e.wantRows(t, "rows are left after the batch was deleted", 0, "Doc", "TRUE")
	}))
}

// TestVersionIsNeeded: a write that can't be compared, or whose values set the version, however it is written, is refused before anything is sent.
func TestVersionIsNeeded(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		table, d := e.names.tables["Doc"], newDoc(t, db)
		first := d.Version
		set := func(tx *gorm.DB, column clause.Column) error {
			return tx.Model(d).Clauses(clause.Set{{Column: column, Value: 41}}).Updates(map[string]any{}).Error
		}
		var partly Doc
		noError(t, db.Select("id", "n").First(&partly, d.ID).Error)
		for name, write := range map[string]func(tx *gorm.DB) error{
			"without a version":    func(tx *gorm.DB) error { return tx.Model(&Doc{ID: d.ID}).Update("n", 9).Error },
			"loaded without it":    func(tx *gorm.DB) error { return tx.Save(&partly).Error },
			"without a key":        func(tx *gorm.DB) error { return tx.Model(&Doc{Version: 1}).Where("id = ?", d.ID).Update("n", 9).Error },
			"by a where clause":    func(tx *gorm.DB) error { return tx.Model(&Doc{}).Where("id = ?", d.ID).Update("n", 9).Error },
			"by value":             func(tx *gorm.DB) error { return tx.Model(*d).Update("n", 9).Error },
			"with an OR":           func(tx *gorm.DB) error { return tx.Model(d).Where("n = 1").Or("n = 0").Update("n", 9).Error },
			"with an or in a text": func(tx *gorm.DB) error { return tx.Model(d).Where("n = 1\nor n = 0").Update("n", 9).Error },
			"no models":            func(tx *gorm.DB) error { return tx.Model(&[]Doc{}).Where("TRUE").Update("n", 9).Error },
			"one of two":           func(tx *gorm.DB) error { return tx.Model([]*Doc{d, {ID: d.ID}}).Update("n", 9).Error },
			"the version itself":   func(tx *gorm.DB) error { return tx.Model(d).Update("version", 9).Error },
			"the field itself":     func(tx *gorm.DB) error { return tx.Model(d).Updates(map[string]any{"n": 9, "Version": nil}).Error },
			"Delete by id":         func(tx *gorm.DB) error { return tx.Delete(&Doc{}, d.ID).Error },
			"Delete by value":      func(tx *gorm.DB) error { return tx.Delete(*d).Error },
			"Delete by where":      func(tx *gorm.DB) error { return tx.Where("id = ?", d.ID).Delete(&Doc{}).Error },
			"Save of a slice":      func(tx *gorm.DB) error { return tx.Save(&[]Doc{*d}).Error },
			"Save of a new slice":  func(tx *gorm.DB) error { return tx.Save(&[]Doc{{ID: d.ID, N: 9}}).Error },
			"Save of a known id":   func(tx *gorm.DB) error { return tx.Save(&Doc{ID: d.ID, N: 9}).Error },
			"an upsert": func(tx *gorm.DB) error {
				return tx.Clauses(clause.OnConflict{UpdateAll: true}).Create(&Doc{ID: d.ID, N: 9}).Error
			},
			"an upsert of one column": func(tx *gorm.DB) error {
				return tx.Clauses(clause.OnConflict{DoUpdates: clause.AssignmentColumns([]string{"n"})}).Create(&Doc{ID: d.ID, N: 9}).Error
			},
			"qualified":             func(tx *gorm.DB) error { return tx.Model(d).Updates(map[string]any{table + ".version": 41}).Error },
			"quoted":                func(tx *gorm.DB) error { return tx.Model(d).Updates(map[string]any{"`version`": 41}).Error },
			"qualified, quoted":     func(tx *gorm.DB) error { return tx.Model(d).Update("`"+table+"`.`version`", 41).Error },
			"capitals":              func(tx *gorm.DB) error { return tx.Model(d).Update("VERSION", 41).Error },
			"blanks":                func(tx *gorm.DB) error { return tx.Model(d).Update(" version ", 41).Error },
			"UpdateColumn":          func(tx *gorm.DB) error { return tx.Model(d).UpdateColumn("Version", gorm.Expr("version + 1")).Error },
			"an alias":              func(tx *gorm.DB) error { return tx.Table(table+" AS ps").Model(d).Update("ps.version", 41).Error },
			"clause.Set":            func(tx *gorm.DB) error { return set(tx, clause.Column{Name: "version"}) },
			"clause.Set, qualified": func(tx *gorm.DB) error { return set(tx, clause.Column{Table: table, Name: "version"}) },
			"clause.Set, raw":       func(tx *gorm.DB) error { return set(tx, clause.Column{Name: "n = 5, version", Raw: true}) },
			"any version": func(tx *gorm.DB) error {
				return tx.Clauses(lockgorm.AnyVersion).Model(&Doc{}).Where("id = ?", d.ID).Update("version", 41).Error
			},
		} {
			refuses(t, name, db, lockgorm.ErrVersion, write)
			refuses(t, name+", DryRun", db.Session(&gorm.Session{DryRun: true}), lockgorm.ErrVersion, write)
		}
		expression := gorm.Expr("5 WHERE id = 0 OR version = 1 -- ")
		wantError(t, "in an expression", db.Model(d).Update("n", expression).Error, lockgorm.ErrVersion)
		e.is(t, "after all", d, first, 0)
		leasetest.Equal(t, "versions", [2]lockgorm.Version{partly.Version, d.Version}, [2]lockgorm.Version{0, first})
	}))
}

func TestVersionWithoutThePlugin(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.open(t)
		e.Exec(t, "INSERT INTO "+e.names.tables["Doc"]+" (id) VALUES (7)")
		e.Exec(t, "INSERT INTO "+e.names.tables["Sheet"]+" (id) VALUES (7)")
		d, s := load(t, db, 7), new(Sheet)
		noError(t, db.First(s, 7).Error)
		leasetest.Equal(t, "loaded versions", [2]lockgorm.Version{d.Version, s.Version}, [2]lockgorm.Version{1, 1})
		for what, err := range map[string]error{
			"Create": db.Create(&Doc{}).Error, "Save": db.Save(d).Error, "Update": db.Model(d).Update("n", 9).Error,
			"Delete": db.Delete(d).Error, "a soft Delete": db.Delete(s).Error,
		} {
			wantError(t, what, err, lockgorm.ErrVersion)
		}
		wantFailure(t, "AnyVersion", db.Model(d).Clauses(lockgorm.AnyVersion).Update("n", 9).Error)
		e.is(t, "after all", d, 1, 0)
		leasetest.Equal(t, "its version", d.Version, 1)
		e.wantRows(t, "all", 1, "Doc", "TRUE")
		e.wantRows(t, "all", 1, "Sheet", "deleted_at IS NULL")
	})
}

func TestAnyVersion(t *testing.T) {
	eachSetting(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		a, b, s := newDoc(t, db), newDoc(t, db), &Sheet{ID: newID()}
		noError(t, db.Create(s).Error)
		anyOf := func() *gorm.DB { return db.Clauses(lockgorm.AnyVersion) }
		seen := map[lockgorm.Version]bool{a.Version: true, b.Version: true}
		is := func(what string, n int, docs ...*Doc) {
			t.Helper()
			for _, d := range docs {
				now := e.version(t, d.ID)
				testdb.ErrorIf(t, seen[now], "%s: version %d was there before", what, now)
				seen[now] = true
				e.is(t, what, d, now, n)
			}
		}
		noError(t, anyOf().Model(&Doc{}).Where("name <> ?", "").Update("n", 3).Error)
		is("by where", 3, a, b)
		wantError(t, "who has loaded it before", db.Model(b).Update("n", 4).Error, txlock.ErrConflict)
		noError(t, anyOf().Model(b).Update("n", 4).Error)
		is("by model", 4, b)
		wantError(t, "the model afterwards", db.Model(b).Update("n", 5).Error, lockgorm.ErrVersion)
		noError(t, anyOf().Save(&Doc{ID: b.ID, N: 6}).Error)
		is("Save", 6, b)
		wantError(t, "all rows", anyOf().Model(&Doc{}).Update("n", 7).Error, gorm.ErrMissingWhereClause)
		wantError(t, "all sheets", anyOf().Delete(&Sheet{}).Error, gorm.ErrMissingWhereClause)
		noError(t, anyOf().Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&Doc{}).Update("n", 7).Error)
		is("all rows, allowed", 7, a, b)
		noError(t, errors.Join(anyOf().Delete(&Sheet{}, s.ID).Error, anyOf().Delete(&Doc{}, a.ID).Error, anyOf().Delete(b).Error))
		e.wantRows(t, "a soft delete doesn't raise the version", 1, "Sheet", "id = ? AND version > ? AND deleted_at IS NOT NULL", s.ID, s.Version)
		e.wantRows(t, "rows are left", 0, "Doc", "TRUE")
	}))
}

// TestVersionInMemory: after success a model has the row's version, and its old one if the statement's transaction was rolled back.
func TestVersionInMemory(t *testing.T) {
	eachGuarded(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		broken := errors.New("a hook fails")
		d := newDoc(t, db)
		first := d.Version
		for name, write := range map[string]func(tx *gorm.DB) error{
			"Update": func(tx *gorm.DB) error { return tx.Model(d).Update("name", "x").Error },
			"Save":   func(tx *gorm.DB) error { return tx.Save(d).Error },
			"Delete": func(tx *gorm.DB) error { return tx.Delete(d).Error },
			"batch":  func(tx *gorm.DB) error { return tx.Model([]*Doc{d}).Update("name", "x").Error },
		} {
			fails := withHook(db, func(_ *gorm.DB, id int64) error {
				if id > 0 {
					return nil // before
				}
				testdb.ErrorIf(t, name != "Delete" && d.Version <= first, "%s: version %d in the hook after", name, d.Version)
				return broken
			})
			wantError(t, name, write(fails), broken)
			leasetest.Equal(t, name+" after the rollback", d.Version, first)
			e.is(t, name, d, first, 0)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantError(t, "a cancelled context", db.WithContext(ctx).Model(d).Update("n", 6).Error, context.Canceled)
		e.is(t, "a cancelled context", d, d.Version, 0)
		fails := withHook(db, func(*gorm.DB, int64) error { return broken })
		unsaved := &Doc{}
		wantError(t, "Create", fails.Create(unsaved).Error, broken)
		leasetest.Equal(t, "the version after a create that was rolled back", unsaved.Version, 0)
		e.wantRows(t, "after a create that was rolled back", 1, "Doc", "TRUE")
		dry := db.Session(&gorm.Session{DryRun: true})
		text := dry.Create(unsaved).Statement.SQL.String() + dry.Model(d).Update("n", 5).Statement.SQL.String()
		testdb.ErrorIf(t, strings.Count(text, "`version`") != 4 || unsaved.Version != 0, "DryRun: version %d, %s", unsaved.Version, text)
		e.is(t, "DryRun", d, d.Version, 0)
		// A hook writes the same model, before and after the statement.
		again := withHook(db, func(tx *gorm.DB, _ int64) error {
			return tx.Session(&gorm.Session{NewDB: true, Context: context.WithoutCancel(t.Context())}).Model(d).UpdateColumn("n", gorm.Expr("n + 1")).Error
		})
		noError(t, again.Model(d).Update("name", "y").Error)
		e.is(t, "hooks that write", d, d.Version, 2)
	}))
}

func TestVersionWritesAndReads(t *testing.T) {
	t.Parallel()
	text := leasetest.Got(json.Marshal(Author{ID: 1, Version: 7}))(t)
	leasetest.Equal(t, "JSON", string(text), `{"ID":1,"Name":"","Version":7}`)
	v := lockgorm.Version(3)
	for _, value := range []any{int64(7), uint64(7), []byte("7"), "7", nil} {
		noError(t, v.Scan(value))
		leasetest.Equal(t, fmt.Sprintf("%T", value), v, map[bool]lockgorm.Version{true: 0, false: 7}[value == nil])
	}
	for _, bad := range []any{int64(-1), "x", []byte(""), 1.5, true} {
		wantFailure(t, fmt.Sprintf("%T %v", bad, bad), v.Scan(bad))
	}
	wantFailure(t, "a version that no row can have", second(lockgorm.Version(1<<63).Value()))
}

package lockgorm_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

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
			testdb.Equal(t, name+" of a lost race, the version", d.Version, first)
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
		testdb.Equal(t, "the version after a lost soft delete", stale.Version == before.Version, false)
		noError(t, db.Delete(s).Error)
		testdb.ErrorIf(t, s.Version <= before.Version || e.count(t, "Sheet", "id = ? AND version = ? AND deleted_at IS NOT NULL", id, s.Version) != 1,
			"after a soft delete: %+v", *s)
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
		testdb.Equal(t, "versions after a batch", before, rows())
		e.wantRows(t, "after a batch", 3, "Doc", "n = 2")
		touch(t, db, docs[1].ID)
		touched := rows()
		for name, write := range map[string]func() error{
			"update": func() error { return db.Model(&docs).Update("n", 9).Error },
			"delete": func() error { return db.Delete(&docs).Error },
		} {
			wantError(t, name+" with a lost race", write(), txlock.ErrConflict)
			testdb.Equal(t, name+" with a lost race, versions", [2]string{versions(), rows()}, [2]string{before, touched})
			e.wantRows(t, name+" with a lost race", 3, "Doc", "n = 2")
		}
		docs[1] = *load(t, db, docs[1].ID)
		before = versions()
		noError(t, db.Delete(load(t, db, docs[2].ID)).Error)
		wantError(t, "a batch with a row that is gone", db.Model(&docs).Update("n", 9).Error, gorm.ErrRecordNotFound)
		wantError(t, "a delete with a row that is gone", db.Delete(&docs).Error, gorm.ErrRecordNotFound)
		testdb.Equal(t, "versions with a row that is gone", versions(), before)
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
		testdb.Equal(t, "versions", [2]lockgorm.Version{partly.Version, d.Version}, [2]lockgorm.Version{0, first})
	}))
}

func TestVersionWithoutThePlugin(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.open(t)
		e.Exec(t, "INSERT INTO "+e.names.tables["Doc"]+" (id) VALUES (7)")
		e.Exec(t, "INSERT INTO "+e.names.tables["Sheet"]+" (id) VALUES (7)")
		d, s := load(t, db, 7), new(Sheet)
		noError(t, db.First(s, 7).Error)
		testdb.Equal(t, "loaded versions", [2]lockgorm.Version{d.Version, s.Version}, [2]lockgorm.Version{1, 1})
		for what, err := range map[string]error{
			"Create": db.Create(&Doc{}).Error, "Save": db.Save(d).Error, "Update": db.Model(d).Update("n", 9).Error,
			"Delete": db.Delete(d).Error, "a soft Delete": db.Delete(s).Error,
		} {
			wantError(t, what, err, lockgorm.ErrVersion)
		}
		wantFailure(t, "AnyVersion", db.Model(d).Clauses(lockgorm.AnyVersion).Update("n", 9).Error)
		e.is(t, "after all", d, 1, 0)
		testdb.Equal(t, "its version", d.Version, 1)
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
			testdb.Equal(t, name+" after the rollback", d.Version, first)
			e.is(t, name, d, first, 0)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantError(t, "a cancelled context", db.WithContext(ctx).Model(d).Update("n", 6).Error, context.Canceled)
		e.is(t, "a cancelled context", d, d.Version, 0)
		fails := withHook(db, func(*gorm.DB, int64) error { return broken })
		unsaved := &Doc{}
		wantError(t, "Create", fails.Create(unsaved).Error, broken)
		testdb.Equal(t, "the version after a create that was rolled back", unsaved.Version, 0)
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
	text := testdb.Got(json.Marshal(Author{ID: 1, Version: 7}))(t)
	testdb.Equal(t, "JSON", string(text), `{"ID":1,"Name":"","Version":7}`)
	v := lockgorm.Version(3)
	for _, value := range []any{int64(7), uint64(7), []byte("7"), "7", nil} {
		noError(t, v.Scan(value))
		testdb.Equal(t, fmt.Sprintf("%T", value), v, map[bool]lockgorm.Version{true: 0, false: 7}[value == nil])
	}
	for _, bad := range []any{int64(-1), "x", []byte(""), 1.5, true} {
		wantFailure(t, fmt.Sprintf("%T %v", bad, bad), v.Scan(bad))
	}
	wantFailure(t, "a version that no row can have", testdb.Err(lockgorm.Version(1<<63).Value()))
}

// TestConflictThatTheServerFinds: a row that was changed since the snapshot is a conflict in every write, also where the server refuses it.
func TestConflictThatTheServerFinds(t *testing.T) {
	each(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openDSN(t, e.DSN(func(cfg *driver.Config) {
			if e.HasSnapshotIsolation(t) {
				cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
			}
		}))
		noError(t, db.Use(lockgorm.New()))
		for name, write := range writes {
			d := newDoc(t, db)
			tx := db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			loaded := load(t, tx, d.ID)
			touch(t, db, d.ID)
			err := write(tx, loaded).Error
			wantError(t, name, err, txlock.ErrConflict)
			testdb.ErrorIf(t, !txlock.Retryable(err), "%s: %v is not retryable", name, err)
			noError(t, tx.Rollback().Error)
		}
	})
}

// attempt is a run of a transaction that writes a Doc.
type attempt struct {
	t      *testing.T
	tx     *gorm.DB
	made   *Doc   // as it was created, before the transaction
	others func() // changes the row in the first run
}

// mine is the Doc as the transaction loads it.
func (a attempt) mine() *Doc { return load(a.t, a.tx, a.made.ID) }

// undo calls fn in a nested transaction that is rolled back.
func (a attempt) undo(fn func(tx *gorm.DB) error) error {
	return skipInner(a.tx.Transaction(func(tx *gorm.DB) error { return errors.Join(fn(tx), errInner) }))
}

// seen is the Doc as fn, which is undone, has left it.
func (a attempt) seen(fn func(tx *gorm.DB) error) (d *Doc, err error) {
	err = a.undo(func(tx *gorm.DB) error {
		err := fn(tx)
		d = load(a.t, tx, a.made.ID)
		return err
	})
	return d, err
}

// conflicts are transactions that end in a conflict, and how many runs it takes until one of them doesn't: with one run the conflict is returned.
var conflicts = map[string]struct {
	runs int
	do   func(a attempt) error
}{
	"undone by a savepoint": {1, func(a attempt) error {
		d := a.mine()
		return errors.Join(a.undo(func(tx *gorm.DB) error { return raise(tx, d) }), raise(a.tx, d))
	}},
	"by another copy": {1, func(a attempt) error { return errors.Join(raise(a.tx, a.mine()), raise(a.tx, a.made)) }},
	"by another copy, twice": {1, func(a attempt) error {
		d, stale := a.mine(), a.mine()
		return errors.Join(raise(a.tx, d), raise(a.tx, d), raise(a.tx, stale))
	}},
	"in a batch": {1, func(a attempt) error {
		stale := a.mine()
		return errors.Join(raise(a.tx, a.mine()), a.tx.Model([]*Doc{stale, a.mine()}).Update("n", 1).Error)
	}},
	"loaded of what was undone": {1, func(a attempt) error {
		seen, err := a.seen(func(tx *gorm.DB) error { return raise(tx, a.mine()) })
		return errors.Join(err, raise(a.tx, seen))
	}},
	"by any version": {1, func(a attempt) error {
		d := a.mine()
		return errors.Join(anyOf(a.tx, d.ID), raise(a.tx, d))
	}},
	"loaded of any version that was undone": {1, func(a attempt) error {
		seen, err := a.seen(func(tx *gorm.DB) error { return anyOf(tx, a.made.ID) })
		return errors.Join(err, raise(a.tx, seen))
	}},
	"deleted": {1, func(a attempt) error {
		stale := a.mine()
		return errors.Join(raise(a.tx, a.mine()), a.tx.Delete(stale).Error)
	}},
	"of another's, beside an own write": {2, func(a attempt) error {
		other, d := newDoc(a.t, a.tx), a.mine()
		a.others()
		return errors.Join(raise(a.tx, other), a.undo(func(tx *gorm.DB) error { return raise(tx, other) }), raise(a.tx, d))
	}},
	"of another's, in a savepoint": {2, func(a attempt) error {
		d := a.mine()
		a.others()
		return a.tx.Transaction(func(tx *gorm.DB) error { return raise(tx, d) })
	}},
	"of another's, after a savepoint": {2, func(a attempt) error {
		seen, err := a.seen(func(*gorm.DB) error { return nil })
		a.others()
		return errors.Join(err, raise(a.tx, seen))
	}},
	"loaded before":  {1, after(func(*gorm.DB, *Doc) error { return nil })},
	"only looked at": {1, func(a attempt) error { a.others(); a.mine(); return raise(a.tx, a.made) }},
	"First":          {2, after(func(tx *gorm.DB, d *Doc) error { id := d.ID; *d = Doc{}; return tx.First(d, id).Error })},
	"Find":           {2, after(func(tx *gorm.DB, d *Doc) error { return tx.Find(d).Error })},
	"Find of a slice": {2, after(func(tx *gorm.DB, d *Doc) error {
		var all []*Doc
		err := tx.Where("id = ?", d.ID).Find(&all).Error
		*d = *all[0]
		return err
	})},
	"Raw": {2, after(func(tx *gorm.DB, d *Doc) error {
		return tx.Raw("SELECT * FROM ? WHERE id = ?", clause.Table{Name: tx.NamingStrategy.TableName("Doc")}, d.ID).Scan(d).Error
	})},
	"Joins": {2, after(func(tx *gorm.DB, d *Doc) error { id := d.ID; *d = Doc{}; return tx.Joins("Author").First(d, id).Error })},
	"Rows":  {2, after(func(tx *gorm.DB, d *Doc) error { return scanned(tx.Model(&Doc{}).Where("id = ?", d.ID), d) })},
	"generics": {2, after(func(tx *gorm.DB, d *Doc) (err error) {
		*d, err = gorm.G[Doc](tx).Where("id = ?", d.ID).First(tx.Statement.Context)
		return err
	})},
}

func raise(tx *gorm.DB, d *Doc) error { return tx.Model(d).Update("n", gorm.Expr("n + 1")).Error }

func anyOf(tx *gorm.DB, id int64) error {
	return tx.Clauses(lockgorm.AnyVersion).Model(&Doc{}).Where("id = ?", id).Update("n", 7).Error
}

// scanned reads the rows of a chain into a model one by one.
func scanned(chain *gorm.DB, into any) error {
	rows, err := chain.Rows()
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := chain.ScanRows(rows, into); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// after loads the Doc in one way, and writes it after others.
func after(read func(tx *gorm.DB, d *Doc) error) func(a attempt) error {
	return func(a attempt) error {
		noError(a.t, read(a.tx.Session(&gorm.Session{NewDB: true}), a.made))
		a.others()
		return raise(a.tx, a.made)
	}
}

// TestConflictIsRunAgain: a transaction is run again only after a conflict with another's commit, of a version that it has loaded itself.
func TestConflictIsRunAgain(t *testing.T) {
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db := used(t, e.open(t, configure))
			for way, want := range conflicts {
				d, runs := newDoc(t, db), 0
				err := lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
					runs++
					return want.do(attempt{t, tx, d, func() {
						if runs == 1 {
							touch(t, db, d.ID)
						}
					}})
				})
				testdb.ErrorIf(t, runs != want.runs || (want.runs == 1) != errors.Is(err, txlock.ErrConflict) || txlock.Retryable(err),
					"%s, %s: %d runs, want %d: %v", name, way, runs, want.runs, err)
			}
		}
	})
}

// TestVersionOfTheSameRowTwice proves that a batch is counted by rows, not by models.
func TestVersionOfTheSameRowTwice(t *testing.T) {
	eachGuarded(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for name, batch := range map[string]func(d *Doc) any{
			"values":   func(d *Doc) any { return &[]Doc{*d, *d} },
			"pointers": func(d *Doc) any { return []*Doc{d, d, d} },
		} {
			d, other := newDoc(t, db), newDoc(t, db)
			docs := batch(d)
			noError(t, db.Model(docs).Update("n", 5).Error)
			if values, ok := docs.(*[]Doc); ok {
				testdb.Equal(t, name, (*values)[0].Version, (*values)[1].Version)
				*d = (*values)[1]
			}
			e.is(t, name, d, d.Version, 5)
			affects(t, name+": a row that is excluded", db.Model(docs).Where("n <> 5").Update("n", 6), 0)
			stale := *d
			noError(t, db.Model(docs).Where("n = 5").Update("name", "x").Error)
			d = load(t, db, d.ID)
			for what, write := range map[string]func(docs any) error{
				"update": func(docs any) error { return db.Model(docs).Update("n", 9).Error },
				"delete": func(docs any) error { return db.Delete(docs).Error },
			} {
				wantError(t, name+", one copy is old, "+what, write([]*Doc{d, &stale, other}), txlock.ErrConflict)
				wantError(t, name+", both are old, "+what, write([]*Doc{&stale, &stale, other}), txlock.ErrConflict)
				err := write([]*Doc{d, d, {ID: -newID(), Version: 7}})
				wantError(t, name+", another is gone, "+what, err, gorm.ErrRecordNotFound)
				testdb.ErrorIf(t, errors.Is(err, txlock.ErrConflict) || !strings.Contains(err.Error(), "1 of 2"),
					"%s, another is gone, %s: %v", name, what, err)
				e.is(t, name+", "+what, d, d.Version, 5)
			}
			noError(t, db.Delete(batch(d)).Error)
			e.wantRows(t, name+": not deleted", 0, "Doc", "id = ?", d.ID)
			e.wantRows(t, name+": not deleted", 1, "Doc", "id = ?", other.ID)
		}
		s := Sheet{ID: newID()}
		noError(t, db.Create(&s).Error)
		noError(t, db.Delete(&[]Sheet{s, s}).Error)
		e.wantRows(t, "a soft delete of the same row twice has left it", 1, "Sheet", "id = ? AND deleted_at IS NOT NULL", s.ID)
	}))
}

type undoing func(db *gorm.DB, write func(tx *gorm.DB) error) error

// undone are the ways in which the write of a model is rolled back without the model noticing.
var undone = map[string]undoing{
	"Transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return db.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
	},
	"lockgorm.Transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
	},
	"a panic": func(db *gorm.DB, write func(tx *gorm.DB) error) (err error) {
		defer func() { err = errors.Join(err, recover().(error)) }()
		return db.Transaction(func(tx *gorm.DB) error {
			err = write(tx)
			panic(errInner)
		})
	},
	"by hand": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		tx := db.Begin()
		return errors.Join(write(tx), tx.Rollback().Error, errInner)
	},
	"a nested transaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		var inner error
		err := db.Transaction(func(tx *gorm.DB) error {
			inner = tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
			return nil
		})
		return errors.Join(err, inner)
	},
	"a savepoint": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return errors.Join(errInner, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.SavePoint("s").Error, write(tx), tx.RollbackTo("s").Error)
		}))
	},
	"a savepoint as text": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return errors.Join(errInner, db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Exec("SAVEPOINT s").Error, write(tx), tx.Exec("ROLLBACK TO SAVEPOINT s").Error)
		}))
	},
	"DisableNestedTransaction": func(db *gorm.DB, write func(tx *gorm.DB) error) error {
		return db.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errInner) })
		})
	},
}

// TestVersionOfUndoneCreates: the same for models that were created, also with their parent, or deleted softly, and for uncommitted reads.
func TestVersionOfUndoneCreates(t *testing.T) {
	eachGuarded(t, versionedModels, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, end := range []string{"Transaction", "a savepoint"} { // TestVersionAfterRollback has all
			undo := func(write func(tx *gorm.DB) error) {
				t.Helper()
				wantError(t, end, undone[end](db, write), errInner)
			}
			// The same primary key is given to another's row. The server makes no such number.
			mine, parent := &Doc{ID: -newID()}, &Doc{Pages: []Page{{}}}
			undo(func(tx *gorm.DB) error { return errors.Join(tx.Create(mine).Error, tx.Create(parent).Error) })
			noError(t, errors.Join(db.Create(&Doc{ID: mine.ID}).Error, db.Create(&Page{ID: parent.Pages[0].ID, N: 5}).Error))
			wantError(t, end+", a create", db.Model(mine).Update("name", "mine").Error, txlock.ErrConflict)
			wantError(t, end+", a child", db.Model(&parent.Pages[0]).Update("n", 6).Error, txlock.ErrConflict)

			sheet := &Sheet{ID: newID()}
			noError(t, db.Create(sheet).Error)
			kept := *sheet
			undo(func(tx *gorm.DB) error { return tx.Delete(sheet).Error })
			noError(t, db.Model(&kept).Update("n", 1).Error)
			wantError(t, end+", a soft delete", db.Unscoped().Model(sheet).Update("n", 2).Error, txlock.ErrConflict)

			written, seen := newDoc(t, db), new(Doc)
			undo(func(tx *gorm.DB) error { return errors.Join(anyOf(tx, written.ID), tx.First(seen, written.ID).Error) })
			noError(t, db.Model(written).Update("n", 2).Error)
			wantError(t, end+", an uncommitted read", db.Model(seen).Update("n", 3).Error, txlock.ErrConflict)
			e.is(t, end, written, written.Version, 2)
		}
	}))
}

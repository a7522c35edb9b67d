package lockgorm_test

import (
	"errors"
	"fmt"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/lockgorm"
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
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
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
		if err := keep.Create(graph).Error; err == nil || graph.Version != 18 {
			t.Errorf("an import of what is there: version %d: %v", graph.Version, err)
		}
		noError(t, db.Model(one).Update("n", 5).Error)
		wantError(t, "an upsert", keep.Clauses(clause.OnConflict{UpdateAll: true}).Create(&Doc{ID: id, Version: 12}).Error, lockgorm.ErrVersion)

		// What the callbacks have changed in the statement is restored.
		values = map[string]any{"id": newID(), "version": 15}
		chain := db.Model(&Doc{}).Select("id").Omit("version")
		noError(t, chain.Create(values).Error)
		if fmt.Sprint(values["version"]) != "15" || fmt.Sprint(chain.Statement.Selects, chain.Statement.Omits) != "[id] [version]" {
			t.Errorf("afterwards: %v, %v, %v", values, chain.Statement.Selects, chain.Statement.Omits)
		}
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
		if err := e.open(t).Clauses(lockgorm.KeepVersion).Create(&Doc{}).Error; err == nil {
			t.Error("KeepVersion without the plugin: no error")
		}
	})
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
	eachSetting(t, versionedModels, func(t *testing.T, e *env) {
		e.names.tables["secretUpsert"] = e.names.tables["Author"]
		db := e.openPlugin(t)
		a := &Author{Name: "x"}
		noError(t, db.Create(a).Error)
		wantError(t, "a hook", db.Create(&secretUpsert{ID: a.ID, Name: "y"}).Error, lockgorm.ErrVersion)
		e.wantRows(t, "the row was changed", 1, "Author", "name = 'x'")
		chain := db.Clauses(clause.OnConflict{DoNothing: true})
		for range 2 { // GORM leaves an empty assignment in it
			noError(t, chain.Create(&Author{ID: a.ID, Name: "z"}).Error)
		}
	})
}

type secretUpsert struct {
	ID      int64
	Name    string
	Version lockgorm.Version
}

func (s *secretUpsert) BeforeCreate(tx *gorm.DB) error {
	tx.Statement.AddClause(clause.OnConflict{UpdateAll: true})
	return nil
}

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

// Ware is a record as users have it: when it is created, its key is not known yet.
type Ware struct {
	ID   int64
	Code string
	N    int64
}

var wares = txlock.NewFamily[int64]("gorm-ware")

func (w *Ware) LockKeys(*gorm.DB) ([]txlock.Key, error) { return wares.Keys(w.ID), nil }

func (w *Ware) BeforeCreate(tx *gorm.DB) error { return hooked(tx, w.ID) }

// Part is locked by the ware that it belongs to.
type Part struct {
	ID     int64
	WareID int64
}

func (p *Part) LockKeys(*gorm.DB) ([]txlock.Key, error) { return wares.Keys(p.WareID, p.ID), nil }

// Named gets its primary key from a hook.
type Named struct {
	ID string `gorm:"size:50"`
	N  int64
}

var nameds = txlock.NewFamily[string]("gorm-named", txlock.Exact())

func (n *Named) LockKeys(*gorm.DB) ([]txlock.Key, error) { return nameds.Keys(n.ID), nil }

func (n *Named) BeforeCreate(*gorm.DB) error {
	if n.ID == "" {
		n.ID = fmt.Sprintf("n%d", n.N)
	}
	return nil
}

func init() {
	columns["Ware"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, code VARCHAR(50) NULL UNIQUE, n BIGINT NOT NULL DEFAULT 0"
	columns["Part"] = "id BIGINT AUTO_INCREMENT PRIMARY KEY, ware_id BIGINT NOT NULL"
	columns["Named"] = "id VARCHAR(50) PRIMARY KEY, n BIGINT NOT NULL"
}

// TestCreateOfANewRecord proves that the create of a record whose key the database makes
// needs no lock but that of its parent: nobody can name the record before.
func TestCreateOfANewRecord(t *testing.T) {
	eachGuarded(t, []string{"Ware", "Part", "Named"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		name, one := "ware", &Ware{Code: "ware"}
		many := []*Ware{{Code: name + "1"}, {Code: name + "2"}}
		noError(t, db.Create(one).Error)
		noError(t, db.Create(&many).Error)
		noError(t, db.CreateInBatches([]*Ware{{Code: name + "3"}, {Code: name + "4"}}, 1).Error)
		noError(t, db.Save(&Ware{Code: name + "5"}).Error)
		noError(t, db.Where(Ware{Code: name + "6"}).FirstOrCreate(&Ware{}).Error)
		noError(t, gorm.G[Ware](db).Create(t.Context(), &Ware{Code: name + "7"}))
		noError(t, db.Clauses(clause.OnConflict{DoNothing: true}).Create(&Ware{Code: name}).Error)
		wantError(t, "an empty slice", db.Create([]Ware{}).Error, gorm.ErrEmptySlice)
		wantError(t, "an empty slice of a table", db.Create(&[]*Ware{}).Error, gorm.ErrEmptySlice)
		noError(t, db.Model(one).Update("n", 1).Error)
		if one.ID == 0 || many[1].ID == 0 || e.count(t, "Ware", "code LIKE ?", name+"%") != 8 || e.count(t, "Ware", "id = ? AND n = 1", one.ID) != 1 {
			t.Errorf("%+v, %d wares", *one, e.count(t, "Ware", "code LIKE ?", name+"%"))
		}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Create(&Part{WareID: one.ID}).Error)
			e.wantHeld(t, "the parent of a new part is not locked", wares.Key(one.ID))
			n := newID()
			noError(t, tx.Create(&Named{N: n}).Error)
			e.wantHeld(t, "the identifier that a hook has given is not locked", nameds.Key(fmt.Sprintf("n%d", n)))
			return nil
		}))
	})
}

// TestUpsertOfAnother proves that an upsert changes only the row whose key was locked,
// whichever row a unique key finds.
func TestUpsertOfAnother(t *testing.T) {
	upserts := map[string]func(db *gorm.DB, w *Ware) error{
		"UpdateAll": func(db *gorm.DB, w *Ware) error {
			return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(w).Error
		},
		"DoUpdates": func(db *gorm.DB, w *Ware) error {
			return db.Clauses(clause.OnConflict{DoUpdates: clause.AssignmentColumns([]string{"n"})}).Create(w).Error
		},
		"Assignments": func(db *gorm.DB, w *Ware) error {
			return db.Clauses(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"n": w.N})}).Create(w).Error
		},
		"Save of a slice":   func(db *gorm.DB, w *Ware) error { return db.Save([]*Ware{w}).Error },
		"Save of a new one": func(db *gorm.DB, w *Ware) error { return db.Save(w).Error },
		"in a batch": func(db *gorm.DB, w *Ware) error {
			return db.Save([]*Ware{{ID: -newID(), Code: fmt.Sprint(newID())}, w}).Error
		},
		"generics": func(db *gorm.DB, w *Ware) error {
			return gorm.G[Ware](db, clause.OnConflict{UpdateAll: true}).Create(db.Statement.Context, w)
		},
		"with its key, too": func(db *gorm.DB, w *Ware) error {
			return db.Clauses(clause.OnConflict{DoUpdates: clause.AssignmentColumns([]string{"id", "n"})}).Create(w).Error
		},
	}
	eachGuarded(t, []string{"Ware"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for way, upsert := range upserts {
			code := fmt.Sprint("code ", newID())
			w := &Ware{Code: code}
			noError(t, db.Create(w).Error)
			if way != "Save of a new one" { // this is an INSERT without the key
				wantError(t, way+" without a key", upsert(db, &Ware{Code: code, N: 5}), txlock.ErrInvalidKey)
			}
			wantError(t, way+" of another's code", upsert(db, &Ware{ID: -newID(), Code: code, N: 5}), txlock.ErrInvalidKey)
			e.wantRows(t, way+": a ware was changed whose key nobody has locked", 1, "Ware", "id = ? AND code = ? AND n = 0", w.ID, code)
			e.wantRows(t, way+": a ware was changed whose key nobody has locked", 0, "Ware", "n = 5")
			noError(t, upsert(db, &Ware{ID: w.ID, Code: code, N: 6}))
			e.wantRows(t, way+": its own record was not changed", 1, "Ware", "id = ? AND n = 6", w.ID)
			if way != "Save of a new one" && way != "generics" { // this takes On as an option
				noError(t, upsert(db.Clauses(lockgorm.On(wares.Key(w.ID))).Session(&gorm.Session{}), &Ware{Code: code, N: 7}))
			}
		}
		w := &Ware{Code: "last"}
		noError(t, db.Create(w).Error)
		err := db.Clauses(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"id": w.ID + 1000})}).Create(&Ware{ID: w.ID, Code: "last"}).Error
		wantError(t, "an upsert to another key", err, txlock.ErrInvalidKey)
	})
}

// Preset and Seventh have primary keys with defaults: a constant that GORM writes, and one that the
// server makes.
type (
	Preset struct {
		Code string `lockstep:"preset" gorm:"type:varbinary(50);primaryKey;default:'main'"`
		N    int64
	}
	Seventh struct {
		ID int64 `lockstep:"seventh" gorm:"primaryKey;autoIncrement:false;default:(7)"`
		N  int64
	}
)

// TestUpsertOfADefault proves that an upsert isn't sent that may find a record by the default of its
// primary key, whose lock it hasn't taken.
func TestUpsertOfADefault(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		e.names.tables["Preset"] = e.CreateTable(t, "presets", "code VARBINARY(50) PRIMARY KEY DEFAULT 'main', n BIGINT NOT NULL DEFAULT 0")
		e.names.tables["Seventh"] = e.CreateTable(t, "sevenths", "id BIGINT PRIMARY KEY DEFAULT 7, n BIGINT NOT NULL DEFAULT 0")
		db := e.openPlugin(t)
		noError(t, errors.Join(db.Create(&Preset{Code: "main"}).Error, db.Create(&Seventh{ID: 7}).Error))
		upsert := db.Clauses(clause.OnConflict{DoUpdates: clause.AssignmentColumns([]string{"n"})}).Session(&gorm.Session{})
		for what, err := range map[string]error{
			"a constant":         upsert.Create(&Preset{N: 5}).Error,
			"a Save of a slice":  db.Save([]*Preset{{N: 5}}).Error,
			"a map":              upsert.Model(&Preset{}).Create(map[string]any{"n": 5}).Error,
			"a column left out":  upsert.Omit("code").Create(&Preset{Code: "other", N: 5}).Error,
			"the server's":       upsert.Create(&Seventh{N: 5}).Error,
			"the server's, once": upsert.Create([]*Seventh{{ID: 8, N: 5}, {N: 5}}).Error,
		} {
			wantError(t, what, err, txlock.ErrInvalidKey)
		}
		if e.count(t, "Preset", "n = 0") != 1 || e.count(t, "Preset", "TRUE") != 1 || e.count(t, "Seventh", "n = 0") != 1 || e.count(t, "Seventh", "TRUE") != 1 {
			t.Error("a record was written that nobody has locked")
		}
		noError(t, errors.Join(upsert.Create(&Preset{Code: "main", N: 6}).Error, upsert.Create(&Seventh{ID: 7, N: 6}).Error, db.Create(&Seventh{ID: 8}).Error))
		e.wantRows(t, "an upsert with its key has not changed its record", 1, "Preset", "n = 6")
		e.wantRows(t, "an upsert with its key has not changed its record", 1, "Seventh", "n = 6")
	})
}

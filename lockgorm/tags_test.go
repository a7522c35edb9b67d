package lockgorm_test

import (
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// Models with tags.
type (
	Parcel struct {
		ID int64 `lockstep:"parcel"`
		N  int64
	}
	Chest struct {
		Code string `gorm:"primaryKey;type:varbinary(50)" lockstep:"chest,hashed"`
		N    int64
	}
	Box struct {
		gorm.Model `lockstep:"box"`
		N          int64
	}

	Misplaced struct {
		ID int64
		N  int64 `lockstep:"misplaced"`
	}
	Numeric struct {
		ID int64 `gorm:"type:varchar(20)" lockstep:"numeric"`
	}
	Counted struct {
		ID string `gorm:"type:bigint" lockstep:"counted"`
	}
	Instant struct {
		ID int64 `gorm:"type:double" lockstep:"instant"`
	}
	Lowered struct {
		ID lowered `lockstep:"lowered"`
	}
	Keyless struct {
		N int64 `lockstep:"keyless"`
	}
	Doubled struct {
		gorm.Model `lockstep:"doubled"`
		N          int64 `lockstep:"doubled"`
	}
	Hidden struct {
		ID int64
		N  int64 `gorm:"-" lockstep:"hidden"`
	}
	Misspelt struct {
		ID int64 `lockstep:"misspelt,hash"`
	}
	Unsaid struct {
		Code string `gorm:"primaryKey" lockstep:"unsaid,fold"`
	}
	TwiceFolded struct {
		Code string `gorm:"primaryKey" lockstep:"twice,fold=utf8mb4_bin,fold=ascii_bin"`
	}
	Turkish struct {
		Code string `gorm:"primaryKey" lockstep:"turkish,fold=utf8mb4_turkish_ci"`
	}
	FoldedNumber struct {
		ID int64 `lockstep:"number,fold=utf8mb4_bin"`
	}
	FoldedBytes struct {
		Code string `gorm:"primaryKey;type:varbinary(50)" lockstep:"bytes,hashed,fold=utf8mb4_bin"`
	}
	Pair struct {
		A int64 `gorm:"primaryKey" lockstep:"pair"`
		B int64 `gorm:"primaryKey"`
	}
	Fraction struct {
		ID float64 `lockstep:"fraction"`
	}
	Colon struct {
		ID int64 `lockstep:"a:b"`
	}
)

// lowered is stored in small letters.
type lowered string

func (l lowered) Value() (driver.Value, error) { return strings.ToLower(string(l)), nil }

// Models whose tag is in an embedded struct.
type (
	Base struct {
		ID int64 `gorm:"primaryKey" lockstep:"based"`
	}
	Inlaid struct {
		Base Base `gorm:"embedded"`
		N    int64
	}
	Pointed struct {
		*Base
		N int64
	}
	PointedTag struct {
		*gorm.Model `lockstep:"based"`
		N           int64
	}
	NamedTag struct {
		Base gorm.Model `gorm:"embedded" lockstep:"based"`
		N    int64
	}
	Deep struct {
		Outer struct {
			Inner Base `gorm:"embedded"`
		} `gorm:"embedded"`
		N int64
	}
	Optional struct {
		ID *int64 `lockstep:"based"`
		N  int64
	}
)

var (
	parcels = txlock.NewFamily[int64]("parcel")
	chests  = txlock.NewFamily[string]("chest", txlock.Hashed(), txlock.Exact())
	boxes   = txlock.NewFamily[uint]("box")
)

func init() {
	columns["Parcel"] = columns["Note"]
	columns["Chest"] = "code VARBINARY(50) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0"
	columns["Box"] = "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, created_at DATETIME(3), updated_at DATETIME(3), deleted_at DATETIME(3)"
}

// TestTags demands that tagged models are locked as their families say, and that a create
// whose key the database makes asks for nothing.
func TestTags(t *testing.T) {
	each(t, []string{"Parcel", "Chest", "Box"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		id, code := newID(), "chest-"+t.Name()
		e.lockedBy(t, db, "create", parcels.Key(id), func(tx *gorm.DB) error { return tx.Create(&Parcel{ID: id}).Error })
		e.lockedBy(t, db, "update", parcels.Key(id), func(tx *gorm.DB) error { return tx.Model(&Parcel{ID: id}).Update("n", 2).Error })
		e.lockedBy(t, db, "delete", parcels.Key(id), func(tx *gorm.DB) error { return tx.Delete(&Parcel{ID: id}).Error })
		e.lockedBy(t, db, "hashed", chests.Key(code), func(tx *gorm.DB) error { return tx.Create(&Chest{Code: code}).Error })
		box := Box{N: 1}
		for _, model := range []string{"Parcel", "Box"} { // other tests count their own
			noError(t, second(e.Admin().ExecContext(t.Context(), fmt.Sprintf("ALTER TABLE %s AUTO_INCREMENT = %d", e.names.tables[model], newID()))))
		}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Create(&box).Error)
			made := Parcel{}
			noError(t, tx.Create(&made).Error)
			e.wantFree(t, "a create whose key the database makes has taken a lock", boxes.Key(box.ID), parcels.Key(made.ID))
			return nil
		}))
		byMap := newID() + 1<<40 // beside what the database counts
		e.lockedBy(t, db, "a map", parcels.Key(byMap), func(tx *gorm.DB) error {
			return tx.Model(&Parcel{}).Create(map[string]any{"ID": byMap, "n": gorm.Expr("1 + 1")}).Error
		})
		e.lockedBy(t, db, "maps", parcels.Key(byMap+1000), func(tx *gorm.DB) error {
			return tx.Model(&Parcel{}).Create(&[]map[string]any{{"id": byMap + 1000, "n": 4}, {"id": byMap + 1001, "n": 5}}).Error
		})
		noError(t, db.Model(&Parcel{}).Create(map[string]any{"n": 1}).Error) // the database makes the key
		for _, id := range []any{gorm.Expr("1 + 1"), "seven", clause.Expr{SQL: "?", Vars: []any{1}}, db.Model(&Parcel{}).Select("MAX(id) + 1")} {
			wantError(t, "a map whose key is unknown", db.Model(&Parcel{}).Create(map[string]any{"id": id}).Error, txlock.ErrInvalidKey)
		}
		e.lockedBy(t, db, "embedded", boxes.Key(box.ID), func(tx *gorm.DB) error { return tx.Delete(&box).Error })
		wantError(t, "an update without its key", db.Model(&Parcel{}).Where("n = 2 * RAND()").Update("n", 3).Error, txlock.ErrInvalidKey)
	})
}

// TestEmbeddedTags finds the tag wherever GORM finds the column.
func TestEmbeddedTags(t *testing.T) {
	eachGuarded(t, []string{"Box"}, func(t *testing.T, e *env) {
		for _, name := range []string{"Inlaid", "Pointed", "PointedTag", "NamedTag", "Deep", "Optional"} {
			e.names.tables[name] = e.names.tables["Box"]
		}
		db, based := e.openPlugin(t), txlock.NewFamily[int64]("based")
		for name, model := range map[string]func(id int64) any{
			"Inlaid":     func(id int64) any { return &Inlaid{Base: Base{ID: id}} },
			"Pointed":    func(id int64) any { return &Pointed{Base: &Base{ID: id}} },
			"PointedTag": func(id int64) any { return &PointedTag{Model: &gorm.Model{ID: uint(id)}} },
			"NamedTag":   func(id int64) any { return &NamedTag{Base: gorm.Model{ID: uint(id)}} },
			"Deep":       func(id int64) any { d := &Deep{}; d.Outer.Inner.ID = id; return d },
			"Optional":   func(id int64) any { return &Optional{ID: &id} },
		} {
			id := newID()
			e.lockedBy(t, db, "Create of "+name, based.Key(id), func(tx *gorm.DB) error { return tx.Create(model(id)).Error })
			e.lockedBy(t, db, "Update of "+name, based.Key(id), func(tx *gorm.DB) error { return tx.Model(model(id)).Update("n", 5).Error })
			e.wantRows(t, name+" was not written", 1, "Box", "id = ? AND n = 5", id)
		}
		noError(t, db.Create(&Optional{N: 1}).Error) // the database makes the key
	})
}

// TestTagsRefused demands an error with the cure for tags that can't be followed.
func TestTagsRefused(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		db := used(t, e.open(t, func(cfg *gorm.Config) { cfg.NamingStrategy = nil }))
		for cure, model := range map[string]any{
			"move the tag there":                      &Misplaced{ID: 1},
			"in which several values may be one":      &Numeric{ID: 1},
			"several strings are one number":          &Counted{ID: "1"},
			"is a DOUBLE":                             &Instant{ID: 1},
			"names what is stored":                    &Lowered{ID: "a"},
			"the primary key has 0 columns":           &Keyless{N: 1},
			"the primary key is ID, N has":            &Doubled{N: 1},
			"hidden":                                  &Hidden{ID: 1},
			`write "misspelt"`:                        &Misspelt{ID: 1},
			`"fold" is not an option`:                 &Unsaid{Code: "a"},
			`"fold=ascii_bin" is not an option`:       &TwiceFolded{Code: "a"},
			"know the collation utf8mb4_turkish":      &Turkish{Code: "a"},
			"fold= is for strings: leave it out":      &FoldedNumber{ID: 1},
			"the collation binary, but its keys fold": &FoldedBytes{Code: "a"},
			"the primary key has 2 columns":           &Pair{A: 1, B: 1},
			"the UUID of github.com/google/uuid":      &Fraction{ID: 1},
			"has a colon":                             &Colon{ID: 1},
		} {
			wantCure(t, db.Create(model).Error, txlock.ErrInvalidKey, cure)
		}
	})
}

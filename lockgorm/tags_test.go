package lockgorm_test

import (
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
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
	Collated struct {
		ID string `lockstep:"collated"`
	}
	Misspelt struct {
		ID int64 `lockstep:"misspelt,hash"`
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

var (
	parcels = txlock.NewFamily[int64]("parcel")
	chests  = txlock.NewFamily[string]("chest", txlock.Hashed)
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
		db := e.open(t)
		noError(t, db.Use(lockgorm.New()))
		locks := func(what string, key txlock.Key, write func(tx *gorm.DB) error) {
			t.Helper()
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if err := write(tx); err != nil {
					return err
				}
				if e.free(t, key) {
					t.Errorf("%s: %v is free", what, key)
				}
				return nil
			}))
		}
		id, code := newID(), "chest-"+t.Name()
		locks("create", parcels.Key(id), func(tx *gorm.DB) error { return tx.Create(&Parcel{ID: id}).Error })
		locks("update", parcels.Key(id), func(tx *gorm.DB) error { return tx.Model(&Parcel{ID: id}).Update("n", 2).Error })
		locks("delete", parcels.Key(id), func(tx *gorm.DB) error { return tx.Delete(&Parcel{ID: id}).Error })
		locks("hashed", chests.Key(code), func(tx *gorm.DB) error { return tx.Create(&Chest{Code: code}).Error })
		box := Box{N: 1}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Create(&box).Error)
			made := Parcel{}
			noError(t, tx.Create(&made).Error)
			if !e.free(t, boxes.Key(box.ID)) || !e.free(t, parcels.Key(made.ID)) {
				t.Error("a create whose key the database makes has taken a lock")
			}
			return nil
		}))
		locks("embedded", boxes.Key(box.ID), func(tx *gorm.DB) error { return tx.Delete(&box).Error })
		wantError(t, "an update without its key", db.Model(&Parcel{}).Where("n = 2").Update("n", 3).Error, txlock.ErrInvalidKey)
	})
}

// TestTagsRefused demands an error with the cure for tags that can't be followed.
func TestTagsRefused(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		db := e.open(t, func(cfg *gorm.Config) { cfg.NamingStrategy = nil })
		noError(t, db.Use(lockgorm.New()))
		for cure, model := range map[string]any{
			"move the tag there":                 &Misplaced{ID: 1},
			`gorm:"type:varbinary(191)"`:         &Collated{ID: "a"},
			`write "misspelt"`:                   &Misspelt{ID: 1},
			"the primary key has 2 columns":      &Pair{A: 1, B: 1},
			"is for integers, strings and UUIDs": &Fraction{ID: 1},
			"has a colon":                        &Colon{ID: 1},
		} {
			err := db.Create(model).Error
			wantError(t, cure, err, txlock.ErrInvalidKey)
			if err != nil && !strings.Contains(err.Error(), cure) {
				t.Errorf("%v, want %q in it", err, cure)
			}
		}
	})
}

// TestGenerics uses Lock, On and tagged models with gorm.G.
func TestGenerics(t *testing.T) {
	each(t, []string{"Note", "Parcel"}, func(t *testing.T, e *env) {
		db := e.open(t)
		noError(t, db.Use(lockgorm.New()))
		ctx, key, another := t.Context(), e.ensured(t), e.ensured(t)
		noError(t, gorm.G[Note](db).Create(ctx, &Note{ID: 1}))
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
			_, err := lockgorm.Lock(tx, another)
			noError(t, err)
			note, err := gorm.G[Note](tx).Where("id = 1").First(ctx)
			noError(t, err)
			_, err = gorm.G[Note](tx).Where("id = 1").Update(ctx, "n", note.N+1)
			return err
		}))
		noError(t, db.Transaction(func(tx *gorm.DB) error { // no model method, and read for a write
			note, err := gorm.G[Note](tx, lockgorm.On(key, txlock.Shared(another))).Where("id = 1").First(ctx)
			noError(t, err)
			if note.N != 1 || e.free(t, key) || e.free(t, another) {
				t.Errorf("On: %+v", note)
			}
			_, err = gorm.G[Note](tx, lockgorm.On(key)).Where("id = 1").Update(ctx, "n", note.N+1)
			return err
		}))
		id := newID()
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, gorm.G[Parcel](tx).Create(ctx, &Parcel{ID: id}))
			if e.free(t, parcels.Key(id)) {
				t.Error("Create of a tagged model has taken no lock")
			}
			return nil
		}))
	})
}

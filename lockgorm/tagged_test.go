package lockgorm_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Models whose tags meet something else of GORM.
type (
	Badge struct { // its hook gives it another primary key
		Code string `gorm:"primaryKey;type:varbinary(50)" lockstep:"badge"`
		N    int64
	}
	Parole struct { // its primary key doesn't show itself, and its hook gives it another one
		Code veiled `gorm:"primaryKey;type:varbinary(50)" lockstep:"parole"`
		N    int64
	}
	Tally struct { // its primary key is made by the program
		ID int64 `gorm:"primaryKey;autoIncrement:false" lockstep:"tally"`
		N  int64
	}
	Sample struct { // its primary key is stored by a serializer
		ID uuid.UUID `gorm:"type:binary(16);serializer:sixteen" lockstep:"sample"`
		N  int64
	}
	Pallet struct { // has a join table that GORM makes, with the tags of both
		ID       int64 `lockstep:"pallet"`
		N        int64
		Stickers []Sticker `gorm:"many2many:pallet_stickers"`
		*Spare   `gorm:"-"`
	}
	Sticker struct {
		ID int64 `lockstep:"sticker"`
		N  int64
	}
	Spare struct {
		Other int64 `lockstep:"spare"`
	}
)

func (v *Badge) BeforeCreate(*gorm.DB) error { v.Code = strings.ToLower(v.Code); return nil }

// veiled is a string that hides itself from logs.
type veiled string

func (veiled) String() string { return "***" }

func (p *Parole) BeforeCreate(*gorm.DB) error {
	p.Code = veiled(strings.ToLower(string(p.Code)))
	return nil
}

// sixteen stores a UUID as 16 bytes.
type sixteen struct{}

func (sixteen) Scan(ctx context.Context, field *schema.Field, dst reflect.Value, value any) error {
	id, err := uuid.FromBytes(value.([]byte))
	if err == nil {
		err = field.Set(ctx, dst, id)
	}
	return err
}

func (sixteen) Value(_ context.Context, _ *schema.Field, _ reflect.Value, value any) (any, error) {
	return value.(uuid.UUID).MarshalBinary()
}

func init() {
	schema.RegisterSerializer("sixteen", sixteen{})
	columns["Badge"], columns["Sample"] = "code VARBINARY(50) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0", "id BINARY(16) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0"
	columns["Parole"], columns["Tally"] = columns["Badge"], "id BIGINT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0"
	columns["Pallet"], columns["Sticker"] = columns["Note"], columns["Note"]
}

// lockedBy demands that a write succeeds and holds the key until its transaction ends.
func (e *env) lockedBy(t *testing.T, db *gorm.DB, what string, key txlock.Key, write func(tx *gorm.DB) error) {
	t.Helper()
	noError(t, db.Transaction(func(tx *gorm.DB) error {
		if err := write(tx); err != nil || !e.held(t, key) {
			t.Errorf("%s: %v is free: %v", what, key, err)
		}
		return nil
	}))
}

// TestVeiledIdentifiers compares primary keys as they are stored, and not as their String
// method shows them.
func TestVeiledIdentifiers(t *testing.T) {
	eachGuarded(t, []string{"Parole"}, func(t *testing.T, e *env) {
		db, paroles := e.openPlugin(t), txlock.NewFamily[string]("parole", txlock.Exact())
		e.lockedBy(t, db, "create", paroles.Key("sesame"), func(tx *gorm.DB) error { return tx.Create(&Parole{Code: "SESAME"}).Error })
		other := Parole{Code: "abracadabra", N: 1}
		model := func() *Parole { return &Parole{Code: "sesame"} } // GORM sets what it writes in it
		for what, err := range map[string]error{
			"a struct": db.Model(model()).Updates(other).Error,
			"a map":    db.Model(*model()).Updates(map[string]any{"code": other.Code}).Error,
			"a slice":  db.Model([]*Parole{model()}).Update("code", other.Code).Error,
			"Loaded":   db.Clauses(lockgorm.Loaded(model())).Model(&other).Update("n", 1).Error,
		} {
			wantError(t, what, err, txlock.ErrInvalidKey)
		}
		noError(t, db.Model(model()).Updates(Parole{Code: "sesame", N: 2}).Error)
		e.wantRows(t, "another record was made of it", 1, "Parole", "code = 'sesame' AND n = 2")
		e.wantRows(t, "another record was made of it", 1, "Parole", "1 = 1")
	})
}

// TestTagsOfChangedModels locks the record that is written if a hook has changed the
// primary key.
func TestTagsOfChangedModels(t *testing.T) {
	eachSetting(t, []string{"Badge"}, func(t *testing.T, e *env) {
		db, badges := e.openPlugin(t), txlock.NewFamily[string]("badge", txlock.Exact())
		code := strings.ToLower(t.Name())
		code = code[max(0, len(code)-40):]
		upper := strings.ToUpper(code)
		e.lockedBy(t, db, "create", badges.Key(code), func(tx *gorm.DB) error { return tx.Create(&Badge{Code: upper}).Error })
		e.lockedBy(t, db, "upsert", badges.Key(code), func(tx *gorm.DB) error {
			return tx.Clauses(clause.OnConflict{UpdateAll: true}).Create([]*Badge{{Code: upper, N: 2}, {Code: code + "2"}}).Error
		})
		e.wantRows(t, "the upsert has written another row", 1, "Badge", "code = ? AND n = 2", code)
	})
}

// TestTagsOfMaps refuses to create a record whose primary key a map names in a way that
// only the server understands.
func TestTagsOfMaps(t *testing.T) {
	eachGuarded(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		for _, name := range []string{"iD", "`id`", e.names.tables["Parcel"] + ".id"} {
			wantCure(t, db.Model(&Parcel{}).Create(map[string]any{name: id, "n": 1}).Error, txlock.ErrInvalidKey, `write "id"`)
		}
		e.wantRows(t, "the record was created", 0, "Parcel", "id = ?", id)
	})
}

// TestTagsOfSerializedKeys makes the key of what the model has, not of what is stored.
func TestTagsOfSerializedKeys(t *testing.T) {
	eachGuarded(t, []string{"Sample"}, func(t *testing.T, e *env) {
		db, id := e.open(t), uuid.New()
		noError(t, db.Use(lockgorm.New(lockgorm.Check(&Sample{}))))
		key := txlock.NewFamily[uuid.UUID]("sample").Key(id)
		e.lockedBy(t, db, "create", key, func(tx *gorm.DB) error { return tx.Create(&Sample{ID: id}).Error })
		e.lockedBy(t, db, "update", key, func(tx *gorm.DB) error { return tx.Model(&Sample{ID: id}).Update("n", 2).Error })
		e.lockedBy(t, db, "save", key, func(tx *gorm.DB) error { return tx.Save(&Sample{ID: id, N: 3}).Error })
		e.wantRows(t, "another row was written", 1, "Sample", "id = ? AND n = 3", id[:])
		e.lockedBy(t, db, "delete", key, func(tx *gorm.DB) error { return tx.Delete(&Sample{ID: id}).Error })
	})
}

// TestTagsOfJoinTables leaves out what is no primary key of the model itself: the columns
// of join tables, to which GORM copies the tags, and fields that it ignores.
func TestTagsOfJoinTables(t *testing.T) {
	eachGuarded(t, []string{"Pallet", "Sticker"}, func(t *testing.T, e *env) {
		e.Exec(t, "CREATE TABLE IF NOT EXISTS pallet_stickers (pallet_id BIGINT, sticker_id BIGINT, PRIMARY KEY (pallet_id, sticker_id))")
		e.Grant(t, "pallet_stickers")
		db, id := e.openPlugin(t), newID()
		pallet := Pallet{ID: id, Stickers: []Sticker{{ID: id}, {}}}
		e.lockedBy(t, db, "create", txlock.NewFamily[int64]("sticker").Key(id), func(tx *gorm.DB) error { return tx.Create(&pallet).Error })
		key := txlock.NewFamily[int64]("pallet").Key(id)
		e.lockedBy(t, db, "update", key, func(tx *gorm.DB) error { return tx.Model(&pallet).Update("n", 2).Error })
		e.lockedBy(t, db, "append", key, func(tx *gorm.DB) error { return tx.Model(&pallet).Association("Stickers").Append(&Sticker{}) })
		stickers := func() *gorm.Association { return db.Model(&pallet).Association("Stickers") }
		noError(t, stickers().Replace(&Sticker{ID: id}))
		if n := stickers().Count(); n != 1 {
			t.Errorf("Replace has left %d", n)
		}
		noError(t, stickers().Clear())
		if n := stickers().Count(); n != 0 {
			t.Errorf("Clear has left %d", n)
		}
		noError(t, db.Create(&Pallet{ID: newID(), Stickers: []Sticker{{ID: id}}}).Error)
		noError(t, db.Select("Stickers").Delete(&pallet).Error)
	})
}

package lockgorm_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/google/uuid"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
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
	Pair struct {
		A int64 `gorm:"primaryKey" lockstep:"pair"`
		B int64 `gorm:"primaryKey"`
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

// TestTags: tagged models are locked as their families say, and a create whose key the database makes asks for nothing.
func TestTags(t *testing.T) {
	each(t, []string{"Parcel", "Chest", "Box"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		code := "chest-" + t.Name()
		e.lockWrites(t, db, "hashed", chests.Key(code), func() any { return &Chest{Code: code} })
		box := Box{N: 1}
		for _, model := range []string{"Parcel", "Box"} { // other tests count their own
			noError(t, testdb.Err(e.Admin().ExecContext(t.Context(), fmt.Sprintf("ALTER TABLE %s AUTO_INCREMENT = %d", e.names.tables[model], newID()))))
		}
		within(t, db, func(tx *gorm.DB) {
			noError(t, tx.Create(&box).Error)
			made := Parcel{}
			noError(t, tx.Create(&made).Error)
			e.wantFree(t, "a create whose key the database makes has taken a lock", boxes.Key(box.ID), parcels.Key(made.ID))
		})
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
		for _, name := range []string{"iD", "`id`", e.names.tables["Parcel"] + ".id"} { // which only the server understands
			wantCure(t, db.Model(&Parcel{}).Create(map[string]any{name: byMap, "n": 77}).Error, txlock.ErrInvalidKey, `write "id"`)
		}
		e.wantRows(t, "a map that was refused", 0, "Parcel", "n = 77")
		wantError(t, "an update without its key", db.Model(&Parcel{}).Where("n = 2 * RAND()").Update("n", 3).Error, txlock.ErrInvalidKey)
	}))
}

// TestEmbeddedTags finds the tag wherever GORM finds the column, and makes the key of what the model has, not of what a serializer stores.
func TestEmbeddedTags(t *testing.T) {
	eachGuarded(t, []string{"Box", "Sample"}, func(t *testing.T, e *env) {
		db, based, sample := e.openPlugin(t, lockgorm.Check(&Sample{})), txlock.NewFamily[int64]("based"), uuid.New()
		for name, model := range map[string]func(id int64) any{
			"Inlaid":     func(id int64) any { return &Inlaid{Base: Base{ID: id}} },
			"Pointed":    func(id int64) any { return &Pointed{Base: &Base{ID: id}} },
			"PointedTag": func(id int64) any { return &PointedTag{Model: &gorm.Model{ID: uint(id)}} },
			"NamedTag":   func(id int64) any { return &NamedTag{Base: gorm.Model{ID: uint(id)}} },
			"Deep":       func(id int64) any { d := &Deep{}; d.Outer.Inner.ID = id; return d },
			"Optional":   func(id int64) any { return &Optional{ID: &id} },
		} {
			e.names.tables[name] = e.names.tables["Box"]
			id := newID()
			e.lockWrites(t, db, name, based.Key(id), func() any { return model(id) })
		}
		noError(t, db.Create(&Optional{N: 1}).Error) // the database makes the key
		e.lockWrites(t, db, "Sample", txlock.NewFamily[uuid.UUID]("sample").Key(sample), func() any { return &Sample{ID: sample} })
		noError(t, db.Create(&Sample{ID: sample, N: 3}).Error)
		e.wantRows(t, "another row was written", 1, "Sample", "id = ? AND n = 3", sample[:])
	})
}

// TestTagsRefused demands an error with the cure for tags that can't be followed.
func TestTagsRefused(t *testing.T) {
	field := func(name string, of any, tag reflect.StructTag) reflect.StructField {
		return reflect.StructField{Name: name, Type: reflect.TypeOf(of), Tag: tag, Anonymous: name == "Model"}
	}
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		db := used(t, e.open(t, func(cfg *gorm.Config) { cfg.NamingStrategy = nil }))
		for cure, fields := range map[string][]reflect.StructField{ // of a model
			"move the tag there":                      {field("ID", 1, ""), field("N", 1, `lockstep:"misplaced"`)},
			"in which several values may be one":      {field("ID", 1, `gorm:"type:varchar(20)" lockstep:"numeric"`)},
			"several strings are one number":          {field("ID", "", `gorm:"type:bigint" lockstep:"counted"`)},
			"is a DOUBLE":                             {field("ID", 1, `gorm:"type:double" lockstep:"instant"`)},
			"names what is stored":                    {field("ID", lowered(""), `lockstep:"lowered"`)},
			"the primary key has 0 columns":           {field("N", 1, `lockstep:"keyless"`)},
			"the primary key is ID, N has":            {field("Model", gorm.Model{}, `lockstep:"doubled"`), field("N", 1, `lockstep:"doubled"`)},
			"hidden":                                  {field("ID", 1, ""), field("N", 1, `gorm:"-" lockstep:"hidden"`)},
			`write "misspelt"`:                        {field("ID", 1, `lockstep:"misspelt,hash"`)},
			`"fold" is not an option`:                 {field("ID", "", `lockstep:"unsaid,fold"`)},
			`"fold=ascii_bin" is not an option`:       {field("ID", "", `lockstep:"twice,fold=utf8mb4_bin,fold=ascii_bin"`)},
			"know the collation utf8mb4_turkish":      {field("ID", "", `lockstep:"turkish,fold=utf8mb4_turkish_ci"`)},
			"fold= is for strings: leave it out":      {field("ID", 1, `lockstep:"number,fold=utf8mb4_bin"`)},
			"the collation binary, but its keys fold": {field("ID", "", `gorm:"type:varbinary(50)" lockstep:"bytes,hashed,fold=utf8mb4_bin"`)},
			"the UUID of github.com/google/uuid":      {field("ID", 1.5, `lockstep:"fraction"`)},
			"has a colon":                             {field("ID", 1, `lockstep:"a:b"`)},
		} {
			model := reflect.New(reflect.StructOf(fields)).Interface()
			wantCure(t, db.Create(model).Error, txlock.ErrInvalidKey, cure)
		}
		wantCure(t, db.Create(&Pair{A: 1, B: 1}).Error, txlock.ErrInvalidKey, "the primary key has 2 columns")
	})
}

// Models whose tags meet something else of GORM.
type (
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

func init() { schema.RegisterSerializer("sixteen", sixteen{}) }

// lockedBy demands that a write succeeds and holds the key until its transaction ends.
func (e *env) lockedBy(t *testing.T, db *gorm.DB, what string, key txlock.Key, write func(tx *gorm.DB) error) {
	t.Helper()
	within(t, db, func(tx *gorm.DB) {
		err := write(tx)
		testdb.ErrorIf(t, err != nil || !e.held(t, key), "%s: %v is free: %v", what, key, err)
	})
}

// lockWrites demands that each write of a record holds the key, and writes that record.
func (e *env) lockWrites(t *testing.T, db *gorm.DB, what string, key txlock.Key, model func() any) {
	t.Helper()
	e.lockedBy(t, db, what+", create", key, func(tx *gorm.DB) error { return tx.Create(model()).Error })
	e.lockedBy(t, db, what+", update", key, func(tx *gorm.DB) error {
		affects(t, what+", update", tx.Model(model()).Update("n", 5), 1)
		return nil
	})
	e.lockedBy(t, db, what+", save", key, func(tx *gorm.DB) error { return tx.Omit("CreatedAt").Save(model()).Error })
	e.lockedBy(t, db, what+", delete", key, func(tx *gorm.DB) error {
		affects(t, what+", delete", tx.Delete(model()), 1)
		return nil
	})
}

// TestTagsOfChangedModels locks the record that is written if a hook has changed the primary key, and compares keys as they are stored.
func TestTagsOfChangedModels(t *testing.T) {
	eachSetting(t, []string{"Parole"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		key := txlock.NewFamily[string]("parole", txlock.Exact()).Key("sesame")
		e.lockedBy(t, db, "create", key, func(tx *gorm.DB) error { return tx.Create(&Parole{Code: "SESAME"}).Error })
		e.lockedBy(t, db, "upsert", key, func(tx *gorm.DB) error {
			return tx.Clauses(clause.OnConflict{UpdateAll: true}).Create([]*Parole{{Code: "SESAME", N: 2}, {Code: "two", N: 2}}).Error
		})
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
		e.wantRows(t, "another record was made of it", 2, "Parole", "code IN ('sesame', 'two') AND n = 2")
		noError(t, db.Model(model()).Updates(Parole{Code: "sesame", N: 3}).Error)
		e.wantRows(t, "another record was written", 1, "Parole", "code = 'sesame' AND n = 3")
		e.wantRows(t, "all", 2, "Parole", "TRUE")
	}))
}

// TestTagsOfJoinTables leaves out the columns of join tables, to which GORM copies the tags, and fields that it ignores.
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
		testdb.Equal(t, "stickers after Replace", stickers().Count(), 1)
		noError(t, stickers().Clear())
		testdb.Equal(t, "stickers after Clear", stickers().Count(), 0)
		noError(t, db.Create(&Pallet{ID: newID(), Stickers: []Sticker{{ID: id}}}).Error)
		noError(t, db.Select("Stickers").Delete(&pallet).Error)
	})
}

// Models whose tags fold.
type (
	Coupon struct {
		Code string `gorm:"primaryKey" lockstep:"coupon,fold=utf8mb4_general_ci"`
		N    int64
	}
	Ticket struct { // blanks at the end don't count, all else does
		Code string `gorm:"primaryKey" lockstep:"ticket,hashed,fold=utf8mb4_bin"`
		N    int64
	}
	Stamp struct {
		Code string `gorm:"primaryKey" lockstep:"stamp,fold=utf8mb3_general_ci"`
		N    int64
	}
)

var (
	coupons = txlock.NewFamily[string]("coupon", txlock.Fold("utf8mb4_general_ci"))
	tickets = txlock.NewFamily[string]("ticket", txlock.Hashed(), txlock.Fold("utf8mb4_bin"))
)

// TestFoldedTags: every spelling of a row is locked by the one key that the family has for it, whoever else uses the family.
func TestFoldedTags(t *testing.T) {
	eachGuarded(t, []string{"Coupon", "Ticket"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		key, ticket := coupons.Key("bob"), tickets.Key("Jörg")
		e.lockedBy(t, db, "create", key, func(tx *gorm.DB) error { return tx.Create(&Coupon{Code: "Bob"}).Error })
		e.lockedBy(t, db, "update", key, func(tx *gorm.DB) error { return tx.Model(&Coupon{Code: "BOB "}).Update("n", 2).Error })
		e.lockedBy(t, db, "save", key, func(tx *gorm.DB) error { return tx.Save(&Coupon{Code: "boB", N: 3}).Error })
		e.lockedBy(t, db, "gorm.G", key, func(tx *gorm.DB) error {
			return testdb.Err(gorm.G[Coupon](tx, lockgorm.Loaded(&Coupon{Code: "bOb"})).Update(t.Context(), "n", 4))
		})
		e.lockedBy(t, db, "a map", coupons.Key("eve"), func(tx *gorm.DB) error {
			return tx.Model(&Coupon{}).Create(map[string]any{"code": "EVE"}).Error
		})
		e.lockedBy(t, db, "hashed", ticket, func(tx *gorm.DB) error { return tx.Create([]*Ticket{{Code: "Jörg  "}, {Code: "jörg"}}).Error })
		e.wantRows(t, "every spelling of bob", 1, "Coupon", "code = 'bob' AND n = 4")
		e.wantRows(t, "all", 2, "Coupon", "1 = 1")
		e.wantRows(t, "all", 2, "Ticket", "1 = 1")
		e.hold(t, key, ticket) // as another program does
		for _, model := range []any{&Coupon{Code: "BoB"}, &Ticket{Code: "Jörg"}} {
			within(t, db, func(tx *gorm.DB) {
				err := lockgorm.WaitAtMost(tx, 50*time.Millisecond).Model(model).Update("n", 5).Error
				wantError(t, "beside the holder", err, txlock.ErrWaitTimeout)
			})
		}
		for _, code := range []string{"Jörg", "a\x00", " "} {
			wantError(t, "what can't be folded", db.Create(&Coupon{Code: code}).Error, txlock.ErrInvalidKey)
		}
		e.lockedBy(t, db, "delete", coupons.Key("eve"), func(tx *gorm.DB) error { return tx.Delete(&Coupon{Code: "Eve"}).Error })
		e.wantRows(t, "rows are left", 1, "Coupon", "1 = 1")
	}))
}

// Models whose columns a test makes.
type (
	Voucher struct {
		Code string `gorm:"primaryKey" lockstep:"voucher"`
		N    int64
	}
	Fixed struct {
		Code string `gorm:"primaryKey;type:binary(8)" lockstep:"fixed"`
		N    int64
	}
	Seal struct {
		Code string `gorm:"primaryKey" lockstep:"seal,fold=latin1_swedish_ci"`
	}
	Token struct {
		ID uuid.UUID `lockstep:"token"`
		N  int64
	}
)

// TestLookupsFixNoSnapshot: to look a column up locks nothing, and a row that is committed afterwards is seen.
func TestLookupsFixNoSnapshot(t *testing.T) {
	each(t, nil, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			table := e.CreateTable(t, "vouchers", "code VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0")
			err := db.Transaction(func(tx *gorm.DB) error {
				var n int64
				wantError(t, "a create", tx.Table(table).Create(&Voucher{Code: "e"}).Error, txlock.ErrInvalidKey)
				e.Exec(t, "INSERT INTO "+table+" (code) VALUES ('z')")
				err := tx.Table(table).Count(&n).Error
				testdb.ErrorIf(t, n != 1 && err == nil, "%v: what was committed after the column was looked up is not seen", level)
				return err
			}, &sql.TxOptions{Isolation: level})
			// Under innodb_snapshot_isolation any statement takes a snapshot at SERIALIZABLE.
			if level != sql.LevelSerializable || !txlock.Retryable(err) {
				noError(t, err)
			}
		}
	}))
}

// TestCheck has db.Use look at models.
func TestCheck(t *testing.T) {
	eachGuarded(t, []string{"Note", "Order", "Parcel", "Ledger"}, func(t *testing.T, e *env) {
		e.names.tables["Pair"] = e.names.tables["Note"]
		e.names.tables["Plan"] = e.CreateTable(t, "shortened", "id BIGINT AUTO_INCREMENT PRIMARY KEY, version INT")
		e.names.tables["Voucher"] = e.names.tables["Note"]
		e.names.tables["Coupon"] = e.CreateTable(t, "folded", "code VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci PRIMARY KEY")
		e.names.tables["Token"] = "there_is_no_such_table"
		for name, c := range map[string]struct {
			model any
			want  error
			cure  string
		}{
			"no keys":           {&Note{}, txlock.ErrInvalidKey, `give its primary key the tag lockstep:"..."`},
			"no column":         {&Voucher{}, txlock.ErrInvalidKey, `gorm:"column:..."`},
			"two columns":       {&Pair{}, txlock.ErrInvalidKey, "write a method LockKeys"},
			"a short one":       {&Plan{}, lockgorm.ErrVersion, "BIGINT UNSIGNED NOT NULL DEFAULT 1"},
			"no table":          {&Token{}, nil, "create the tables before db.Use"},
			"no model":          {42, nil, "needs models such as &Order{}"},
			"nil":               {nil, nil, "needs models such as &Order{}"},
			"another collation": {&Coupon{}, txlock.ErrInvalidKey, "the collation utf8mb4_unicode_ci, but its keys fold as utf8mb4_general_ci"},
			"two Versions":      {&TwoVersions{}, lockgorm.ErrVersion, "must have one Version"},
		} {
			db := e.open(t)
			err := db.Use(lockgorm.New(lockgorm.Check(&Parcel{}, c.model)))
			testdb.ErrorIf(t, err == nil || c.want != nil && !strings.Contains(err.Error(), c.want.Error()) || !strings.Contains(err.Error(), c.cure),
				"%s: %v, want %v and %q", name, err, c.want, c.cure)
			noError(t, db.Use(lockgorm.New())) // nothing of the first was left
		}
		for _, kind := range []string{"UUID", "INET6"} { // which MariaDB tells as texts of that collation
			if e.Engine() == testdb.MariaDB {
				e.names.tables["Seal"] = e.CreateTable(t, "sealed", "code "+kind+" PRIMARY KEY")
				wantCure(t, e.open(t).Use(lockgorm.New(lockgorm.Check(&Seal{}))), txlock.ErrInvalidKey, "write a method LockKeys")
			}
		}
		noError(t, e.open(t).Use(lockgorm.New(lockgorm.Check(&Parcel{}, Order{}, &[]Ledger{}))))
		noError(t, e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }).Use(lockgorm.New(lockgorm.Check(&Parcel{}))))
		dry := e.open(t, func(cfg *gorm.Config) { cfg.DryRun = true })
		noError(t, dry.Use(lockgorm.New(lockgorm.Check(&Token{}))))
		for _, bad := range []txlock.Namespace{"", "a/b"} {
			wantError(t, string(bad), e.open(t).Use(lockgorm.New(lockgorm.In(bad))), txlock.ErrInvalidKey)
		}
		wantError(t, "AtMostRows(0)", e.open(t).Use(lockgorm.New(lockgorm.AtMostRows(0))), txlock.ErrInvalidOption)
		wantError(t, "a DryRun", e.open(t, func(cfg *gorm.Config) { cfg.DryRun = true }).Use(lockgorm.New(lockgorm.Check(&Pair{}))), txlock.ErrInvalidKey)
	})
}

// TwoVersions has one too many.
type TwoVersions struct {
	ID   int64
	A, B lockgorm.Version
}

// mocked is GORM on a Kit over a mock, which demands at the end that all was sent.
func mocked(t *testing.T, options ...lockgorm.Option) (*gorm.DB, *locktest.Kit, sqlmock.Sqlmock) {
	t.Helper()
	pool, mock, err := sqlmock.New()
	noError(t, err)
	t.Cleanup(func() {
		noError(t, mock.ExpectationsWereMet())
		_ = pool.Close()
	})
	kit := locktest.Open(t, pool)
	db := testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: kit.DB(), SkipInitializeWithVersion: true}), &gorm.Config{Logger: logger.Discard}))(t)
	return used(t, db, options...), kit, mock
}

// TestMockExpectsNoLookups writes tagged models over a mock: what a column is, is asked for only where a string isn't declared binary, and then once.
func TestMockExpectsNoLookups(t *testing.T) {
	t.Parallel()
	db, kit, mock := mocked(t, lockgorm.In("shop"))
	family := func(name string, of ...txlock.FamilyOption) txlock.Family[string] {
		return txlock.NewFamily[string](name, append(of, txlock.In("shop"), txlock.Exact())...)
	}
	write := func(model any, key txlock.Key, before func()) {
		t.Helper()
		mock.ExpectBegin()
		before()
		mock.ExpectExec("INSERT INTO").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		noError(t, db.Create(model).Error)
		testdb.ErrorIf(t, !kit.Locked(key), "%v isn't locked: %v", key, kit.Log())
	}
	nothing := func() {}
	lookup := func(table, collation string) func() {
		return func() {
			mock.ExpectQuery("SELECT .*`code`.*`" + table + "`.*COLLATION").WillReturnRows(sqlmock.NewRows([]string{"code", "collation"}).AddRow(nil, collation))
		}
	}
	write(&Parcel{ID: 7}, family("parcel").Key("7"), nothing)
	write(&Chest{Code: "a"}, family("chest", txlock.Hashed()).Key("a"), nothing)
	write(&Voucher{Code: "a"}, family("voucher").Key("a"), lookup("vouchers", "utf8mb4_bin"))
	write(&Voucher{Code: "a b"}, family("voucher").Key("a b"), nothing)
	write(&Fixed{Code: "12345678"}, family("fixed").Key("12345678"), nothing)
	db = db.Table("others").Session(&gorm.Session{})
	write(&Voucher{Code: "c"}, family("voucher").Key("c"), lookup("others", "utf8mb4_bin"))
	write(&Voucher{Code: "d"}, family("voucher").Key("d"), nothing)
	db = db.Session(&gorm.Session{NewDB: true})
	write(&Stamp{Code: "A"}, family("stamp").Key("a"), lookup("stamps", "utf8_general_ci")) // as old servers call it
}

// TestMockOfAnUnknownColumn: a model is refused whose column can't be looked up or is case insensitive, and keys that differ by what fills it up.
func TestMockOfAnUnknownColumn(t *testing.T) {
	t.Parallel()
	db, _, mock := mocked(t)
	refused := func(model any, cure string) { t.Helper(); wantFailure(t, "Create", db.Create(model).Error, cure) }
	for _, padded := range []any{&Voucher{Code: "bob "}, &Fixed{Code: "bob\x00\x00"}} {
		refused(padded, "cut them off")
	}
	mock.ExpectBegin()
	mock.ExpectRollback()
	refused(&Voucher{Code: "a"}, "is not looked up")
	for asked := range 2 { // the answer is kept
		if asked == 0 {
			mock.ExpectBegin()
			mock.ExpectQuery("COLLATION").WillReturnRows(sqlmock.NewRows([]string{"code", "collation"}).AddRow(nil, "utf8mb4_0900_ai_ci"))
			mock.ExpectRollback()
		}
		refused(&Voucher{Code: "a"}, "the collation utf8mb4_0900_ai_ci")
	}
	noError(t, db.Session(&gorm.Session{DryRun: true}).Create(&Voucher{Code: "a"}).Error)
}

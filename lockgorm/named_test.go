package lockgorm_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// doubled is stored as twice its value if it is given by a pointer.
type doubled int64

func (d *doubled) Value() (driver.Value, error) { return 2 * int64(*d), nil }

// writeOf is a statement on the rows b+1 to b+6, whose n is 1 to 6.
type writeOf func(db *gorm.DB, b int64) *gorm.DB

// conditioned is an UPDATE of the rows that conditions, which it adds to a chain, select.
func conditioned[M any](by func(tx *gorm.DB, b int64) *gorm.DB) writeOf {
	return func(db *gorm.DB, b int64) *gorm.DB { return by(db.Model(new(M)), b).Update("n", 9) }
}

// where is conditioned by a text.
func where[M any](text string, args func(b int64) []any) writeOf {
	return conditioned[M](func(tx *gorm.DB, b int64) *gorm.DB { return tx.Where(text, args(b)...) })
}

func ofSecond(b int64) []any { return []any{b + 2} } // the primary key of the second row
func two(int64) []any        { return []any{2} }     // its n

// writesOf are statements on models whose conditions name primary keys.
func writesOf[M any](table string, withID func(id int64) *M) map[string]writeOf {
	all := map[string]writeOf{
		"Delete, inline":         func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), b+2) },
		"Delete, condition":      func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), "id = ?", b+2) },
		"Delete of a slice":      func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(&[]M{}, []int64{b + 1, b + 3}) },
		"Delete by id, Unscoped": func(db *gorm.DB, b int64) *gorm.DB { return db.Unscoped().Where("id = ?", b+2).Delete(new(M)) },
		"Delete, no row":         func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), b+77) },
		"Updates by id": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("id = ?", b+2).Updates(map[string]any{"n": gorm.Expr("n + ?", 7)})
		},
		"UpdateColumn": func(db *gorm.DB, b int64) *gorm.DB { return db.Model(new(M)).Where("id", b+2).UpdateColumn("n", 9) },
		"gorm.G, Delete": func(db *gorm.DB, b int64) *gorm.DB {
			n, err := gorm.G[M](db).Where("id = ?", b+2).Delete(db.Statement.Context)
			return &gorm.DB{RowsAffected: int64(n), Error: err}
		},
	}
	for what, by := range map[string]func(tx *gorm.DB, b int64) *gorm.DB{
		"a map":    func(tx *gorm.DB, b int64) *gorm.DB { return tx.Where(map[string]any{"id": b + 2, "n": 2}) },
		"a struct": func(tx *gorm.DB, b int64) *gorm.DB { return tx.Where(withID(b + 2)) },
		"a group": func(tx *gorm.DB, b int64) *gorm.DB {
			group := tx.Session(&gorm.Session{NewDB: true}).Where("n > 0").Where("id = ?", b+2)
			return tx.Where("n < 5").Where(group)
		},
		"behind others": func(tx *gorm.DB, b int64) *gorm.DB {
			return tx.Where("n IN ?", []int{2, 3}).Where("n = ? OR n = ?", 2, 3).Where("id IN ?", []int64{b + 1, b + 2, b + 77})
		},
		"a scope": func(tx *gorm.DB, b int64) *gorm.DB {
			return tx.Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("id = ?", b+2) })
		},
		"Limit of ids": func(tx *gorm.DB, b int64) *gorm.DB {
			return tx.Where("id IN ?", []int64{b + 1, b + 2, b + 3}).Order("n DESC").Limit(2)
		},
		"an alias": func(tx *gorm.DB, b int64) *gorm.DB { return tx.Table(table+" AS o").Where("o.id = ?", b+2) },
		"PrepareStmt": func(tx *gorm.DB, b int64) *gorm.DB {
			return tx.Session(&gorm.Session{PrepareStmt: true}).Where("id = ?", b+2)
		},
		"literally": func(tx *gorm.DB, b int64) *gorm.DB { return tx.Where(fmt.Sprintf("id IN (%d, %d)", b+2, b+3)) },
	} {
		all[what] = conditioned[M](by)
	}
	for text, args := range map[string]func(b int64) []any{
		"id = ?": ofSecond, " `ID`=? ": ofSecond, table + ".id = ?": ofSecond,
		"id  =  ?":                      func(b int64) []any { return []any{fmt.Sprint(b + 2)} },
		"id   = ?":                      func(b int64) []any { b += 2; return []any{&b} },
		"id = @id AND n = @n":           func(b int64) []any { return []any{sql.Named("id", b+2), sql.Named("n", 2)} },
		"n > ? AND id = ?":              func(b int64) []any { return []any{1, b + 2} },
		"n > 0 AND id IN ?":             func(int64) []any { return []any{[]int64{}} },
		"id IN ?":                       func(b int64) []any { return []any{[]int64{b + 1, b + 3, b + 77}} },
		"id  IN ?":                      func(b int64) []any { return []any{[]int64{b + 1, b + 1}} },
		"id in (?)":                     func(b int64) []any { return []any{[]uint64{uint64(b + 1), uint64(b + 3)}} },
		"id = ? AND n BETWEEN ? AND ?":  func(b int64) []any { return []any{b + 2, 1, 3} },
		"(id = ? AND (n = ? OR n = ?))": func(b int64) []any { return []any{b + 2, 2, 3} },
		"n NOT BETWEEN ? AND ? AND n BETWEEN 0 AND 9 AND id = ?": func(b int64) []any { return []any{4, 5, b + 2} },
	} {
		all[text] = where[M](text, args)
	}
	return all
}

// refusedTexts are conditions of which it isn't certain which rows they select.
var refusedTexts = map[string]func(b int64) []any{
	"id = ? -- ": ofSecond, "id = ? /* or */ OR n = '\\'": ofSecond, "n > 5.5OR n = 2 AND id = ?": ofSecond, "RAND() < n AND n = ?": two,
	"n = ? AND GET_LOCK('x', 0) = 1": two, "id = LAST_INSERT_ID() OR n = ?": two, "n = ? AND @x IS NULL": two, "(@n := n) = ?": two,
}

// selecting are statements whose conditions don't name primary keys for certain: they select the rows b+1 to b+6, whose n is 1 to 6.
func selecting[M any]() map[string]writeOf {
	alias := func(db *gorm.DB) *gorm.DB {
		return db.Table(db.NamingStrategy.TableName(reflect.TypeFor[M]().Name())+" AS o").Where("o.n > ?", 2)
	}
	limited := func(db *gorm.DB) *gorm.DB { return db.Where("n > ?", 1).Order("n DESC").Limit(2) }
	all := map[string]writeOf{
		"all": func(db *gorm.DB, _ int64) *gorm.DB {
			return db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(new(M)).Update("n", gorm.Expr("n + 10"))
		},
		"Or":               conditioned[M](func(tx *gorm.DB, b int64) *gorm.DB { return tx.Where("n = ?", 2).Or("id = ?", b+3) }),
		"Delete":           func(db *gorm.DB, _ int64) *gorm.DB { return db.Where("n > ?", 2).Delete(new(M)) },
		"Delete, Unscoped": func(db *gorm.DB, _ int64) *gorm.DB { return db.Unscoped().Where("n > ?", 2).Delete(new(M)) },
		"Delete, an alias": func(db *gorm.DB, _ int64) *gorm.DB { return alias(db).Delete(new(M)) },
		"Update, an alias": conditioned[M](func(tx *gorm.DB, _ int64) *gorm.DB { return alias(tx) }),
		"Delete, Limit":    func(db *gorm.DB, _ int64) *gorm.DB { return limited(db).Delete(new(M)) },
		"Limit":            func(db *gorm.DB, _ int64) *gorm.DB { return limited(db.Model(new(M))).Update("n", gorm.Expr("n + 10")) },
		"Updates": func(db *gorm.DB, _ int64) *gorm.DB {
			return db.Model(new(M)).Where(map[string]any{"n": []int{1, 4}}).Updates(map[string]any{"n": 7})
		},
		"none": conditioned[M](func(tx *gorm.DB, _ int64) *gorm.DB { return tx.Where("n = 77") }),
	}
	for _, text := range []string{
		"CASE WHEN n = 2 THEN 1 AND id = ? AND 1 ELSE 1 END", "CASE WHEN n > 0 AND id = ? THEN 1 END", "n BETWEEN 1 AND id = ?",
		"id <=> ?", "id + 1 = ?", "NOT id = ?", "id = ? IS NOT NULL", "id IN (?, NULL)",
	} {
		all[text] = where[M](text, ofSecond)
	}
	for _, text := range []string{"'a?' <> 'b' AND n = ?", "n = ? OR 'a@b' = 'b'", "n = ?"} {
		all[text] = where[M](text, two)
	}
	for _, text := range []string{"id = ? OR n = ?", "id = ? || n = ?", "id = ? XOR n = ?"} {
		all[text] = where[M](text, func(b int64) []any { return []any{b + 2, 3} })
	}
	for text, args := range map[string]func(b int64) []any{
		"id = ?    ":                             func(b int64) []any { p := doubled(b/2 + 1); return []any{&p} },
		"LOWER(CONCAT('a', n)) = ?":              func(int64) []any { return []any{"a2"} },
		"n = 3 OR n = ? AND id = ?":              func(b int64) []any { return []any{2, b + 2} },
		"- id = ?":                               func(b int64) []any { return []any{-b - 2} },
		"(n > ?) + (id = ?)":                     func(b int64) []any { return []any{1, b + 2} },
		"n BETWEEN 0 AND n BETWEEN 0 AND id = ?": func(int64) []any { return []any{1} },
		"id = n + ?":                             func(b int64) []any { return []any{b} },
		"id = ? ":                                func(b int64) []any { return []any{float64(b + 2)} },
		"id  = ?":                                func(b int64) []any { return []any{fmt.Sprintf("0%d", b+2)} },
		"id = ?  ":                               func(b int64) []any { return []any{fmt.Sprintf("%d ", b+2)} },
		"id =  ?":                                func(int64) []any { return []any{0} },
		" id = ?":                                func(int64) []any { return []any{nil} },
		"  id = ?":                               func(b int64) []any { return []any{gorm.Expr("? + 0", b+2)} },
		"id = ?   ":                              func(b int64) []any { return []any{sql.NullInt64{Int64: b + 2, Valid: true}} },
		"(id, n) IN ?":                           func(b int64) []any { return []any{[][]any{{b + 2, 2}}} },
	} {
		all[text] = where[M](text, args)
	}
	return all
}

// TestConditions: writes by conditions, which name primary keys or select rows in another way, do what they do with plain GORM, and the key of
// each row that they change is locked; others, of which the rows aren't certain, are refused.
func TestConditions(t *testing.T) {
	eachSetting(t, []string{"Parcel", "Box", "Order"}, func(t *testing.T, e *env) {
		boxes := txlock.NewFamily[uint64]("box")
		byParcel := writesOf(e.names.tables["Parcel"], func(id int64) *Parcel { return &Parcel{ID: id} })
		byBox := writesOf(e.names.tables["Box"], func(id int64) *Box { b := new(Box); b.ID = uint(id); return b })
		maps.Copy(byParcel, selecting[Parcel]())
		maps.Copy(byBox, selecting[Box]())
		byMethod := writesOf(e.names.tables["Order"], func(id int64) *Order { return &Order{ID: id} })
		maps.Copy(byMethod, selecting[Order]())
		setting := 0
		if e.skip {
			setting = 1
		}
		conditions[Order](t, e, "Order", setting, byMethod, orders.Key)
		conditions[Parcel](t, e, "Parcel", setting+1, byParcel, parcels.Key)
		conditions[Box](t, e, "Box", setting+2, byBox, func(id int64) txlock.Key { return boxes.Key(uint64(id)) })
	})
}

// conditions runs every second write of a model, from one on, and all in a long run.
func conditions[M any](t *testing.T, e *env, model string, from int, writes map[string]writeOf, key func(id int64) txlock.Key) {
	t.Helper()
	plain, db, table := e.open(t), e.openPlugin(t), e.names.tables[model]
	gone := "0"
	if model == "Box" {
		gone = "deleted_at IS NOT NULL"
	}
	fill := func(b int64) {
		e.Exec(t, "DELETE FROM "+table)
		e.Exec(t, fmt.Sprintf("INSERT INTO %s (id, n) SELECT %d + n, n FROM (SELECT 1 n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6) six", table, b))
	}
	rows := func(tx *gorm.DB, b int64) map[int64]string {
		found := make(map[int64]string)
		r := testdb.Got(tx.Session(&gorm.Session{NewDB: true}).Raw("SELECT id - ?, n, "+gone+" FROM "+table, b).Rows())(t)
		for r.Next() {
			var i, n, gone int64
			noError(t, r.Scan(&i, &n, &gone))
			found[i] = fmt.Sprint(n, gone)
		}
		noError(t, errors.Join(r.Err(), r.Close()))
		return found
	}
	b := newID() * 1000
	fill(b)
	before := rows(plain, b)
	for i, what := range slices.Sorted(maps.Keys(writes)) {
		if !testdb.Meet(i, from) {
			continue
		}
		write := writes[what]
		what = model + ", " + what
		b := newID() * 1000
		fill(b)
		undone := func(db *gorm.DB, do func(tx *gorm.DB)) {
			wantError(t, what, db.Transaction(func(tx *gorm.DB) error { do(tx); return errInner }), errInner)
		}
		var want *gorm.DB
		var after map[int64]string
		undone(plain, func(tx *gorm.DB) { want, after = write(tx, b), rows(tx, b) })
		check := func(tx *gorm.DB, got *gorm.DB) {
			t.Helper()
			now := rows(tx, b)
			testdb.ErrorIf(t, (got.Error == nil) != (want.Error == nil) || got.RowsAffected != want.RowsAffected || !maps.Equal(now, after),
				"%s: %d rows, %v, %v, want %d, %v and %v", what, got.RowsAffected, got.Error, now, want.RowsAffected, want.Error, after)
		}
		undone(db, func(tx *gorm.DB) {
			check(tx, write(tx, b))
			var changed []txlock.Key
			for i := range before {
				if before[i] != after[i] {
					changed = append(changed, key(b+i))
				}
			}
			e.wantHeld(t, what+": those that were changed", changed...)
		})
		check(plain, write(db, b))
	}
	if from%2 != 0 {
		return // the other setting has it
	}
	fill(b)
	for text, args := range refusedTexts {
		write := func(db *gorm.DB) error { return db.Model(new(M)).Where(text, args(b)...).Update("n", 9).Error }
		wantError(t, text, write(db), txlock.ErrInvalidKey)
		wantError(t, text+", in a transaction", db.Transaction(write), txlock.ErrInvalidKey)
		testdb.FatalIf(t, !maps.Equal(rows(plain, b), before), "%s: it was written", text)
		err := write(db.Clauses(lockgorm.On(lockgorm.NoLock...)).Session(&gorm.Session{}))
		testdb.ErrorIf(t, errors.Is(err, txlock.ErrInvalidKey), "%s: with On: %v", text, err)
		fill(b)
	}
}

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

// TestCreateOfANewRecord: the create of a record whose key the database makes needs no lock but that of its parent.
func TestCreateOfANewRecord(t *testing.T) {
	eachGuarded(t, []string{"Ware", "Part", "Named"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		one, many := &Ware{Code: "ware"}, []*Ware{{Code: "ware1"}, {Code: "ware2"}}
		noError(t, errors.Join(db.Create(one).Error, db.Create(&many).Error, db.Save(&Ware{Code: "ware3"}).Error))
		noError(t, db.Where(Ware{Code: "ware4"}).FirstOrCreate(&Ware{}).Error)
		noError(t, db.Clauses(clause.OnConflict{DoNothing: true}).Create(&Ware{Code: "ware"}).Error)
		wantError(t, "an empty slice", db.Create([]Ware{}).Error, gorm.ErrEmptySlice)
		wantError(t, "an empty slice of a table", db.Create(&[]*Ware{}).Error, gorm.ErrEmptySlice)
		e.wantRows(t, "all", 5, "Ware", "TRUE")
		e.wantRows(t, "those that have got their keys", 2, "Ware", "id IN (?, ?)", one.ID, many[1].ID)
		within(t, db, func(tx *gorm.DB) {
			n := newID()
			noError(t, errors.Join(tx.Create(&Part{WareID: one.ID}).Error, tx.Create(&Named{N: n}).Error))
			e.wantHeld(t, "the parent of a new part, and the identifier that a hook has given", wares.Key(one.ID), nameds.Key(fmt.Sprintf("n%d", n)))
		})
	}))
}

// TestUpsertOfAnother: an upsert changes only the row whose key was locked, whichever row a unique key finds.
func TestUpsertOfAnother(t *testing.T) {
	upserts := map[string]func(db *gorm.DB, w *Ware) error{
		"Save of a slice":   func(db *gorm.DB, w *Ware) error { return db.Save([]*Ware{w}).Error },
		"Save of a new one": func(db *gorm.DB, w *Ware) error { return db.Save(w).Error },
		"in a batch": func(db *gorm.DB, w *Ware) error {
			return db.Save([]*Ware{{ID: -newID(), Code: fmt.Sprint(newID())}, w}).Error
		},
		"generics": func(db *gorm.DB, w *Ware) error {
			return gorm.G[Ware](db, clause.OnConflict{UpdateAll: true}).Create(db.Statement.Context, w)
		},
	}
	for way, on := range map[string]clause.OnConflict{
		"UpdateAll": {UpdateAll: true}, "DoUpdates": {DoUpdates: clause.AssignmentColumns([]string{"n"})},
		"with its key, too": {DoUpdates: clause.AssignmentColumns([]string{"id", "n"})},
	} {
		upserts[way] = func(db *gorm.DB, w *Ware) error { return db.Clauses(on).Create(w).Error }
	}
	upserts["Assignments"] = func(db *gorm.DB, w *Ware) error {
		return db.Clauses(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"n": w.N})}).Create(w).Error
	}
	eachGuarded(t, []string{"Ware"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
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
	}))
}

// Preset and Seventh have primary keys with defaults: a constant that GORM writes, and one that the server makes.
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

// TestUpsertOfADefault: an upsert isn't sent that may find a record by the default of its primary key, whose lock it hasn't taken.
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
		for _, model := range []string{"Preset", "Seventh"} {
			e.wantRows(t, "those that were there", 1, model, "n = 0")
			e.wantRows(t, "all", 1, model, "TRUE")
		}
		noError(t, errors.Join(upsert.Create(&Preset{Code: "main", N: 6}).Error, upsert.Create(&Seventh{ID: 7, N: 6}).Error, db.Create(&Seventh{ID: 8}).Error))
		e.wantRows(t, "an upsert with its key has not changed its record", 1, "Preset", "n = 6")
		e.wantRows(t, "an upsert with its key has not changed its record", 1, "Seventh", "n = 6")
	})
}

// TestHooksThatChangeKeys: an update or delete is refused whose hook gives its model another primary key: GORM would find no row, and say nothing.
func TestHooksThatChangeKeys(t *testing.T) {
	eachSetting(t, []string{"Carton", "Order", "Item"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		noError(t, db.Create([]*Carton{{ID: 1, Code: "one"}, {ID: 2, Code: "two"}}).Error)
		for what, change := range map[string]func(tx *gorm.DB, c *Carton) error{
			"Update":           func(tx *gorm.DB, c *Carton) error { return tx.Model(c).Update("n", 9).Error },
			"Updates":          func(tx *gorm.DB, c *Carton) error { c.N = 9; return tx.Updates(c).Error },
			"a batch":          func(tx *gorm.DB, c *Carton) error { return tx.Model([]*Carton{c}).Update("n", 9).Error },
			"Save":             func(tx *gorm.DB, c *Carton) error { c.N = 9; return tx.Save(c).Error },
			"Delete":           func(tx *gorm.DB, c *Carton) error { return tx.Delete(c).Error },
			"Delete, Unscoped": func(tx *gorm.DB, c *Carton) error { return tx.Unscoped().Delete(c).Error },
		} {
			for _, id := range []int64{2, 77, 0} {
				c := &Carton{ID: 1, Code: "one"}
				err := change(withHook(db, func(*gorm.DB, int64) error { c.ID = id; return nil }), c)
				wantError(t, fmt.Sprintf("%s, to %d", what, id), err, txlock.ErrInvalidKey)
				e.wantRows(t, fmt.Sprintf("%s, to %d: unchanged", what, id), 2, "Carton", "n = 0 AND deleted_at IS NULL")
				e.wantRows(t, fmt.Sprintf("%s, to %d: all", what, id), 2, "Carton", "1 = 1")
			}
		}
	}))
}

// TestHooksThatAddModels proves that a record is locked, too, that a hook adds to a batch.
func TestHooksThatAddModels(t *testing.T) {
	eachGuarded(t, []string{"Carton", "Lid"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		noError(t, db.Create(&Carton{ID: 2, Code: "two"}).Error)
		for what, added := range map[string]*Carton{"Create": {ID: 3, Code: "three"}, "Save": {ID: 2, Code: "two", N: 9}} {
			batch := []*Carton{{ID: 1, Code: "one"}}
			wantError(t, what, db.Transaction(func(tx *gorm.DB) error {
				tx = withHook(tx, func(_ *gorm.DB, id int64) error {
					if id == 1 {
						batch = append(batch, added)
					}
					return nil
				})
				write := map[string]func(value any) *gorm.DB{"Create": tx.Create, "Save": tx.Save}[what]
				if err := write(&batch).Error; err != nil || len(batch) != 2 {
					return fmt.Errorf("%d models: %w", len(batch), err)
				}
				e.wantHeld(t, what, cartons.Key(1), cartons.Key(added.ID))
				return errInner
			}), errInner)
		}
	}))
}

// TestZeroKeysAreNotCreated: a record whose primary key is the zero value isn't created or upserted, unless the database makes the key.
func TestZeroKeysAreNotCreated(t *testing.T) {
	eachSetting(t, []string{"Parole", "Tally", "Sticker"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for what, create := range map[string]func(tx *gorm.DB) *gorm.DB{
			"a string":        func(tx *gorm.DB) *gorm.DB { return tx.Create(&Parole{N: 2}) },
			"a batch":         func(tx *gorm.DB) *gorm.DB { return tx.Create([]*Parole{{Code: "a", N: 2}, {N: 2}}) },
			"a number":        func(tx *gorm.DB) *gorm.DB { return tx.Create(&Tally{N: 2}) },
			"a map":           func(tx *gorm.DB) *gorm.DB { return tx.Model(&Tally{}).Create(map[string]any{"id": 0, "n": 2}) },
			"Save":            func(tx *gorm.DB) *gorm.DB { return tx.Save(&Parole{N: 2}) },
			"Save of a batch": func(tx *gorm.DB) *gorm.DB { return tx.Save([]*Parole{{Code: "a", N: 2}, {N: 2}}) },
			"an upsert of a map": func(tx *gorm.DB) *gorm.DB {
				return tx.Model(&Tally{}).Clauses(clause.OnConflict{UpdateAll: true}).Create(map[string]any{"id": 0, "n": 2})
			},
			"IGNORE": func(tx *gorm.DB) *gorm.DB { return tx.Clauses(clause.Insert{Modifier: "IGNORE"}).Create(&Parole{N: 2}) },
		} {
			wantError(t, what, create(db).Error, txlock.ErrInvalidKey)
			e.wantRows(t, what, 0, "Parole", "1 = 1")
			e.wantRows(t, what, 0, "Tally", "1 = 1")
		}
		noError(t, db.Save([]*Sticker{{N: 1}, {N: 1}}).Error)
		noError(t, db.Clauses(lockgorm.On(newKey())).Create(&Tally{N: 1}).Error)
	}))
}

// smuggled are values for n that also assign to other columns.
var smuggled = map[string]any{
	"another column":       gorm.Expr("1, id = 777"),
	"out of parentheses":   gorm.Expr("ABS(?), id = (777)", 1),
	"with a value":         gorm.Expr("?, id = ?", 1, 777),
	"named":                clause.NamedExpr{SQL: "@n, id = 777", Vars: []any{map[string]any{"n": 1}}},
	"a raw column":         clause.Column{Name: "1, id = 777", Raw: true},
	"a raw table":          clause.Table{Name: "1, id = 777", Raw: true},
	"in a slice":           []any{gorm.Expr("1), id = (777")},
	"by a value of GORM's": valuer{"1, id = 777"},
	"a comment":            gorm.Expr("1, id = 777 -- "),
	"a comment of some":    gorm.Expr("1 /*! , id = 777 */"),
	"after a backslash":    gorm.Expr(`'\', id = 777, name = '`),
	"one half":             gorm.Expr("IF(1"),
	"the other half":       gorm.Expr("1, 2), id = 777"),
	"a set":                clause.Set{{Column: clause.Column{Name: "id"}, Value: 1}, {Column: clause.Column{Name: "name"}, Value: 1}},
	"a where":              gorm.Expr("1 WHERE id = 777 OR 1"),
	"an end":               gorm.Expr("1; SELECT 1"),
}

// valuer stands for a column type that gives an expression to GORM.
type valuer struct{ text string }

func (v valuer) GormValue(context.Context, *gorm.DB) clause.Expr { return clause.Expr{SQL: v.text} }

// assignments are the ways to assign a value to n of a model.
var assignments = map[string]func(of *gorm.DB, value any) *gorm.DB{
	"Update":        func(of *gorm.DB, value any) *gorm.DB { return of.Update("n", value) },
	"Updates":       func(of *gorm.DB, value any) *gorm.DB { return of.Updates(map[string]any{"n": value, "name": "x"}) },
	"UpdateColumn":  func(of *gorm.DB, value any) *gorm.DB { return of.UpdateColumn("n", value) },
	"UpdateColumns": func(of *gorm.DB, value any) *gorm.DB { return of.UpdateColumns(map[string]any{"N": value}) },
	"Select": func(of *gorm.DB, value any) *gorm.DB {
		return of.Select("n").Updates(map[string]any{"n": value, "name": "x"})
	},
	"clause.Set": func(of *gorm.DB, value any) *gorm.DB {
		return of.Clauses(clause.Set{{Column: clause.Column{Name: "n"}, Value: value}}).Updates(map[string]any{})
	},
	"a column with it": func(of *gorm.DB, value any) *gorm.DB {
		return of.Clauses(clause.Set{{Column: clause.Column{Name: "n", Raw: true}, Value: value}}).Updates(map[string]any{})
	},
	"a hook": func(of *gorm.DB, value any) *gorm.DB {
		return withHook(of, func(tx *gorm.DB, _ int64) error {
			if values, ok := tx.Statement.Dest.(map[string]any); ok {
				values["n"] = value
			}
			return nil
		}).Updates(map[string]any{"name": "x"})
	},
	"Assign": func(of *gorm.DB, value any) *gorm.DB {
		return of.Assign(map[string]any{"n": value}).FirstOrCreate(of.Statement.Model)
	},
}

// TestAssignmentsOfUpserts proves the same for the columns that an upsert sets.
func TestAssignmentsOfUpserts(t *testing.T) {
	eachGuarded(t, []string{"Order"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		order := &Order{ID: newID()}
		noError(t, db.Create(order).Error)
		upsert := func(value any) error {
			set := clause.Assignments(map[string]any{"n": value, "name": gorm.Expr("CONCAT(VALUES(name), ',')")})
			return db.Clauses(clause.OnConflict{DoUpdates: set, DoNothing: true}).Create(&Order{ID: order.ID}).Error
		}
		smuggled := map[string]any{"excluded": clause.Column{Table: "excluded", Name: "n), id = (777", Raw: true}, "of all": smuggled["another column"]}
		for name, value := range smuggled {
			wantError(t, name, upsert(value), txlock.ErrInvalidKey)
		}
		e.wantRows(t, "it was written", 1, "Order", "id = ? AND n = 0 AND name = ''", order.ID)
		for n, value := range []any{1, gorm.Expr("GREATEST(n, 2)"), gorm.Expr("n + VALUES(n) + 1"), gorm.Expr("(SELECT 4)")} {
			noError(t, upsert(value))
			e.wantRows(t, fmt.Sprint(value), 1, "Order", "id = ? AND n = ?", order.ID, n+1)
		}
		for _, nothing := range []bool{false, true} {
			on := clause.OnConflict{DoNothing: nothing, DoUpdates: clause.Assignments(map[string]any{"id": 777})}
			wantError(t, "of another key", db.Clauses(on).Create(&Order{ID: order.ID}).Error, txlock.ErrInvalidKey)
		}
		hooked := withHook(db, func(tx *gorm.DB, _ int64) error {
			tx.Statement.AddClause(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"id": 777})})
			return nil
		})
		wantError(t, "of a hook", hooked.Create(&Order{ID: order.ID}).Error, txlock.ErrInvalidKey)
		e.wantRows(t, "it is another record", 1, "Order", fmt.Sprintf("id = %d", order.ID))
	}))
}

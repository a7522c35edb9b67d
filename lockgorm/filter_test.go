package lockgorm_test

import (
	"context"
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

// TestCreateOfANewRecord proves that the create of a record whose key the database makes
// needs no lock but that of its parent: nobody can name the record before.
func TestCreateOfANewRecord(t *testing.T) {
	eachGuarded(t, []string{"Ware", "Part", "Named"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
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
		e.wantRows(t, "all", 8, "Ware", "code LIKE ?", name+"%")
		e.wantRows(t, "those that have got their keys", 2, "Ware", "id = ? AND n = 1 OR id = ?", one.ID, many[1].ID)
		within(t, db, func(tx *gorm.DB) {
			noError(t, tx.Create(&Part{WareID: one.ID}).Error)
			e.wantHeld(t, "the parent of a new part is not locked", wares.Key(one.ID))
			n := newID()
			noError(t, tx.Create(&Named{N: n}).Error)
			e.wantHeld(t, "the identifier that a hook has given is not locked", nameds.Key(fmt.Sprintf("n%d", n)))
		})
	}))
}

// TestUpsertOfAnother proves that an upsert changes only the row whose key was locked,
// whichever row a unique key finds.
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
		w := &Ware{Code: "last"}
		noError(t, db.Create(w).Error)
		err := db.Clauses(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"id": w.ID + 1000})}).Create(&Ware{ID: w.ID, Code: "last"}).Error
		wantError(t, "an upsert to another key", err, txlock.ErrInvalidKey)
	}))
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
		for _, model := range []string{"Preset", "Seventh"} {
			e.wantRows(t, "those that were there", 1, model, "n = 0")
			e.wantRows(t, "all", 1, model, "TRUE")
		}
		noError(t, errors.Join(upsert.Create(&Preset{Code: "main", N: 6}).Error, upsert.Create(&Seventh{ID: 7, N: 6}).Error, db.Create(&Seventh{ID: 8}).Error))
		e.wantRows(t, "an upsert with its key has not changed its record", 1, "Preset", "n = 6")
		e.wantRows(t, "an upsert with its key has not changed its record", 1, "Seventh", "n = 6")
	})
}

// TestHooksThatChangeKeys refuses an update or delete whose hook gives its model another
// primary key: GORM would look for that row, find none, and return nothing.
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
		for what, write := range map[string]func(tx *gorm.DB, batch *[]*Carton) error{
			"Create": func(tx *gorm.DB, batch *[]*Carton) error { return tx.Create(batch).Error },
			"Save":   func(tx *gorm.DB, batch *[]*Carton) error { return tx.Save(batch).Error },
		} {
			batch := []*Carton{{ID: 1, Code: "one"}}
			wantError(t, what, db.Transaction(func(tx *gorm.DB) error {
				add := func(_ *gorm.DB, id int64) error {
					if id == 1 && what == "Save" {
						batch = append(batch, &Carton{ID: 2, Code: "two", N: 9})
					} else if id == 1 {
						batch = append(batch, &Carton{ID: 3, Code: "three"})
					}
					return nil
				}
				if err := write(withHook(tx, add), &batch); err != nil {
					return err
				}
				if id := batch[1].ID; len(batch) != 2 || !e.held(t, cartons.Key(1)) || !e.held(t, cartons.Key(id)) {
					t.Errorf("%s: the key of %d is free", what, id)
				}
				return errInner
			}), errInner)
		}
	}))
}

// TestZeroKeysAreNotCreated refuses to create or upsert a record whose primary key is the zero
// value, unless the database makes it: nobody has locked that record.
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
		// By a hook, and with DoNothing.
		wantError(t, "of another key", db.Clauses(clause.OnConflict{DoNothing: true, DoUpdates: clause.Assignments(map[string]any{"id": 777})}).Create(&Order{ID: order.ID}).Error, txlock.ErrInvalidKey)
		hooked := withHook(db, func(tx *gorm.DB, _ int64) error {
			tx.Statement.AddClause(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"id": 777})})
			return nil
		})
		wantError(t, "of a hook", hooked.Create(&Order{ID: order.ID}).Error, txlock.ErrInvalidKey)
		e.wantRows(t, "it is another record", 1, "Order", fmt.Sprintf("id = %d", order.ID))
	}))
}

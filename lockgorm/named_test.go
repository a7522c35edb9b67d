package lockgorm_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// doubled is stored as twice its value if it is given by a pointer.
type doubled int64

func (d *doubled) Value() (driver.Value, error) { return 2 * int64(*d), nil }

// writeOf is a statement on the rows b+1 to b+6, whose n is 1 to 6.
type writeOf func(db *gorm.DB, b int64) *gorm.DB

// writesOf are statements on models whose conditions name primary keys.
func writesOf[M any](table string, withID func(id int64) *M) map[string]writeOf {
	where := func(text string, args func(b int64) []any) writeOf {
		return func(db *gorm.DB, b int64) *gorm.DB { return db.Model(new(M)).Where(text, args(b)...).Update("n", 9) }
	}
	two := func(b int64) []any { return []any{b + 2} }
	all := map[string]writeOf{
		"Delete, inline":      func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), b+2) },
		"Delete, two inline":  func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), []int64{b + 1, b + 3}) },
		"Delete, inline text": func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), fmt.Sprint(b+2)) },
		"Delete, condition":   func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), "id = ?", b+2) },
		"Delete of a slice":   func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(&[]M{}, []int64{b + 1, b + 3}) },
		"Delete, Unscoped":    func(db *gorm.DB, b int64) *gorm.DB { return db.Unscoped().Where("id = ?", b+2).Delete(new(M)) },
		"Delete, no row":      func(db *gorm.DB, b int64) *gorm.DB { return db.Delete(new(M), b+77) },
		"Updates": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("id = ?", b+2).Updates(map[string]any{"n": gorm.Expr("n + ?", 7)})
		},
		"UpdateColumn": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("id", b+2).UpdateColumn("n", 9)
		},
		"Update of a slice": func(db *gorm.DB, b int64) *gorm.DB { return db.Model(&[]M{}).Where("id = ?", b+2).Update("n", 9) },
		"a map": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where(map[string]any{"id": b + 2, "n": 2}).Update("n", 9)
		},
		"a map of two": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where(map[string]any{"id": []int64{b + 1, b + 3}}).Update("n", 9)
		},
		"a struct": func(db *gorm.DB, b int64) *gorm.DB { return db.Model(new(M)).Where(withID(b+2)).Update("n", 9) },
		"a group": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("n < 5").Where(db.Where("n > 0").Where("id = ?", b+2)).Update("n", 9)
		},
		"before others": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("id = ?", b+2).Where("n = 2 OR n = 3").Update("n", 9)
		},
		"behind others": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("n IN ?", []int{2, 3}).Where("n = ? OR n = ?", 2, 3).Where("id IN ?", []int64{b + 1, b + 2, b + 77}).Update("n", 9)
		},
		"excluded": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("id = ?", b+2).Not("n = 2").Update("n", 9)
		},
		"a scope": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("id = ?", b+2) }).Update("n", 9)
		},
		"Limit": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where("id IN ?", []int64{b + 1, b + 2, b + 3}).Order("n DESC").Limit(2).Update("n", 9)
		},
		"an alias": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Table(table+" AS o").Model(new(M)).Where("o.id = ?", b+2).Update("n", 9)
		},
		"PrepareStmt": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Session(&gorm.Session{PrepareStmt: true}).Model(new(M)).Where("id = ?", b+2).Update("n", 9)
		},
		"gorm.G, Update": func(db *gorm.DB, b int64) *gorm.DB {
			n, err := gorm.G[M](db).Where("id = ?", b+2).Update(db.Statement.Context, "n", 9)
			return &gorm.DB{RowsAffected: int64(n), Error: err}
		},
		"gorm.G, Delete": func(db *gorm.DB, b int64) *gorm.DB {
			n, err := gorm.G[M](db).Where("id = ?", b+2).Delete(db.Statement.Context)
			return &gorm.DB{RowsAffected: int64(n), Error: err}
		},
		"literally": func(db *gorm.DB, b int64) *gorm.DB {
			return db.Model(new(M)).Where(fmt.Sprintf("id IN (%d, %d)", b+2, b+3)).Update("n", 9)
		},
	}
	for what, w := range map[string]writeOf{
		"=":               where("id = ?", two),
		"=, capitals":     where(" `ID`=? ", two),
		"=, the table's":  where(table+".id = ?", two),
		"=, text":         where("id = ?", func(b int64) []any { return []any{fmt.Sprint(b + 2)} }),
		"=, more text":    where("id = ?", func(b int64) []any { return []any{fmt.Sprintf("0%d", b+2)} }),
		"=, a pointer":    where("id = ?", func(b int64) []any { b += 2; return []any{&b} }),
		"=, unsigned":     where("id = ?", func(b int64) []any { return []any{uint(b + 2)} }),
		"=, its name":     where("id = @id AND n = @n", func(b int64) []any { return []any{sql.Named("id", b+2), sql.Named("n", 2)} }),
		"= AND":           where("id = ? AND n > ?", func(b int64) []any { return []any{b + 2, 1} }),
		"AND =":           where("n > ? AND id = ?", func(b int64) []any { return []any{1, b + 2} }),
		"(= AND)":         where("((n > ?) AND (id = ? AND n IS NOT NULL))", func(b int64) []any { return []any{1, b + 2} }),
		"= AND BETWEEN":   where("id = ? AND n BETWEEN ? AND ?", func(b int64) []any { return []any{b + 2, 1, 3} }),
		"BETWEEN AND =":   where("n NOT BETWEEN ? AND ? AND n BETWEEN 0 AND 9 AND id = ?", func(b int64) []any { return []any{4, 5, b + 2} }),
		"= AND (OR)":      where("(id = ? AND (n = ? OR n = ?))", func(b int64) []any { return []any{b + 2, 2, 3} }),
		"= twice":         where("id = ? AND id = ?", func(b int64) []any { return []any{b + 2, b + 3} }),
		"IN":              where("id IN ?", func(b int64) []any { return []any{[]int64{b + 1, b + 3, b + 77}} }),
		"IN (?)":          where("id in (?)", func(b int64) []any { return []any{[]uint64{uint64(b + 1), uint64(b + 3)}} }),
		"IN (?, ?)":       where("id IN (?, ?)", func(b int64) []any { return []any{b + 1, b + 3} }),
		"IN, empty":       where("id IN ?", func(int64) []any { return []any{[]int64{}} }),
		"IN, empty, else": where("n > 0 AND id IN ?", func(int64) []any { return []any{[]int64{}} }),
		"IN, one twice":   where("id IN ?", func(b int64) []any { return []any{[]int64{b + 1, b + 1}} }),
	} {
		all[what] = w
	}
	return all
}

// unnamed are statements whose conditions don't name primary keys for certain.
func unnamed[M any]() map[string]writeOf {
	all := make(map[string]writeOf)
	for text, args := range map[string]func(b int64) []any{
		"(SELECT 1 FROM t WHERE n > 0 AND id = ?)":           func(b int64) []any { return []any{b + 2} },
		"CASE WHEN n = 2 THEN 1 AND id = ? AND 1 ELSE 1 END": func(b int64) []any { return []any{b + 2} },
		"n > 5.5OR n = 2 AND id = ?":                         func(b int64) []any { return []any{b + 2} },
		"n = 3e0OR n = 4 AND id = ?":                         func(b int64) []any { return []any{b + 2} },
		"id = ?    ":                                         func(b int64) []any { p := doubled(b + 2); return []any{&p} },
		"n = ?":                                              func(int64) []any { return []any{2} },
		"id > ?":                                             func(b int64) []any { return []any{b} },
		"id <> ?":                                            func(b int64) []any { return []any{b} },
		"id <=> ?":                                           func(b int64) []any { return []any{b + 2} },
		"id = ? + 1":                                         func(b int64) []any { return []any{b + 2} },
		"id + 1 = ?":                                         func(b int64) []any { return []any{b + 2} },
		"- id = ?":                                           func(b int64) []any { return []any{-b - 2} },
		"NOT id = ?":                                         func(b int64) []any { return []any{b + 2} },
		"NOT (id = ?)":                                       func(b int64) []any { return []any{b + 2} },
		"id NOT IN ?":                                        func(b int64) []any { return []any{[]int64{b + 2}} },
		"id = ? OR n = ?":                                    func(b int64) []any { return []any{b + 2, 3} },
		"id = ? || n = ?":                                    func(b int64) []any { return []any{b + 2, 3} },
		"id = ? XOR n = ?":                                   func(b int64) []any { return []any{b + 2, 3} },
		"(id = ? OR n = ?)":                                  func(b int64) []any { return []any{b + 2, 3} },
		"(n > ?) + (id = ?)":                                 func(b int64) []any { return []any{1, b + 2} },
		"n BETWEEN 1 AND id = ?":                             func(b int64) []any { return []any{b + 2} },
		"n BETWEEN 0 AND n BETWEEN 0 AND id = ?":             func(int64) []any { return []any{1} },
		"id BETWEEN ? AND ?":                                 func(b int64) []any { return []any{b + 2, b + 3} },
		"CASE WHEN n > 0 AND id = ? THEN 1 END":              func(b int64) []any { return []any{b + 2} },
		"id = n + ?":                                         func(b int64) []any { return []any{b} },
		"id = (SELECT ?)":                                    func(b int64) []any { return []any{b + 2} },
		"id = ? IS NOT NULL":                                 func(b int64) []any { return []any{b + 2} },
		"id = '?' AND n = ?":                                 func(int64) []any { return []any{2} },
		"'?' <> n AND id = ? AND n > ?":                      func(b int64) []any { return []any{b + 2, b + 3} },
		"id = ? -- ":                                         func(b int64) []any { return []any{b + 2} },
		"other.id = ?":                                       func(b int64) []any { return []any{b + 2} },
		"n = ? AND \"id\" = ?":                               func(b int64) []any { return []any{2, b + 2} },
		"id = ? ":                                            func(b int64) []any { return []any{float64(b + 2)} },
		"id = ?  ":                                           func(b int64) []any { return []any{fmt.Sprintf("%d ", b+2)} },
		"id =  ?":                                            func(int64) []any { return []any{0} },
		" id = ?":                                            func(int64) []any { return []any{nil} },
		"  id = ?":                                           func(b int64) []any { return []any{gorm.Expr("? + 0", b+2)} },
		"id = ?   ":                                          func(b int64) []any { return []any{sql.NullInt64{Int64: b + 2, Valid: true}} },
		"id IN ?":                                            func(b int64) []any { return []any{[]any{b + 2, "x"}} },
		"id IN (?, NULL)":                                    func(b int64) []any { return []any{b + 2} },
		"(id, n) IN ?":                                       func(b int64) []any { return []any{[][]any{{b + 2, 2}}} },
	} {
		all[text] = func(db *gorm.DB, b int64) *gorm.DB { return db.Model(new(M)).Where(text, args(b)...).Update("n", 9) }
	}
	return all
}

// TestConditionsThatNameKeys proves that writes whose conditions name primary keys do what they
// do with plain GORM, and that the key of each row that they change is locked; and that others,
// of which that isn't certain, are refused.
func TestConditionsThatNameKeys(t *testing.T) {
	eachSetting(t, []string{"Parcel", "Box"}, func(t *testing.T, e *env) {
		parcels, boxes := txlock.NewFamily[int64]("parcel"), txlock.NewFamily[uint64]("box")
		named(t, e, "Parcel", writesOf(e.names.tables["Parcel"], func(id int64) *Parcel { return &Parcel{ID: id} }), unnamed[Parcel](), parcels.Key)
		named(t, e, "Box", writesOf(e.names.tables["Box"], func(id int64) *Box { b := new(Box); b.ID = uint(id); return b }), unnamed[Box](),
			func(id int64) txlock.Key { return boxes.Key(uint64(id)) })
	})
}

func named(t *testing.T, e *env, model string, writes, refused map[string]writeOf, key func(id int64) txlock.Key) {
	t.Helper()
	plain, db, table := e.open(t), e.openPlugin(t), e.names.tables[model]
	gone := "0"
	if model == "Box" {
		gone = "deleted_at IS NOT NULL"
	}
	fill := func(b int64) {
		e.Exec(t, "DELETE FROM "+table)
		for i := range int64(6) {
			e.Exec(t, fmt.Sprintf("INSERT INTO %s (id, n) VALUES (%d, %d)", table, b+i+1, i+1))
		}
	}
	rows := func(tx *gorm.DB, b int64) map[int64]string {
		found := make(map[int64]string)
		r, err := tx.Session(&gorm.Session{NewDB: true}).Raw("SELECT id - ?, n, "+gone+" FROM "+table, b).Rows()
		noError(t, err)
		for r.Next() {
			var i, n, gone int64
			noError(t, r.Scan(&i, &n, &gone))
			found[i] = fmt.Sprint(n, gone)
		}
		noError(t, errors.Join(r.Err(), r.Close()))
		return found
	}
	for what, write := range writes {
		what = model + ", " + what
		b := newID() * 1000
		fill(b)
		before := rows(plain, b)
		want := write(plain, b)
		noError(t, want.Error)
		after := rows(plain, b)
		check := func(tx *gorm.DB, got *gorm.DB) {
			t.Helper()
			if now := rows(tx, b); got.Error != nil || got.RowsAffected != want.RowsAffected || !maps.Equal(now, after) {
				t.Errorf("%s: %d rows, %v, %v, want %d and %v", what, got.RowsAffected, got.Error, now, want.RowsAffected, after)
			}
		}
		fill(b)
		if !e.skip {
			check(plain, write(db, b))
			fill(b)
		}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			check(tx, write(tx, b))
			for i := range before {
				if before[i] != after[i] && !e.held(t, key(b+i)) {
					t.Errorf("%s: row %d was changed without its lock", what, i)
				}
			}
			return nil
		}))
		check(plain, want)
	}
	b := newID() * 1000
	fill(b)
	before := rows(plain, b)
	for what, write := range refused {
		wantError(t, what, write(db, b).Error, txlock.ErrInvalidKey)
		wantError(t, what+", in a transaction", db.Transaction(func(tx *gorm.DB) error { return write(tx, b).Error }), txlock.ErrInvalidKey)
		if !maps.Equal(rows(plain, b), before) {
			t.Fatalf("%s: it was written", what)
		}
		on := write(db.Clauses(lockgorm.On(lockgorm.NoLock...)).Session(&gorm.Session{}), b).Error
		if errors.Is(on, txlock.ErrInvalidKey) {
			t.Errorf("%s: with On: %v", what, on)
		}
		fill(b)
	}
}

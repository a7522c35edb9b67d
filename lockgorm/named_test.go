package lockgorm_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"gorm.io/gorm"

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

// selecting are statements whose conditions don't name primary keys for certain: they select the
// rows b+1 to b+6, whose n is 1 to 6.
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

// TestConditions proves that writes by conditions, which name primary keys or select rows in
// another way, do what they do with plain GORM, and that the key of each row that they change is
// locked; and that others, of which the rows aren't certain, are refused. Each write meets each of
// the three models and each of the two settings.
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
			if (got.Error == nil) != (want.Error == nil) || got.RowsAffected != want.RowsAffected || !maps.Equal(now, after) {
				t.Errorf("%s: %d rows, %v, %v, want %d, %v and %v", what, got.RowsAffected, got.Error, now, want.RowsAffected, want.Error, after)
			}
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
		if !maps.Equal(rows(plain, b), before) {
			t.Fatalf("%s: it was written", text)
		}
		if err := write(db.Clauses(lockgorm.On(lockgorm.NoLock...)).Session(&gorm.Session{})); errors.Is(err, txlock.ErrInvalidKey) {
			t.Errorf("%s: with On: %v", text, err)
		}
		fill(b)
	}
}

package lockgorm_test

import (
	"context"
	"fmt"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

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
var assignments = map[string]func(of *gorm.DB, value any) error{
	"Update":        func(of *gorm.DB, value any) error { return of.Update("n", value).Error },
	"Updates":       func(of *gorm.DB, value any) error { return of.Updates(map[string]any{"n": value, "name": "x"}).Error },
	"UpdateColumn":  func(of *gorm.DB, value any) error { return of.UpdateColumn("n", value).Error },
	"UpdateColumns": func(of *gorm.DB, value any) error { return of.UpdateColumns(map[string]any{"N": value}).Error },
	"Select": func(of *gorm.DB, value any) error {
		return of.Select("n").Updates(map[string]any{"n": value, "name": "x"}).Error
	},
	"clause.Set": func(of *gorm.DB, value any) error {
		return of.Clauses(clause.Set{{Column: clause.Column{Name: "n"}, Value: value}}).Updates(map[string]any{}).Error
	},
	"a column with it": func(of *gorm.DB, value any) error {
		return of.Clauses(clause.Set{{Column: clause.Column{Name: "n", Raw: true}, Value: value}}).Updates(map[string]any{}).Error
	},
	"a hook": func(of *gorm.DB, value any) error {
		return withHook(of, func(tx *gorm.DB, _ int64) error {
			if values, ok := tx.Statement.Dest.(map[string]any); ok {
				values["n"] = value
			}
			return nil
		}).Updates(map[string]any{"name": "x"}).Error
	},
	"Assign": func(of *gorm.DB, value any) error {
		return of.Assign(map[string]any{"n": value}).FirstOrCreate(of.Statement.Model).Error
	},
}

// TestAssignmentsOfUpserts proves the same for the columns that an upsert sets.
func TestAssignmentsOfUpserts(t *testing.T) {
	eachGuarded(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
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
			if e.count(t, "Order", "id = ? AND n = ?", order.ID, n+1) != 1 {
				t.Errorf("%v: it was not written", value)
			}
		}
		// By a hook, and with DoNothing.
		wantError(t, "of another key", db.Clauses(clause.OnConflict{DoNothing: true, DoUpdates: clause.Assignments(map[string]any{"id": 777})}).Create(&Order{ID: order.ID}).Error, txlock.ErrInvalidKey)
		hooked := withHook(db, func(tx *gorm.DB, _ int64) error {
			tx.Statement.AddClause(clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"id": 777})})
			return nil
		})
		wantError(t, "of a hook", hooked.Create(&Order{ID: order.ID}).Error, txlock.ErrInvalidKey)
		e.wantRows(t, "it is another record", 1, "Order", fmt.Sprintf("id = %d", order.ID))
	})
}

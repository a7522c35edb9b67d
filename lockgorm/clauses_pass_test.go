package lockgorm_test

import (
	"context"
	"fmt"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// TestClausesThatPass compares with plain GORM what is no danger: the rows are the same
// afterwards, and locked.
func TestClausesThatPass(t *testing.T) {
	hint := func(name string) clause.Expression {
		return planted{name, func(c *clause.Clause) {
			c.BeforeExpression, c.AfterNameExpression, c.AfterExpression = clause.Expr{SQL: "/* a */"}, clause.Expr{SQL: "/*+ b */"}, clause.Expr{SQL: "/* c */ /* d */"}
		}}
	}
	index := behind("UPDATE", "FORCE INDEX (`PRIMARY`)")
	all := clause.OnConflict{UpdateAll: true}
	forms := map[string]func(tx *gorm.DB) error{
		"hints of a create": func(tx *gorm.DB) error {
			return tx.Clauses(hint("INSERT"), hint("VALUES"), hint("ON CONFLICT"), all).Create(&Carton{ID: 1, Code: "one", N: 9}).Error
		},
		"an expression": func(tx *gorm.DB) error {
			return tx.Model(&Carton{}).Create(map[string]any{"id": 3, "code": clause.Expr{SQL: "CONCAT(?, 'b')", Vars: []any{"a"}}, "n": 1}).Error
		},
		"Save of two": func(tx *gorm.DB) error {
			return tx.Save([]*Carton{{ID: 1, Code: "one", N: 5}, {ID: 3, Code: "x"}}).Error
		},
		"associations, in full": func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{FullSaveAssociations: true}).Updates(&Carton{ID: 1, N: 4, Lids: []Lid{{ID: 1, N: 8}}}).Error
		},
		"Order": func(tx *gorm.DB) error {
			return tx.Model(&Carton{ID: 1}).Order("n DESC, id").Limit(1).Update("n", 7).Error
		},
		"hints of an update": func(tx *gorm.DB) error {
			return tx.Clauses(hint("UPDATE"), hint("WHERE"), clause.Locking{Strength: "SHARE"}).Where("n = 1").Model(&Carton{ID: 1}).Update("n", 7).Error
		},
		"an index":      func(tx *gorm.DB) error { return tx.Clauses(index).Model(&Carton{ID: 1}).Update("n", 7).Error },
		"a soft delete": func(tx *gorm.DB) error { return tx.Clauses(hint("UPDATE")).Delete(&Carton{ID: 1}).Error },
		"Unscoped": func(tx *gorm.DB) error {
			return tx.Unscoped().Clauses(hint("DELETE"), hint("FROM"), hint("WHERE")).Where("n = 1").Order("id").Limit(1).Delete(&Carton{ID: 1}).Error
		},
		"RETURNING of a delete": func(tx *gorm.DB) error { return tx.Unscoped().Clauses(clause.Returning{}).Delete(&Carton{ID: 1}).Error },
		"a Valuer that asks":    func(tx *gorm.DB) error { return tx.Model(&Carton{ID: 1}).Update("n", asking{}).Error },
	}
	for what, extra := range map[string]clause.Expression{
		"an upsert": all, "IGNORE": clause.Insert{Modifier: "ignore"}, "DoNothing": clause.OnConflict{DoNothing: true},
		"DoUpdates":                clause.OnConflict{DoUpdates: clause.AssignmentColumns([]string{"n"})},
		"DoUpdates, an expression": clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"n": gorm.Expr("n + VALUES(n)")})},
	} {
		forms[what] = func(tx *gorm.DB) error { return tx.Clauses(extra).Create(&Carton{ID: 1, Code: "one", N: 9}).Error }
	}
	for what, extra := range map[string]clause.Expression{
		"LOW_PRIORITY": clause.Insert{Modifier: "LOW_PRIORITY"}, "Locking": clause.Locking{Strength: "UPDATE"}, "RETURNING": clause.Returning{},
		"RETURNING, one": clause.Returning{Columns: []clause.Column{{Name: "n"}}},
	} {
		forms[what] = func(tx *gorm.DB) error { return tx.Clauses(extra).Create(&Carton{ID: 3, Code: "x"}).Error }
	}
	eachGuarded(t, []string{"Carton", "Lid"}, func(t *testing.T, e *env) {
		plain, db := e.open(t), e.openPlugin(t)
		noError(t, db.Create([]*Carton{{ID: 1, Code: "one", N: 1}, {ID: 2, Code: "two", N: 1}}).Error)
		rows := func(what string, tx *gorm.DB, form func(tx *gorm.DB) error) (lines []string) {
			err := tx.Transaction(func(tx *gorm.DB) error {
				if err := form(tx); err != nil {
					return err
				}
				noError(t, tx.Raw("SELECT CONCAT_WS(',', id, code, n, deleted_at IS NULL) FROM "+e.names.tables["Carton"]+
					" UNION ALL SELECT CONCAT_WS(',', id, carton_id, n) FROM "+e.names.tables["Lid"]+" ORDER BY 1").Scan(&lines).Error)
				return errInner
			})
			wantError(t, what, err, errInner)
			return lines
		}
		for what, form := range forms {
			wanted := rows(what+", plain", plain, form)
			got := rows(what, db, func(tx *gorm.DB) error {
				err := form(tx)
				if !e.held(t, cartons.Key(1)) && !e.held(t, cartons.Key(3)) || what == "associations, in full" && !e.held(t, lids.Key(1)) {
					t.Errorf("%s: its keys are free", what)
				}
				return err
			})
			if fmt.Sprint(got) != fmt.Sprint(wanted) {
				t.Errorf("%s: %v, want %v", what, got, wanted)
			}
		}
	})
}

// asking is a value that is read from the database while the statement is built.
type asking struct{}

func (asking) GormValue(_ context.Context, db *gorm.DB) (value clause.Expr) {
	err := db.Session(&gorm.Session{NewDB: true}).Transaction(func(tx *gorm.DB) error { return tx.Raw("SELECT '7'").Scan(&value.SQL).Error })
	_ = db.AddError(err)
	return value
}

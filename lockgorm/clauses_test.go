package lockgorm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Models of which one is locked, and the other compared; both are deleted softly.
type (
	Carton struct {
		ID        int64 `lockstep:"carton"`
		Code      string
		N         int64
		DeletedAt gorm.DeletedAt
		Lids      []Lid
	}
	Lid struct {
		ID       int64 `lockstep:"lid"`
		CartonID int64
		N        int64
	}
	Folder struct {
		ID        int64
		Code      string
		N         int64
		DeletedAt gorm.DeletedAt
		Version   lockgorm.Version
	}
)

func (c *Carton) BeforeSave(tx *gorm.DB) error   { return hooked(tx, c.ID) }
func (c *Carton) BeforeDelete(tx *gorm.DB) error { return hooked(tx, c.ID) }
func (f *Folder) BeforeSave(tx *gorm.DB) error   { return hooked(tx, f.ID) }
func (f *Folder) BeforeDelete(tx *gorm.DB) error { return hooked(tx, f.ID) }

var (
	cartons = txlock.NewFamily[int64]("carton")
	lids    = txlock.NewFamily[int64]("lid")
)

// planted changes a clause of a statement as programs, hooks and other plugins can.
type planted struct {
	name   string
	change func(c *clause.Clause)
}

func (planted) Build(clause.Builder) {}

func (p planted) ModifyStatement(stmt *gorm.Statement) {
	c := stmt.Clauses[p.name]
	if c.Expression != nil || c.Name == "" && p.name != "VALUES" && p.name != "DELETE" && p.name != "LIMIT" {
		c.Name = p.name
	}
	p.change(&c)
	stmt.Clauses[p.name] = c
}

// behind adds a text after a clause, as hints do.
func behind(name, text string) planted {
	return planted{name, func(c *clause.Clause) { c.AfterExpression = clause.Expr{SQL: text} }}
}

// own is a clause of the program that takes the place of one of GORM's.
type own struct{ name, text string }

func (o own) Name() string                      { return o.name }
func (o own) Build(b clause.Builder)            { _, _ = b.WriteString(o.text) }
func (o own) MergeClause(clause *clause.Clause) { clause.Expression = o }

// plants returns what is planted into a clause, by what it is.
func plants(name string) map[string]clause.Expression {
	const text = ", n = 77"
	return map[string]clause.Expression{
		"before":                planted{name, func(c *clause.Clause) { c.BeforeExpression = clause.Expr{SQL: text} }},
		"after the name":        planted{name, func(c *clause.Clause) { c.AfterNameExpression = clause.Expr{SQL: text} }},
		"after":                 behind(name, text),
		"an executable comment": behind(name, "/*!50000 , n = 77 */"),
		"two comments":          behind(name, "/* */ , n = 77 /* */"),
		"no index":              behind(name, "USE INDEX (a) SET n = 77"),
		"a builder": planted{name, func(c *clause.Clause) {
			c.Builder = func(_ clause.Clause, b clause.Builder) { _, _ = b.WriteString(" n = 77 ") }
		}},
		"another name":          planted{name, func(c *clause.Clause) { c.Name, c.Expression = "REPLACE", clause.Expr{SQL: "INTO x"} }},
		"a clause of one's own": own{name, "n = 77"},
	}
}

type act struct {
	name    string
	clauses []string
	write   func(tx *gorm.DB, stored, fresh any) error
}

// acts are writes of a new row, or of one that has been loaded, and the clauses of which GORM builds them.
var acts = []act{
	{"Create", []string{"INSERT", "VALUES", "ON CONFLICT"}, func(tx *gorm.DB, _, fresh any) error { return tx.Create(fresh).Error }},
	{"CreateInBatches", []string{"INSERT", "VALUES"}, func(tx *gorm.DB, _, fresh any) error {
		if c, ok := fresh.(*Carton); ok {
			return tx.CreateInBatches([]*Carton{c}, 1).Error
		}
		return tx.CreateInBatches([]*Folder{fresh.(*Folder)}, 1).Error
	}},
	{"Updates", []string{"UPDATE", "SET", "WHERE", "ORDER BY", "LIMIT"}, func(tx *gorm.DB, stored, _ any) error {
		return tx.Model(stored).Updates(map[string]any{"n": 5}).Error
	}},
	{"Save", []string{"UPDATE", "SET", "WHERE"}, func(tx *gorm.DB, stored, _ any) error { return tx.Save(stored).Error }},
	{"Delete", []string{"WHERE"}, func(tx *gorm.DB, stored, _ any) error { return tx.Delete(stored).Error }},
	{"Delete, Unscoped", []string{"DELETE", "FROM", "WHERE", "ORDER BY", "LIMIT"}, func(tx *gorm.DB, stored, _ any) error {
		return tx.Unscoped().Delete(stored).Error
	}},
}

// plot is a database with a row of each of the two models.
type plot struct {
	*env
	db      *gorm.DB
	version lockgorm.Version
}

// eachPlot runs a test for both models, with the error that refuses their writes.
func eachPlot(t *testing.T, test func(t *testing.T, p plot, model string, refused error)) {
	eachGuarded(t, []string{"Carton", "Lid", "Folder"}, func(t *testing.T, e *env) {
		p := plot{env: e, db: e.openDSN(t, e.DSN(func(cfg *driver.Config) { cfg.MultiStatements = true }))}
		noError(t, p.db.Use(lockgorm.New()))
		folders := []*Folder{{ID: 1, Code: "one", N: 1}, {ID: 2, Code: "two", N: 1}}
		noError(t, errors.Join(p.db.Create([]*Carton{{ID: 1, Code: "one", N: 1}, {ID: 2, Code: "two", N: 1}}).Error, p.db.Create(folders).Error))
		p.version = folders[0].Version
		test(t, p, "Carton", txlock.ErrInvalidKey)
		test(t, p, "Folder", lockgorm.ErrVersion)
	})
}

// models returns a model as it is stored, and a new one.
func (p plot) models(model string) (stored, fresh any) {
	if model == "Carton" {
		return &Carton{ID: 1, Code: "one", N: 1}, &Carton{ID: 3, Code: "three", N: 3}
	}
	return &Folder{ID: 1, Code: "one", N: 1, Version: p.version}, &Folder{ID: 3, Code: "three", N: 3}
}

// unchanged fails the test if a row is another than at the beginning.
func (p plot) unchanged(t *testing.T, what, model string) {
	t.Helper()
	testdb.FatalIf(t, p.count(t, model, "n = 1 AND deleted_at IS NULL AND id < 3") != 2 || p.count(t, model, "1 = 1") != 2, "%s: a row was written", what)
}

// TestClausesAreGORMs plants something into each clause of each write: it is refused, and nothing is sent.
func TestClausesAreGORMs(t *testing.T) {
	eachPlot(t, func(t *testing.T, p plot, model string, refused error) {
		for _, verb := range acts {
			try := func(what string, extra ...clause.Expression) {
				t.Helper()
				what = verb.name + " of a " + model + ", " + what
				stored, fresh := p.models(model)
				refuses(t, what, p.db, refused, func(tx *gorm.DB) error { return verb.write(tx.Order("id").Limit(1).Clauses(extra...), stored, fresh) })
			}
			for _, name := range verb.clauses {
				for what, plant := range plants(name) {
					try(name+", "+what, plant)
				}
				builder := p.db.ClauseBuilders[name]
				p.db.ClauseBuilders[name] = func(c clause.Clause, b clause.Builder) { c.Build(b); _, _ = b.WriteString(", n = 77") }
				try(name+", ClauseBuilders", clause.OnConflict{DoNothing: true})
				if p.db.ClauseBuilders[name] = builder; builder == nil {
					delete(p.db.ClauseBuilders, name)
				}
			}
			stored, fresh := p.models(model)
			wantError(t, verb.name+", a text by hand", verb.write(p.db.Raw("DELETE FROM "+p.names.tables[model]).Session(&gorm.Session{}), stored, fresh), refused)
			p.unchanged(t, verb.name+", a text by hand", model)
		}
		create := func(what string, extra ...clause.Expression) {
			t.Helper()
			_, fresh := p.models(model)
			wantError(t, what, p.db.Clauses(extra...).Create(fresh).Error, refused)
			p.unchanged(t, what, model)
		}
		create("a modifier", clause.Insert{Modifier: "INTO x (n) VALUES (1);"})
		create("REPLACE", planted{"INSERT", func(c *clause.Clause) { c.Name, c.Expression = "REPLACE", clause.Insert{} }})
		create("another table", clause.Insert{Table: clause.Table{Name: p.names.tables["Lid"]}})
		create("RETURNING", clause.OnConflict{DoNothing: true}, behind("ON CONFLICT", ", n = 77"))
		for _, text := range []string{"n = 77, code", "`n` = 77, `code"} {
			raw := clause.Column{Name: text, Raw: true}
			create("an assignment of itself, "+text, clause.OnConflict{DoUpdates: clause.Set{{Column: raw, Value: raw}}})
		}
		for _, value := range []string{"3), (4", "3) ON DUPLICATE KEY UPDATE n = (77", "3); DELETE FROM x -- "} {
			err := p.db.Model(map[string]any{"Carton": &Carton{}, "Folder": &Folder{}}[model]).Create(map[string]any{"id": 3, "code": "three", "n": clause.Expr{SQL: value}}).Error
			wantError(t, "a value "+value, err, refused)
			p.unchanged(t, "a value "+value, model)
		}
		for _, text := range []string{"id; DELETE FROM " + p.names.tables[model], "id -- x", "id /*!, n */"} {
			stored, _ := p.models(model)
			wantError(t, "Order "+text, p.db.Model(stored).Order(text).Update("n", 77).Error, refused)
			wantError(t, "Delete, Order "+text, p.db.Unscoped().Order(text).Delete(stored).Error, refused)
			wantError(t, "a soft delete, Order "+text, p.db.Order(text).Delete(stored).Error, refused)
			p.unchanged(t, "Order "+text, model)
		}
	})
}

// TestClausesOfHooks lets hooks, and callbacks of other plugins, plant the same: either the statement is refused, or it does what it does without.
func TestClausesOfHooks(t *testing.T) {
	eachPlot(t, func(t *testing.T, p plot, model string, _ error) {
		var ofPlugin func(stmt *gorm.Statement)
		late := func(tx *gorm.DB) {
			if ofPlugin != nil {
				ofPlugin(tx.Statement)
			}
		}
		noError(t, errors.Join(
			p.db.Callback().Create().Before("gorm:create").Register("late_"+model, late),
			p.db.Callback().Update().Before("gorm:update").Register("late_"+model, late),
			p.db.Callback().Delete().Before("gorm:delete").Register("late_"+model, late),
		))
		table := p.names.tables[model]
		for _, verb := range acts {
			changes := map[string]func(stmt *gorm.Statement){}
			for _, text := range []string{"REPLACE INTO %s (id, code, n) VALUES (1, 'one', 77)", "UPDATE %s SET n = 77", "DELETE FROM %s WHERE 1 = 1",
				"INSERT INTO %s (id, code, n) VALUES (1, 'one', 1) ON DUPLICATE KEY UPDATE n = 77"} {
				changes[text] = func(stmt *gorm.Statement) { _, _ = fmt.Fprintf(&stmt.SQL, text, table) }
			}
			for _, name := range verb.clauses {
				for what, plant := range plants(name) {
					changes[name+", "+what] = func(stmt *gorm.Statement) {
						if c, ok := plant.(own); ok {
							stmt.AddClause(c)
						} else {
							plant.(planted).ModifyStatement(stmt)
						}
					}
				}
			}
			for _, hook := range []bool{true, false} {
				left := slices.Sorted(maps.Keys(changes))
				for len(left) > 0 {
					wantError(t, verb.name, p.db.Transaction(func(tx *gorm.DB) error {
						for len(left) > 0 {
							what, changed := left[0], tx
							if left = left[1:]; hook {
								changed = withHook(tx, func(tx *gorm.DB, _ int64) error { changes[what](tx.Statement); return nil })
							} else {
								ofPlugin = changes[what]
							}
							stored, fresh := p.models(model)
							err := verb.write(changed, stored, fresh)
							ofPlugin = nil
							if err != nil {
								continue
							}
							var others, harm int
							noError(t, tx.Raw("SELECT COUNT(IF(id = 2 AND n = 1 AND deleted_at IS NULL, 1, NULL)), COUNT(IF(n = 77, 1, NULL)) FROM "+table).Row().Scan(&others, &harm))
							testdb.ErrorIf(t, others != 1 || harm > 0 || strings.Contains(what, "%"),
								"%s of a %s, %s, hook=%t: it is sent", verb.name, model, what, hook)
							break // the row has changed: begin anew
						}
						return errInner
					}), errInner)
				}
			}
		}
	})
}

// TestClausesThatPass compares with plain GORM what is no danger: the rows are the same afterwards, and locked.
func TestClausesThatPass(t *testing.T) {
	hint := func(name string) clause.Expression {
		return planted{name, func(c *clause.Clause) {
			c.BeforeExpression, c.AfterNameExpression, c.AfterExpression = clause.Expr{SQL: "/* a */"}, clause.Expr{SQL: "/*+ b */"}, clause.Expr{SQL: "/* c */ /* d */"}
		}}
	}
	index := behind("UPDATE", "FORCE INDEX (`PRIMARY`)")
	all := clause.OnConflict{UpdateAll: true}
	forms := map[string]func(tx *gorm.DB) *gorm.DB{
		"hints of a create": func(tx *gorm.DB) *gorm.DB {
			return tx.Clauses(hint("INSERT"), hint("VALUES"), hint("ON CONFLICT"), all).Create(&Carton{ID: 1, Code: "one", N: 9})
		},
		"an expression": func(tx *gorm.DB) *gorm.DB {
			return tx.Model(&Carton{}).Create(map[string]any{"id": 3, "code": clause.Expr{SQL: "CONCAT(?, 'b')", Vars: []any{"a"}}, "n": 1})
		},
		"Save of two": func(tx *gorm.DB) *gorm.DB { return tx.Save([]*Carton{{ID: 1, Code: "one", N: 5}, {ID: 3, Code: "x"}}) },
		"associations, in full": func(tx *gorm.DB) *gorm.DB {
			return tx.Session(&gorm.Session{FullSaveAssociations: true}).Updates(&Carton{ID: 1, N: 4, Lids: []Lid{{ID: 1, N: 8}}})
		},
		"Order": func(tx *gorm.DB) *gorm.DB {
			return tx.Model(&Carton{ID: 1}).Order("n DESC, id").Limit(1).Update("n", 7)
		},
		"hints of an update": func(tx *gorm.DB) *gorm.DB {
			return tx.Clauses(hint("UPDATE"), hint("WHERE"), clause.Locking{Strength: "SHARE"}).Where("n = 1").Model(&Carton{ID: 1}).Update("n", 7)
		},
		"an index":      func(tx *gorm.DB) *gorm.DB { return tx.Clauses(index).Model(&Carton{ID: 1}).Update("n", 7) },
		"a soft delete": func(tx *gorm.DB) *gorm.DB { return tx.Clauses(hint("UPDATE")).Delete(&Carton{ID: 1}) },
		"Unscoped": func(tx *gorm.DB) *gorm.DB {
			return tx.Unscoped().Clauses(hint("DELETE"), hint("FROM"), hint("WHERE")).Where("n = 1").Order("id").Limit(1).Delete(&Carton{ID: 1})
		},
		"RETURNING of a delete": func(tx *gorm.DB) *gorm.DB { return tx.Unscoped().Clauses(clause.Returning{}).Delete(&Carton{ID: 1}) },
		"a Valuer that asks":    func(tx *gorm.DB) *gorm.DB { return tx.Model(&Carton{ID: 1}).Update("n", asking{}) },
	}
	for what, extra := range map[string]clause.Expression{
		"an upsert": all, "IGNORE": clause.Insert{Modifier: "ignore"}, "DoNothing": clause.OnConflict{DoNothing: true},
		"DoUpdates":                clause.OnConflict{DoUpdates: clause.AssignmentColumns([]string{"n"})},
		"DoUpdates, an expression": clause.OnConflict{DoUpdates: clause.Assignments(map[string]any{"n": gorm.Expr("n + VALUES(n)")})},
	} {
		forms[what] = func(tx *gorm.DB) *gorm.DB { return tx.Clauses(extra).Create(&Carton{ID: 1, Code: "one", N: 9}) }
	}
	for what, extra := range map[string]clause.Expression{
		"LOW_PRIORITY": clause.Insert{Modifier: "LOW_PRIORITY"}, "Locking": clause.Locking{Strength: "UPDATE"}, "RETURNING": clause.Returning{},
		"RETURNING, one": clause.Returning{Columns: []clause.Column{{Name: "n"}}},
	} {
		forms[what] = func(tx *gorm.DB) *gorm.DB { return tx.Clauses(extra).Create(&Carton{ID: 3, Code: "x"}) }
	}
	eachGuarded(t, []string{"Carton", "Lid"}, func(t *testing.T, e *env) {
		plain, db := e.open(t), e.openPlugin(t)
		noError(t, db.Create([]*Carton{{ID: 1, Code: "one", N: 1}, {ID: 2, Code: "two", N: 1}}).Error)
		rows := func(what string, tx *gorm.DB, form func(tx *gorm.DB) *gorm.DB) (lines []string) {
			wantError(t, what, tx.Transaction(func(tx *gorm.DB) error {
				if err := form(tx).Error; err != nil {
					return err
				}
				noError(t, tx.Raw("SELECT CONCAT_WS(',', id, code, n, deleted_at IS NULL) FROM "+e.names.tables["Carton"]+
					" UNION ALL SELECT CONCAT_WS(',', id, carton_id, n) FROM "+e.names.tables["Lid"]+" ORDER BY 1").Scan(&lines).Error)
				return errInner
			}), errInner)
			return lines
		}
		for what, form := range forms {
			wanted := rows(what+", plain", plain, form)
			got := rows(what, db, func(tx *gorm.DB) *gorm.DB {
				result := form(tx)
				testdb.ErrorIf(t, !e.held(t, cartons.Key(1)) && !e.held(t, cartons.Key(3)) || what == "associations, in full" && !e.held(t, lids.Key(1)),
					"%s: its keys are free", what)
				return result
			})
			testdb.Equal(t, what, fmt.Sprint(got), fmt.Sprint(wanted))
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

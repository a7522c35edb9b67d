//go:build !race

package lockgorm_test

import (
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// atoms are texts for conditions, valid and invalid ones.
var atoms = []string{
	"n = 0", "n = 7", "id > 0", "id < 8", "n >= 0", "name = 'a'", // understood
	"n = 0", "n = 7", "id = 1", "id > 3", "id = 2", "TRUE", "1", "0", "NOT id = 1", "n IN (0, 7)", "n BETWEEN 0 AND 5", "n BETWEEN 0",
	"name = 'a OR b'", "name <> 'it''s'", "name <> \"x OR\"", "`id` = 1", "(n = 0 OR n = 7)", "(id = 1) OR (id = 2)", "id = 1) OR (id = 2", "(id = 1", "id = 1)",
	"id = 1 -- x", "id = 1 --\n", "id = 1 #", "id = 1 #\n", "id = 1 /*", "*/ id = 1", "/* x */ id = 1", "/*! id = 1 OR */ id = 2", "/*!99999 ( */ id = 1",
	"name = 'a\\' OR id = 1 OR name = 'b'", "name = 'a' 'b'", "name = \"a\" OR \"b\" = \"b\"", "id = 1 ORDER BY id", "id = 1 LIMIT 5", "id = 1 RETURNING id",
	"CASE WHEN id = 1 OR id = 2 THEN 1 ELSE 0 END", "CASE WHEN 1 THEN 1", "@x := 1", "@x := id = 1", "id = 1;", "id = 1 UNION SELECT 1", "", " ", "EXISTS (SELECT 1)", "id",
	"id IS NOT NULL", "n LIKE '%'", "n = 0 COLLATE utf8mb4_bin", "! id = 1", "- id", "id = ALL (SELECT 1)", "id = 1 AND", "AND id = 1", "OR", "OR id = 1", "id = 1 OR",
}

const understood = 18

var glue = []string{" AND ", " OR ", "\nOR\n", " or ", "\tOr\t", "||", " || ", " XOR ", "\nxor\n", " && ", "\nAND\n", ", ", " ", "OR(", "/**/OR/**/", "/*!OR*/", "\u00a0OR\u00a0"}

// fuzzer makes random conditions.
type fuzzer struct {
	*rand.Rand
	db *gorm.DB
}

func (f fuzzer) text() string {
	text := f.atom()
	for f.IntN(3) == 0 {
		text += glue[f.IntN(len(glue))] + f.atom()
	}
	return text
}

// atom returns a random atom, most often one that servers understand.
func (f fuzzer) atom() string {
	if f.IntN(4) > 0 {
		return atoms[f.IntN(understood)]
	}
	return atoms[f.IntN(len(atoms))]
}

// oneOf calls one of several functions at random.
func oneOf[T any](f fuzzer, of ...func() T) T { return of[f.IntN(len(of))]() }

func (f fuzzer) expr() clause.Expression {
	type e = clause.Expression
	if f.IntN(6) == 0 {
		return clause.Expr{SQL: f.text(), WithoutParentheses: f.IntN(2) == 0}
	}
	return oneOf(f,
		func() e { return clause.Eq{Column: clause.Column{Name: f.text(), Raw: true}, Value: 1} },
		func() e { return clause.Or(f.expr(), f.expr()) },
		func() e { return clause.Or(f.expr()) },
		func() e { return clause.And(f.expr(), f.expr()) },
		func() e { return clause.Not(f.expr(), f.expr()) },
		func() e { return clause.Not(f.expr()) },
		func() e { return clause.IN{Column: "n", Values: []any{f.value(), f.value()}} },
		func() e { return clause.Eq{Column: f.text(), Value: f.value()} },
		func() e {
			return clause.NamedExpr{SQL: f.text() + " AND n = @n", Vars: []any{map[string]any{"n": f.value()}}}
		},
		func() e { return clause.Neq{Column: "id", Value: f.value()} },
	)
}

func (f fuzzer) value() any {
	return oneOf(f,
		func() any { return gorm.Expr(f.text()) },
		func() any { return []any{0, 7, gorm.Expr(f.text())} },
		func() any {
			return f.db.Session(&gorm.Session{NewDB: true}).Table("lockstep_locks").Select("1").Where(f.text())
		},
		func() any { return f.IntN(8) },
		func() any { return f.IntN(8) },
	)
}

// condition adds a random condition to a chain.
func (f fuzzer) condition(tx *gorm.DB) *gorm.DB {
	type db = *gorm.DB
	return oneOf(f,
		func() db { return tx.Where(f.text()) },
		func() db { return tx.Where("?", gorm.Expr(f.text())) },
		func() db { return tx.Where("(?)", gorm.Expr(f.text())) },
		func() db { return tx.Where("n = ?", f.value()) },
		func() db { return tx.Where("n", f.value()) },
		func() db { return tx.Where(map[string]any{"n": f.value(), "id": f.value()}) },
		func() db { return tx.Where(map[string]any{f.text(): f.value()}) },
		func() db { return tx.Not(f.text()) },
		func() db { return tx.Not(map[string]any{"n": f.value()}) },
		func() db { return tx.Or(f.text()) },
		func() db { return tx.Or("n = ?", f.value()) },
		func() db { return tx.Where(f.db.Session(&gorm.Session{NewDB: true}).Where(f.text()).Or(f.text())) },
		func() db { return tx.Where("n = @n OR "+f.text(), map[string]any{"n": f.value()}) },
		func() db { return tx.Clauses(clause.Where{Exprs: []clause.Expression{f.expr(), f.expr()}}) },
		func() db { return tx.Where(f.expr()) },
		func() db { return tx.Scopes(func(tx *gorm.DB) *gorm.DB { return tx.Or(f.text()) }) },
		func() db { return tx.Order(f.text()).Limit(f.IntN(3) + 1) },
		func() db { return tx.Not(f.expr()) },
	)
}

// write sends a random write of the model or the slice.
func (f fuzzer) write(tx *gorm.DB, model any) error {
	type db = *gorm.DB
	return oneOf(f,
		func() db { return tx.Delete(model) },
		func() db { return tx.Model(model).Updates(map[string]any{"n": gorm.Expr("n + 1")}) },
		func() db {
			return tx.Model(model).Clauses(clause.Set{{Column: clause.Column{Name: "n"}, Value: 5}}).Updates(map[string]any{})
		},
		func() db { return tx.Model(model).UpdateColumn("n", 6) },
		func() db {
			return tx.Model(model).Update("n", gorm.Expr("8 /* "+strings.ReplaceAll(f.text(), "*/", "")+" */"))
		},
		func() db { return tx.Model(model).Update("n", gorm.Expr("(9 + 0 * (?))", gorm.Expr(f.text()))) },
		func() db {
			return tx.Model(model).Updates(map[string]any{[]string{"id", "`id`", "n"}[f.IntN(3)]: f.IntN(12) + 1})
		},
		func() db { return tx.Model(model).Update("n", 9) },
	).Error
}

// hook lets the hook of a model add a condition to the current statement.
func (f fuzzer) hook(tx *gorm.DB, _ int64) error {
	if f.IntN(4) == 0 {
		tx.Statement.AddClause(clause.Where{Exprs: []clause.Expression{f.expr()}})
	}
	return nil
}

// TestRandomConditions writes models under random conditions: only their own rows change,
// whose keys are locked.
func TestRandomConditions(t *testing.T) {
	const rows = 9
	tries, seed := testdb.Long(200, 2000), testdb.Seed()
	t.Logf("LOCKSTEP_SEED=%d", seed)
	// Others lock the same keys at the same time, which makes the snapshot stale.
	committed := &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	each(t, []string{"Order", "Doc", "Page", "Author"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for id := range rows {
			n := int64(id % 2 * 7)
			noError(t, db.Create(&Order{ID: int64(id) + 1, Name: "a", N: n}).Error)
			noError(t, db.Create(&Doc{ID: int64(id) + 1, Name: "a", N: n}).Error)
		}
		for _, model := range []string{"Order", "Doc"} {
			changed, refused := 0, 0
			for try := range tries {
				f := fuzzer{rand.New(rand.NewPCG(seed, uint64(try))), db}
				ids := []int64{int64(f.IntN(rows)) + 1, int64(f.IntN(rows)) + 1}[:1+f.IntN(2)]
				text := &traced{Interface: logger.Discard}
				noError(t, skipInner(db.Transaction(func(tx *gorm.DB) error {
					before := e.content(t, tx, model)
					chain := withHook(tx, f.hook)
					chain = chain.Session(&gorm.Session{AllowGlobalUpdate: f.IntN(2) == 0, Logger: text})
					if f.IntN(6) == 0 {
						chain = chain.Table(e.names.tables[model] + " AS x")
					}
					for range f.IntN(3) + 1 {
						chain = f.condition(chain)
					}
					err := f.write(chain, models(t, tx, model, ids))
					after := e.content(t, tx, model)
					for id, was := range before {
						if after[id] != was && !slices.Contains(ids, id) {
							t.Errorf("LOCKSTEP_SEED=%d, try %d: row %d was changed beside %v by %q", seed, try, id, ids, text.texts)
						}
					}
					for id := range after {
						if before[id] == "" && model == "Order" {
							t.Errorf("LOCKSTEP_SEED=%d, try %d: row %d was made out of %v by %q", seed, try, id, ids, text.texts)
						}
					}
					if err != nil {
						refused++
					} else if !maps.Equal(before, after) {
						changed++
					}
					return errInner
				}, committed)))
				if t.Failed() {
					return
				}
			}
			t.Logf("%s: %d tries, %d have changed rows of their models, %d are errors", model, tries, changed, refused)
			if changed < tries/50 || refused < tries/50 {
				t.Errorf("%s: of %d tries %d have changed rows, %d were refused", model, tries, changed, refused)
			}
		}
	}))
}

// models returns one loaded model, or a slice of several.
func models(t *testing.T, tx *gorm.DB, model string, ids []int64) any {
	t.Helper()
	if model == "Doc" {
		var docs []*Doc
		noError(t, tx.Session(&gorm.Session{NewDB: true}).Find(&docs, ids).Error)
		if len(docs) == 1 {
			return docs[0]
		}
		return docs
	}
	if len(ids) == 1 {
		return &Order{ID: ids[0]}
	}
	return []*Order{{ID: ids[0]}, {ID: ids[1]}}
}

// content returns the rows of a model's table as texts.
func (e *env) content(t *testing.T, tx *gorm.DB, model string) map[int64]string {
	t.Helper()
	var rows []Order
	noError(t, tx.Session(&gorm.Session{NewDB: true}).Raw("SELECT id, n, name FROM "+e.names.tables[model]).Scan(&rows).Error)
	content := make(map[int64]string)
	for _, row := range rows {
		content[row.ID] = fmt.Sprint(row.N, row.Name)
	}
	return content
}

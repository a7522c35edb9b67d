package lockgorm

import (
	"fmt"
	"reflect"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// keysOfWrite asks the models of a create, update or delete for their keys.
func (p *Plugin) keysOfWrite(db *gorm.DB, needsID bool) ([]txlock.Key, error) {
	stmt := db.Statement
	if text := stmt.SQL.String(); text != "" {
		return p.keysOfText(db, needsID)
	}
	if !isLocker(stmt) {
		if table := p.registered(stmt); table != "" {
			return nil, unnamed(table)
		}
		return nil, nil
	}
	if needsID && !isOfItsModels(stmt) {
		return nil, unidentified(stmt)
	}
	var all []txlock.Key
	for model, err := range modelsOf(stmt) {
		if err != nil {
			return nil, err
		}
		if needsID && !hasID(stmt, model) {
			return nil, unidentified(stmt)
		}
		keys, err := model.Addr().Interface().(Locker).LockKeys(db.Session(&gorm.Session{NewDB: true}))
		if err != nil {
			return nil, err
		}
		if len(keys) == 0 {
			return nil, fmt.Errorf("%w: LockKeys of %s names no key: return lockgorm.NoLock where none is needed", txlock.ErrInvalidKey, stmt.Schema.Name)
		}
		if !isNoLock(keys) {
			all = append(all, keys...)
		}
	}
	return all, nil
}

// isLocker tells whether the model of a statement is a Locker.
func isLocker(stmt *gorm.Statement) bool {
	return stmt.Schema != nil && reflect.PointerTo(stmt.Schema.ModelType).Implements(reflect.TypeFor[Locker]())
}

// unnamed is the error of a write to a registered table without keys.
func unnamed(table string) error {
	return fmt.Errorf("%w: a write to %s needs a lock: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, table)
}

// unidentified is the error of a change to records that no model stands for.
func unidentified(stmt *gorm.Statement) error {
	return fmt.Errorf("%w: this statement on %s doesn't say by a primary key which records it changes: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table)
}

// registered returns the table of a statement that is registered, or "".
func (p *Plugin) registered(stmt *gorm.Statement) string {
	if p.tables[strings.ToLower(stmt.Table)] {
		return stmt.Table
	}
	if stmt.TableExpr == nil {
		return ""
	}
	// Table("orders AS o") and the like, where Statement.Table is the alias.
	expr := gorm.Statement{DB: stmt.DB, Table: stmt.Table, Schema: stmt.Schema}
	stmt.TableExpr.Build(&expr)
	return sqltext.Mentions(expr.SQL.String(), p.tables)
}

// isOfItsModels tells whether an update or delete can only change the records of
// its models: GORM leaves the primary keys out for an empty slice, and adds them
// by AND, which binds closer than an OR among the conditions.
func isOfItsModels(stmt *gorm.Statement) bool {
	if v := stmt.ReflectValue; (v.Kind() == reflect.Slice || v.Kind() == reflect.Array) && v.Len() == 0 {
		return false
	}
	where, _ := stmt.Clauses["WHERE"].Expression.(clause.Where)
	for _, expr := range where.Exprs {
		text := ""
		switch e := expr.(type) {
		case clause.OrConditions:
			if len(e.Exprs) == 1 {
				return false
			}
		case clause.Expr:
			text = e.SQL
		case clause.NamedExpr:
			text = e.SQL
		}
		if hasOr(text) {
			return false
		}
	}
	return true
}

// hasOr tells whether a condition has an OR that GORM sets no parentheses around:
// it does so where it sees " OR " or " AND ".
func hasOr(text string) bool {
	if upper := strings.ToUpper(text); strings.Contains(upper, clause.OrWithSpace) || strings.Contains(upper, clause.AndWithSpace) {
		return false
	}
	for _, word := range sqltext.Words(text, len(text)) {
		if word == "OR" || word == "XOR" {
			return true
		}
	}
	return strings.Contains(text, "||")
}

// modelsOf yields the addressable models of a statement: one, or a batch's.
func modelsOf(stmt *gorm.Statement) func(yield func(reflect.Value, error) bool) {
	return func(yield func(reflect.Value, error) bool) {
		switch v := stmt.ReflectValue; v.Kind() {
		case reflect.Slice, reflect.Array:
			for i := range v.Len() {
				if !yield(modelOf(stmt, v.Index(i))) {
					return
				}
			}
		default:
			yield(modelOf(stmt, v))
		}
	}
}

// modelOf returns the value of a model that LockKeys can be called on.
func modelOf(stmt *gorm.Statement, v reflect.Value) (reflect.Value, error) {
	v = reflect.Indirect(v)
	if !v.IsValid() || v.Type() != stmt.Schema.ModelType {
		return v, fmt.Errorf("%w: this statement on %s has no model of type %s to name the keys: name them by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, stmt.Schema.Name)
	}
	if !v.CanAddr() {
		model := reflect.New(v.Type()).Elem()
		model.Set(v)
		v = model
	}
	return v, nil
}

// hasID tells whether every part of the model's primary key is set.
func hasID(stmt *gorm.Statement, model reflect.Value) bool {
	for _, field := range stmt.Schema.PrimaryFields {
		if _, zero := field.ValueOf(stmt.Context, model); zero {
			return false
		}
	}
	return len(stmt.Schema.PrimaryFields) > 0
}

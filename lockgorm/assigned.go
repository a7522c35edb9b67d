package lockgorm

import (
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// whyNotAssigned returns why an assignment may set other columns, too, or "". As GORM
// will build it, its column must be a name and its value one expression.
func whyNotAssigned(stmt *gorm.Statement, a clause.Assignment) string {
	switch {
	case !column.MatchString(stmt.Quote(a.Column)):
		return fmt.Sprintf("it sets %q, which is not a column", a.Column.Name)
	case !isOne(stmt, a.Value):
		return fmt.Sprintf("what it sets %q to is not one expression, which closes what it opens: give values as arguments, without comments to the end of a line or backslashes in quotes", a.Column.Name)
	}
	return ""
}

// isOne reports whether a value that is stored is one expression, which closes what it opens.
func isOne(stmt *gorm.Statement, value any) bool {
	if isValue(value) {
		return true
	}
	text := scratchOf(stmt)
	text.AddVar(text, value)
	words, ok := sqltext.Closed(text.SQL.String())
	return ok && !slices.Contains(words, ",") && !slices.Contains(words, "WHERE")
}

// givenTo returns the assignments that an update is given. Those that hooks and GORM make of them
// are checked when the statement is built.
func givenTo(stmt *gorm.Statement) clause.Set {
	set, _ := stmt.Clauses["SET"].Expression.(clause.Set)
	set = slices.Clone(set)
	if values := reflect.Indirect(reflect.ValueOf(stmt.Dest)); values.Kind() == reflect.Map {
		for each := values.MapRange(); each.Next(); {
			value := each.Value().Interface()
			if query, ok := value.(*gorm.DB); ok {
				value = []any{query} // in parentheses, as GORM does it
			}
			set = append(set, clause.Assignment{Column: clause.Column{Name: fmt.Sprint(each.Key())}, Value: value})
		}
	}
	return set
}

// whyNotSet does what whyNotAssigned does, for all that an update is given, before anything is sent.
func whyNotSet(stmt *gorm.Statement) string {
	for _, a := range givenTo(stmt) {
		if why := whyNotAssigned(stmt, a); why != "" {
			return why
		}
	}
	return ""
}

// scratchOf returns an empty statement to which parts of another can be written.
func scratchOf(stmt *gorm.Statement) *gorm.Statement {
	return &gorm.Statement{DB: stmt.DB, Table: stmt.Table, TableExpr: stmt.TableExpr, Schema: stmt.Schema, Context: stmt.Context, ConnPool: stmt.ConnPool, Clauses: map[string]clause.Clause{}}
}

// checkValues refuses an update whose values set the version, or have another version
// than the model.
func (v *versioned) checkValues(stmt *gorm.Statement) error {
	for _, a := range givenTo(stmt) {
		if name := a.Column.Name; name == v.field.Name || names(name, v.field.DBName) {
			return fmt.Errorf("%w: %s: the update sets %q, which the plugin increments", ErrVersion, stmt.Schema.Name, name)
		}
	}
	if why := whyNotSet(stmt); why != "" {
		return fmt.Errorf("%w: %s: the update can't be compared, since %s", ErrVersion, stmt.Schema.Name, why)
	}
	value := reflect.Indirect(reflect.ValueOf(stmt.Dest))
	if value.Kind() != reflect.Struct || v.any || stmt.Dest == stmt.Model {
		return nil
	}
	other := &gorm.Statement{DB: stmt.DB}
	if err := other.Parse(stmt.Dest); err != nil {
		return nil // GORM will say so
	}
	field := other.Schema.LookUpField(v.field.DBName)
	if field == nil {
		return nil
	}
	carried, zero := field.ValueOf(stmt.Context, value)
	if zero {
		return nil
	}
	for _, loaded := range v.loaded {
		if fmt.Sprint(reflect.Indirect(reflect.ValueOf(carried))) != fmt.Sprint(uint64(loaded)) {
			return fmt.Errorf("%w: the values have version %v, the %s has %d: %w", txlock.ErrConflict, carried, stmt.Schema.Name, uint64(loaded), fault.ErrGiven)
		}
	}
	return nil
}

package lockgorm

import (
	"database/sql/driver"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/sqltext"
)

// rowFilter confines an update or delete to the rows of its models, whatever conditions
// the program, its hooks and its column types add: WHERE (conditions) AND (rows).
type rowFilter struct {
	by       *gorm.Statement
	rows     []clause.Expression
	strict   bool           // a statement that may change other rows is refused
	selected *selection     // by which its conditions have selected the rows, and may be joined by OR; nil if they have not
	named    clause.Where   // the conditions that name the rows, of a statement without models
	ids      map[string]any // the primary key of the locked row by column; with several rows the values are nil
	where    clause.Where   // the conditions of the program, its hooks and its column types
	text     string         // what buildWhere has written
}

// filterOf returns the filter of this very statement, and makes it on first use.
func filterOf(stmt *gorm.Statement) *rowFilter {
	s := stateOf(stmt)
	if s.filter == nil {
		s.filter = &rowFilter{by: stmt}
	}
	return s.filter
}

// install makes sure that the statement has a WHERE, with which GORM builds the filter.
func (f *rowFilter) install() {
	stmt := f.by
	stmt.AddClauseIfNotExists(clause.Where{})
	stateOf(stmt).atEnd(func() {
		if where, ok := stmt.Clauses["WHERE"].Expression.(clause.Where); ok && len(where.Exprs) == 0 {
			delete(stmt.Clauses, "WHERE")
		}
	})
}

// buildWhere builds WHERE as GORM does, and with the filter of a statement that has one.
func buildWhere(c clause.Clause, builder clause.Builder) {
	stmt, ok := builder.(*gorm.Statement)
	var s *stmtState
	if ok {
		s = writeOf(stmt)
	}
	if s == nil || s.filter == nil {
		c.Build(builder)
		return
	}
	f, v, before := s.filter, s.versions, stmt.SQL.Len()
	if why := f.wrong(); why != "" {
		_ = stmt.AddError(refusal(stmt, why))
	}
	if v != nil && isUpdate(stmt) {
		v.raise(stmt)
	}
	f.where, _ = c.Expression.(clause.Where)
	c.Name, c.Expression = "WHERE", f
	c.Build(builder)
	f.text = stmt.SQL.String()[before:]
}

// Build writes the conditions, and the rows.
func (f *rowFilter) Build(clause.Builder) {
	stmt, rows := f.by, f.rows
	conditions := clause.Where{Exprs: slices.Clone(f.where.Exprs)} // a copy, in which Build may move them
	plain, confined := f.inGORMsWords(conditionsOf(stmt))
	if confined && stateOf(stmt).versions == nil {
		rows = nil
	}
	switch {
	case len(conditions.Exprs) == 0:
	case plain || len(rows) == 0 || !f.strict:
		conditions.Build(stmt)
	default:
		write(stmt, "(")
		conditions.Build(stmt)
		write(stmt, ")")
	}
	for i, row := range rows {
		if i > 0 || len(conditions.Exprs) > 0 {
			write(stmt, clause.AndWithSpace)
		}
		row.Build(stmt)
	}
}

// write adds to the text of a statement, which never fails.
func write(stmt *gorm.Statement, text string) {
	_, _ = stmt.WriteString(text)
}

// wrong returns what is wrong with the statement, with all that hooks and columns have
// added to it, or "".
func (f *rowFilter) wrong() string {
	stmt := f.by
	if isUpdate(stmt) {
		if why := f.wrongSet(); why != "" {
			return why
		}
	}
	if !f.strict {
		return ""
	}
	switch why, or := whyNotClosed(stmt); {
	case why != "":
		return why
	case f.selected == nil && or:
		return joinedByOr
	case f.selected != nil && !f.selected.isOf(stmt, or), !areKept(f.named, stmt):
		return "a hook has changed the conditions, ORDER BY or LIMIT by which its rows were selected"
	}
	return ""
}

// wrongSet returns why SET is refused, or "": it must not set the version, nor the
// primary key of the locked record.
func (f *rowFilter) wrongSet() string {
	set, _ := f.by.Clauses["SET"].Expression.(clause.Set)
	v := stateOf(f.by).versions
	for _, assignment := range set {
		if why := whyNotAssigned(f.by, assignment); why != "" {
			return why
		}
		name := assignment.Column.Name
		if v != nil && names(name, v.field.DBName) {
			return fmt.Sprintf("it sets %q, which the plugin increments", name)
		}
		for column, id := range f.ids {
			if names(name, column) && (id == nil || !same(id, assignment.Value)) {
				return fmt.Sprintf("it makes another record of it, by %q", name)
			}
		}
	}
	return ""
}

// isUpdate reports whether the text of a statement is an UPDATE, as that of a soft delete
// is.
func isUpdate(stmt *gorm.Statement) bool {
	words := sqltext.Words(stmt.SQL.String(), 1)
	return len(words) > 0 && words[0] == "UPDATE"
}

func same(a, b any) bool { return textOf(a) == textOf(b) }

// textOf returns a value as it is stored, and not as a String method shows it.
func textOf(value any) string {
	if stored, err := driver.DefaultParameterConverter.ConvertValue(value); err == nil {
		return fmt.Sprint(stored)
	}
	return fmt.Sprint(reflect.Indirect(reflect.ValueOf(value)))
}

// names reports whether a name in an assignment, which may be qualified or quoted, may mean
// the column.
func names(written, column string) bool {
	column = strings.ToLower(column)
	return sqltext.Mentions(written, map[string]bool{column: true}) != "" ||
		strings.ContainsAny(written, "`\"'") && strings.Contains(strings.ToLower(written), column)
}

// inGORMsWords reports whether conditions only compare columns with values, and whether one of
// them, as GORM's own does, confines the statement to rows of the models.
func (f *rowFilter) inGORMsWords(text string, vars []any) (plain, confined bool) {
	given := stateOf(f.by).ids // of others GORM sends what the program has written
	for text != "" {
		var part string
		part, text = sqltext.Cut(text, "AND")
		m, n := named.FindStringSubmatch(part), strings.Count(part, "?")
		if m == nil || n > len(vars) {
			return false, false
		}
		if len(f.by.Schema.PrimaryFields) == 1 && strings.Trim(m[2], "`") == f.by.Schema.PrimaryFieldDBNames[0] {
			values := listed(m[3]+m[4], vars[:n])
			confined = confined || len(values) > 0 && !slices.ContainsFunc(values, func(v any) bool { return !given[identityPart(v)] })
		}
		vars = vars[n:]
	}
	return true, confined
}

// rowsOf returns the condition that names the rows of models and, with a version, the
// versions that were loaded.
func rowsOf(stmt *gorm.Statement, models []reflect.Value, version *schema.Field, loaded []Version) clause.Expression {
	column := func(field *schema.Field) clause.Column { return clause.Column{Name: field.DBName} }
	if len(models) == 0 {
		return clause.Expr{SQL: "FALSE"}
	}
	if version == nil && len(stmt.Schema.PrimaryFields) == 1 {
		in := clause.IN{Column: column(stmt.Schema.PrimaryFields[0])}
		for _, model := range models {
			id, _ := stmt.Schema.PrimaryFields[0].ValueOf(stmt.Context, model)
			in.Values = append(in.Values, id)
		}
		return in
	}
	each := make([]clause.Expression, len(models))
	for i, model := range models {
		var row []clause.Expression
		for _, key := range stmt.Schema.PrimaryFields {
			id, _ := key.ValueOf(stmt.Context, model)
			row = append(row, clause.Eq{Column: column(key), Value: id})
		}
		if version != nil {
			row = append(row, clause.Eq{Column: column(version), Value: loaded[i]})
		}
		each[i] = clause.And(row...)
	}
	if len(each) == 1 {
		return each[0]
	}
	return clause.Or(each...)
}

// noteLocked notes the primary keys of the models of a statement, as they are before its hooks.
func noteLocked(stmt *gorm.Statement, models []reflect.Value) {
	ids := make(map[string]bool, len(models))
	for _, model := range models {
		ids[identity(stmt, model)] = true
	}
	stateOf(stmt).ids = ids
}

// checkIDs refuses an update or delete whose hooks have given a model another primary key:
// GORM would look for that row, which isn't locked.
func checkIDs(db *gorm.DB) {
	stmt := db.Statement
	ids := stateOf(stmt).ids
	if ids == nil || db.Error != nil {
		return
	}
	models, err := modelsOf(stmt, changedOf(stmt))
	if err != nil || slices.ContainsFunc(models, func(model reflect.Value) bool { return !ids[identity(stmt, model)] }) {
		_ = db.AddError(unidentified(stmt, "a hook has changed the primary key of a model"))
	}
}

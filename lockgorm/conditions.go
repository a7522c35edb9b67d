package lockgorm

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/sqltext"
)

// whyUnconfined returns why an update or delete of models may change other rows than
// theirs, or "". If there is a model, GORM adds its primary key to the conditions by AND,
// which binds tighter than OR. Only conditions that can be an operand of AND are
// understood.
func whyUnconfined(stmt *gorm.Statement) string {
	why, or := whyNotClosed(stmt)
	if why == "" && or {
		why = joinedByOr
	}
	return why
}

const joinedByOr = "its conditions are joined by OR: put them in parentheses"

// whyNotClosed returns why conditions may reach further than where they stand, or "", and whether
// one of them binds weaker than AND.
func whyNotClosed(stmt *gorm.Statement) (why string, or bool) {
	expr := stmt.Clauses["WHERE"].Expression
	where, ok := expr.(clause.Where)
	if expr != nil && !ok {
		return "its WHERE is not GORM's", false
	}
	text, _ := textOfWhere(stmt, where.Exprs, clause.Expr{SQL: "TRUE"}) // followed by another condition
	words, ok := sqltext.Closed(text)
	if !ok {
		return "its conditions have a comment, or quotes or parentheses that they don't close, or a backslash in quotes: give values as arguments", false
	}
	if slices.Contains(words, "ORDER") || slices.Contains(words, "LIMIT") {
		return "its conditions have ORDER BY or LIMIT: use Order and Limit", false
	}
	return "", slices.ContainsFunc(words, isOr)
}

// conditionsOf returns the conditions of a statement as GORM will build them, and their values.
func conditionsOf(stmt *gorm.Statement) (text string, vars []any) {
	where, _ := stmt.Clauses["WHERE"].Expression.(clause.Where)
	return textOfWhere(stmt, where.Exprs)
}

// textOfWhere returns conditions as GORM will build them, and their values.
func textOfWhere(stmt *gorm.Statement, conditions []clause.Expression, more ...clause.Expression) (text string, vars []any) {
	scratch := scratchOf(stmt)
	clause.Where{Exprs: slices.Concat(conditions, more)}.Build(scratch) // of a copy, in which Build may move them
	return scratch.SQL.String(), scratch.Vars
}

// isOr reports whether a word of a condition binds weaker than AND.
func isOr(word string) bool { return word == "OR" || word == "XOR" || word == "||" || word == ":=" }

const identifier = "(`[^`]+`|[0-9A-Za-z_$\u0080-\U0010ffff]+)"

// table matches a table's name, qualified or not, with or without an alias.
var table = regexp.MustCompile(`^\s*` + identifier + `(\s*\.\s*` + identifier + `)?(\s+([Aa][Ss]\s+)?` + identifier + `)?\s*$`)

// column matches a column's name, qualified or not.
var column = regexp.MustCompile(`^\s*(` + identifier + `\s*\.\s*){0,2}` + identifier + `\s*$`)

// oneTable reports whether a statement names one table.
func oneTable(stmt *gorm.Statement) bool {
	return stmt.TableExpr == nil || table.MatchString(tableText(stmt))
}

// tableText returns the table of a statement as GORM writes it, with its alias.
func tableText(stmt *gorm.Statement) string {
	text := scratchOf(stmt)
	if stmt.TableExpr != nil {
		stmt.TableExpr.Build(text)
	} else {
		text.WriteQuoted(clause.Table{Name: clause.CurrentTable})
	}
	return text.SQL.String()
}

func isModifier(text string) bool {
	known := []string{"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE"}
	return !slices.ContainsFunc(strings.Fields(strings.ToUpper(text)), func(word string) bool { return !slices.Contains(known, word) })
}

// isPlain reports whether a condition compares a column with values, without any SQL text.
func isPlain(expr clause.Expression) bool {
	switch e := expr.(type) {
	case clause.Eq:
		return isColumn(e.Column) && isValue(e.Value)
	case clause.IN:
		return isColumn(e.Column) && !slices.ContainsFunc(e.Values, func(v any) bool { return !isValue(v) })
	}
	return false
}

func isColumn(column any) bool {
	switch c := column.(type) {
	case string:
		return true
	case clause.Column:
		return !c.Raw
	}
	return false
}

func isValue(value any) bool {
	switch value.(type) {
	case clause.Expression, gorm.Valuer, *gorm.DB, clause.Column, clause.Table:
		return false
	case nil, []byte:
		return true
	}
	kind := reflect.TypeOf(value).Kind()
	return kind != reflect.Slice && kind != reflect.Map && kind != reflect.Func
}

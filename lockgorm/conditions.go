package lockgorm

import (
	"database/sql/driver"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

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
	if _, ok := expr.(clause.Where); expr != nil && !ok {
		return "its WHERE is not GORM's", false
	}
	text, _ := conditionsOf(stmt, clause.Expr{SQL: "TRUE"}) // followed by another condition
	words, ok := sqltext.Closed(text)
	if !ok {
		return "its conditions have a comment, or quotes or parentheses that they don't close, or a backslash in quotes: give values as arguments", false
	}
	if slices.Contains(words, "ORDER") || slices.Contains(words, "LIMIT") {
		return "its conditions have ORDER BY or LIMIT: use Order and Limit", false
	}
	return "", slices.ContainsFunc(words, isOr)
}

// conditionsOf returns the conditions of a statement, and more, as GORM will build them, and their
// values.
func conditionsOf(stmt *gorm.Statement, more ...clause.Expression) (text string, vars []any) {
	scratch := scratchOf(stmt)
	clause.Where{Exprs: slices.Concat(whereOf(stmt).Exprs, more)}.Build(scratch) // of a copy, in which Build may move them
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

// modelsByID returns models that have only the primary keys that the conditions of a statement
// name, and whether they do so for certain: one of those that AND joins is id = ? or
// id IN (?, ?), as GORM builds it.
func modelsByID(stmt *gorm.Statement) (models []reflect.Value, ok bool) {
	conditions, vars := conditionsOf(stmt)
	if len(stmt.Schema.PrimaryFields) != 1 || strings.Count(conditions, "?") != len(vars) {
		return nil, false
	}
	id := stmt.Schema.PrimaryFields[0]
	values, ok := valuesOf(stmt, id, conditions, vars)
	for _, value := range values {
		model := reflect.New(stmt.Schema.ModelType).Elem()
		certain := asID(id, value)
		if !certain.IsValid() || id.Set(stmt.Context, model, certain.Interface()) != nil {
			return nil, false
		}
		models = append(models, model)
	}
	return models, ok
}

// named matches a condition that says which values a column has, or that it has none.
var named = regexp.MustCompile("(?i)^\\s*(?:" + identifier + "\\s*\\.\\s*)?" + identifier + "\\s*(?:=\\s*(\\?|\\d+)|\\bIN\\s*\\(([?\\d,\\s]+|NULL)\\)|(IS NULL))\\s*$")

// valuesOf returns the values that one of the conditions says that the column has. Without any
// value no row is meant: GORM writes IN (NULL) for an empty slice.
func valuesOf(stmt *gorm.Statement, column *schema.Field, text string, vars []any) (values []any, ok bool) {
	words, closed := sqltext.Closed(text)
	if !closed || slices.ContainsFunc(words, func(word string) bool { return isOr(word) || word == "CASE" }) {
		return nil, false // AND may be a part of CASE
	}
	for text != "" && !ok {
		var part string
		part, text = sqltext.Cut(text, "AND")
		for joined := 0; joined < betweens(part); joined++ {
			var upper string
			upper, text = sqltext.Cut(text, "AND")
			part += "AND" + upper
		}
		n := strings.Count(part, "?")
		if inner := strings.TrimSpace(part); strings.HasPrefix(inner, "(") {
			values, ok = valuesOf(stmt, column, strings.TrimSuffix(inner[1:], ")"), vars[:n])
		} else if m := named.FindStringSubmatch(part); m != nil && m[5] == "" && isNamed(m[1], stmt.Table) && strings.EqualFold(strings.Trim(m[2], "`"), column.DBName) {
			values, ok = listed(m[3]+m[4], vars), true
		}
		vars = vars[n:]
	}
	return values, ok
}

// betweens returns how many BETWEEN a condition has, of each of which one AND is a part.
func betweens(condition string) (n int) {
	words, _ := sqltext.Closed(condition)
	for _, word := range words {
		if word == "BETWEEN" {
			n++
		}
	}
	return n
}

func isNamed(qualifier, table string) bool {
	return qualifier == "" || strings.Trim(qualifier, "`") == table
}

// listed returns the values of a list, in which ? stands for the next one of vars.
func listed(list string, vars []any) (values []any) {
	for each := range strings.SplitSeq(list, ",") {
		switch each = strings.TrimSpace(each); each {
		case "?":
			values, vars = append(values, vars[0]), vars[1:]
		case "NULL":
		default:
			var value any // none for what is no number
			if n, err := strconv.ParseUint(each, 10, 64); err == nil {
				value = n
			}
			values = append(values, value)
		}
	}
	return values
}

// hasSubquery reports whether a condition may be about other rows than the statement's, or sets a
// variable.
func hasSubquery(text string) bool {
	return strings.Contains(text, ":=") || slices.ContainsFunc(sqltext.Words(text, len(text)), func(word string) bool {
		return word == "SELECT" || word == "TABLE" || word == "VALUES" || word == "WITH"
	})
}

// converts reports whether values of a type are stored as something else.
func converts(t reflect.Type) bool { return t.Implements(reflect.TypeFor[driver.Valuer]()) }

// asID returns a value as an identifier, if servers certainly take it for this one and it is not
// zero; else the zero reflect.Value.
func asID(field *schema.Field, value any) (id reflect.Value) {
	v, none := reflect.Indirect(reflect.ValueOf(value)), reflect.Value{}
	id = reflect.New(field.IndirectFieldType).Elem()
	if !v.IsValid() || field.Serializer != nil {
		return none
	}
	if v.Type() != id.Type() && (converts(reflect.TypeOf(value)) || converts(v.Type()) || converts(id.Type())) {
		return none
	}
	text, err := textOf(v.Interface()), error(nil)
	whole := v.CanInt() || v.CanUint() || v.Kind() == reflect.String
	switch {
	case v.Type() == id.Type():
		id.Set(v)
	case id.Kind() == reflect.String && v.Kind() == reflect.String:
		id.SetString(text)
	case id.CanInt() && whole:
		var n int64
		n, err = strconv.ParseInt(text, 10, id.Type().Bits())
		id.SetInt(n)
	case id.CanUint() && whole:
		var n uint64
		n, err = strconv.ParseUint(text, 10, id.Type().Bits())
		id.SetUint(n)
	}
	if err != nil || id.IsZero() {
		return none
	}
	return id
}

package lockgorm

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/sqltext"
	"github.com/dca00107/lockstep/txlock"
)

// checkClauses refuses a create, update or delete with a clause that isn't GORM's own: it might
// change other records, or change its record without a comparison.
func checkClauses(db *gorm.DB) {
	stmt := db.Statement
	if db.Error != nil || !isGuarded(stmt) {
		return
	}
	if stmt.SQL.Len() > 0 {
		_ = db.AddError(refusal(stmt, "its text was not built by GORM"))
	} else if why := whyForeign(stmt, stmt.BuildClauses); why != "" {
		_ = db.AddError(refusal(stmt, why))
	}
}

// isGuarded reports whether the plugin answers for the rows that a statement changes: those of a
// model that names its keys, unless On does, and those of a model with a Version.
func isGuarded(stmt *gorm.Statement) bool {
	if stmt.Schema == nil {
		return false
	}
	return namesKeys(stmt) || slices.ContainsFunc(stmt.Schema.Fields, isVersion)
}

// namesKeys reports whether the model of a statement names its keys, and not On.
func namesKeys(stmt *gorm.Statement) bool {
	_, ok := optionOf[[]txlock.Key](stmt, onOption)
	return isLocker(stmt) && (!ok || isInner(stmt))
}

// refusal returns the error of a statement that the plugin can't answer for.
func refusal(stmt *gorm.Statement, why string) error {
	if namesKeys(stmt) {
		return unidentified(stmt, why)
	}
	return fmt.Errorf("%w: %s: the statement can't be compared, since %s: leave that out, or send the whole statement by Exec, which neither compares nor increments versions", ErrVersion, stmt.Schema.Name, why)
}

// whyForeign returns which of the clauses that GORM will build isn't its own, or "". Each must be
// of the type that GORM has for it, with at most comments and index hints added, and be
// built by GORM or its driver.
func whyForeign(stmt *gorm.Statement, names []string) string {
	if !oneTable(stmt) {
		return "it is about more than one table"
	}
	for _, name := range names {
		c, ok := stmt.Clauses[name]
		if !ok && slices.Contains(optional, name) {
			continue
		}
		if !isBuiltByGORM(stmt, name, c) {
			return fmt.Sprintf("its %s is not built by GORM", name)
		}
		if why := whyNotGORMs(stmt, name, c.Expression); why != "" {
			return why
		}
		for _, extra := range []clause.Expression{c.BeforeExpression, c.AfterNameExpression, c.AfterExpression} {
			if extra != nil && !isHint(stmt, extra) {
				return "something else than " + name + " takes was added to it"
			}
		}
	}
	return ""
}

// isBuiltByGORM reports whether GORM builds a clause, or its driver, or this package.
func isBuiltByGORM(stmt *gorm.Statement, name string, c clause.Clause) bool {
	unnamed := c.Name == "" && (c.Expression == nil || slices.Contains(nameless, name))
	return c.Builder == nil && (c.Name == name || unnamed) && isKnownBuilder(stmt.ClauseBuilders[name])
}

// whyNotGORMs returns why the text of a clause isn't known, or "".
func whyNotGORMs(stmt *gorm.Statement, name string, expr clause.Expression) string {
	known := false
	switch e := expr.(type) {
	case nil:
		return ""
	case clause.Insert:
		known = e.Table.Name == "" && isModifier(e.Modifier)
	case clause.Values:
		known = !slices.ContainsFunc(e.Values, func(row []any) bool {
			return slices.ContainsFunc(row, func(value any) bool { return !isOne(stmt, value) })
		})
	case clause.OnConflict:
		for _, assignment := range e.DoUpdates {
			if why := whyNotAssigned(stmt, assignment); why != "" {
				return why
			}
		}
		known = true
	case clause.Returning:
		known = !slices.ContainsFunc(e.Columns, func(c clause.Column) bool {
			return c.Name != "*" && !column.MatchString(stmt.Quote(c))
		})
	case clause.Update:
		known = e.Table.Name == "" && isModifier(e.Modifier)
	case clause.Delete:
		known = isModifier(e.Modifier)
	case clause.From:
		known = len(e.Tables) == 0 && len(e.Joins) == 0
	case clause.Set, clause.Where, clause.OrderBy, clause.Limit:
		known = true
	}
	if known && expr.(clause.Interface).Name() == name {
		return ""
	}
	return fmt.Sprintf("its %s is not GORM's", name)
}

// nameless are the clauses of which GORM's type writes the name.
var nameless = []string{"VALUES", "DELETE", "LIMIT"}

// optional are the clauses that GORM doesn't add by itself.
var optional = []string{onConflict, "RETURNING", "ORDER BY", "LIMIT"}

// onConflict is the clause of upserts.
var onConflict = clause.OnConflict{}.Name()

// isKnownBuilder reports whether a clause is built by itself, or by a function of GORM's driver or
// of this package.
func isKnownBuilder(build clause.ClauseBuilder) bool {
	if build == nil {
		return true
	}
	name := runtime.FuncForPC(reflect.ValueOf(build).Pointer()).Name()
	return strings.HasPrefix(name, reflect.TypeFor[Plugin]().PkgPath()+".") || strings.HasPrefix(name, reflect.TypeFor[mysql.Dialector]().PkgPath()+".")
}

// registerBuilders makes GORM build the clauses of a write that confine it to its models. If the
// program has a function of its own that builds them, checkClauses refuses them.
func registerBuilders(db *gorm.DB) {
	for name, build := range map[string]clause.ClauseBuilder{"WHERE": buildWhere, onConflict: buildOnConflict} {
		if isKnownBuilder(db.ClauseBuilders[name]) {
			db.ClauseBuilders[name] = build
		}
	}
}

var indexHint = regexp.MustCompile("^((USE|FORCE|IGNORE) (INDEX|KEY) (FOR (JOIN|ORDER BY|GROUP BY) )?\\((`[^`]+`|[0-9A-Za-z_$, ])*\\) ?)+$")

// isHint reports whether an expression that was added to a clause is comments on every server, or
// names indexes.
func isHint(stmt *gorm.Statement, extra clause.Expression) bool {
	scratch := scratchOf(stmt)
	extra.Build(scratch)
	text := strings.TrimSpace(scratch.SQL.String())
	if _, closed := sqltext.Closed(text); !closed {
		return false
	}
	for strings.HasPrefix(text, "/*") {
		_, text, _ = strings.Cut(text, "*/")
		text = strings.TrimSpace(text)
	}
	return text == "" || indexHint.MatchString(text)
}

// watchText lets the finished text of a statement be checked when GORM sends it, so that
// nothing that wrote into it is missed. It stands between the statement's hooks and its building.
func watchText(db *gorm.DB, creates bool) {
	checkClauses(db)
	stmt := db.Statement
	if db.Error != nil || db.DryRun || !isGuarded(stmt) {
		return
	}
	if values, ok := stmt.Clauses["VALUES"]; ok { // of an earlier use of the statement
		values.Expression = nil
		stmt.Clauses["VALUES"] = values
	}
	w := watched{ConnPool: stmt.ConnPool, by: stmt, creates: creates}
	if tx, ok := w.ConnPool.(gorm.TxCommitter); ok {
		stmt.ConnPool = watchedTx{watched: w, TxCommitter: tx}
	} else {
		stmt.ConnPool = w
	}
}

// unwatch ends watchText.
func unwatch(db *gorm.DB) { db.Statement.ConnPool = unwatched(db.Statement.ConnPool) }

// unwatched returns the pool or transaction that is watched, or the given one.
func unwatched(pool gorm.ConnPool) gorm.ConnPool {
	switch w := pool.(type) {
	case watched:
		return w.ConnPool
	case watchedTx:
		return w.ConnPool
	}
	return pool
}

// senderOf returns the pool or transaction by which this package sends statements of its own:
// they are neither checked nor prepared, however often a session was made to prepare. GORM's
// store of prepared statements may wait for a connection of the pool while others wait for the
// store, with connections of that pool.
func senderOf(stmt *gorm.Statement) gorm.ConnPool {
	pool := unwatched(stmt.ConnPool)
	for {
		switch prepared := pool.(type) {
		case *gorm.PreparedStmtDB:
			pool = prepared.ConnPool
			continue
		case *gorm.PreparedStmtTX:
			if prepared != nil { // a BEGIN that has failed leaves nil
				pool = prepared.Tx
				continue
			}
		}
		return pool
	}
}

// watched is the pool or transaction of one statement, whose text it checks.
type watched struct {
	gorm.ConnPool
	by      *gorm.Statement
	creates bool
}

type watchedTx struct {
	watched
	gorm.TxCommitter
}

// ExecContext sends a text that is known.
func (w watched) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if err := w.check(text); err != nil {
		return nil, err
	}
	return w.ConnPool.ExecContext(ctx, text, args...)
}

// QueryContext does what ExecContext does, for a statement with RETURNING.
func (w watched) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if err := w.check(text); err != nil {
		return nil, err
	}
	return w.ConnPool.QueryContext(ctx, text, args...)
}

// check returns the error of the statement's own text. Others may be sent while it is built, by
// a Valuer of the program.
func (w watched) check(text string) error {
	if text != w.by.SQL.String() {
		return nil
	}
	if why := whyNotSent(w.by, text, w.creates); why != "" {
		return refusal(w.by, why)
	}
	return nil
}

// whyNotSent returns why a finished text may do something else than its clauses say, or "".
func whyNotSent(stmt *gorm.Statement, text string, creates bool) string {
	names := stmt.BuildClauses
	if isUpdate(stmt) {
		names = stmt.Callback().Update().Clauses // those of a soft delete, too
	}
	if why := whyForeign(stmt, names); why != "" {
		return why
	}
	words, ok := sqltext.Closed(text)
	if !ok {
		return "its text has a semicolon, a comment to the end of a line or one that servers execute, or quotes or parentheses that it doesn't close, or a backslash in quotes: give values as arguments"
	}
	_, values := stmt.Clauses["VALUES"].Expression.(clause.Values)
	f := stateOf(stmt).filter
	filtered := f != nil && f.text != "" && strings.Contains(text, f.text)
	verb := slices.Concat(words, []string{""})[0]
	if creates && verb == "INSERT" && values || !creates && (verb == "UPDATE" || verb == "DELETE") && filtered {
		return ""
	}
	return "its text was not built by GORM"
}

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

package lockgorm

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// beginCreate refuses a create that may change existing rows, since an upsert can't
// compare their versions: Save of a slice, OnConflict with updates, and associations that
// GORM saves with a model. If such associations are new, it turns their upsert into a
// plain INSERT.
func beginCreate(db *gorm.DB) {
	refuseLoaded(db)
	beginWrite(db)
	stmt := db.Statement
	association := isInner(stmt)
	if !association {
		checkSaved(db, stmt.Dest, true)
	}
	v, err := createdOf(db)
	if db.AddError(err) != nil || v == nil {
		return
	}
	if slices.ContainsFunc(v.models, func(model reflect.Value) bool { return !model.CanAddr() }) {
		_ = db.AddError(fmt.Errorf("%w: %s: its first version could not be set in it: give a pointer to the model", ErrVersion, stmt.Schema.Name))
	}
	if !upserts(stmt) {
		return
	}
	isNew := v.keep || !slices.ContainsFunc(v.loaded, func(version Version) bool { return version > 0 })
	switch {
	case association && isNew:
		delete(stmt.Clauses, onConflict)
	case association:
		_ = db.AddError(notSaved(stmt.Schema))
	default:
		_ = db.AddError(noUpsert(stmt))
	}
}

// noUpsert returns the error of an upsert of models with a Version.
func noUpsert(stmt *gorm.Statement) error {
	return fmt.Errorf("%w: %s: an upsert can't compare: create new models by Create, and save loaded ones one by one, those of gorm.io/gen by Clauses(lockgorm.Loaded(...))", ErrVersion, stmt.Schema.Name)
}

// createdOf returns the models that a statement creates.
func createdOf(db *gorm.DB) (*versioned, error) {
	if db.Error != nil {
		return nil, nil
	}
	field, err := versionField(db.Statement)
	if field == nil || err != nil {
		return nil, err
	}
	v := &versioned{field: field, keep: isSet(db.Statement, keepVersionOption)}
	v.collect(db.Statement, reflect.ValueOf(db.Statement.Dest))
	return v, nil
}

// firstVersion returns a random version, which no earlier row of the same primary key is
// likely to have had.
func firstVersion() Version { return Version(beforeFirst + newStep()) }

// firstVersions gives new models their first version, whatever version they have, and
// whatever columns the create selects or omits. If the create skips existing rows, nobody
// knows which models were written: these must be loaded before their next write.
func firstVersions(db *gorm.DB) {
	stmt := db.Statement
	v, err := createdOf(db)
	if db.AddError(err) != nil || v == nil {
		return
	}
	insert, _ := stmt.Clauses["INSERT"].Expression.(clause.Insert)
	_, v.putBack = stmt.Clauses[onConflict]
	v.putBack = v.putBack || strings.Contains(strings.ToUpper(insert.Modifier), "IGNORE")
	stateOf(stmt).versions = v
	v.selectOf(stmt)
	for i, model := range v.models {
		if model.CanAddr() && (!v.keep || v.loaded[i] == 0) {
			_ = db.AddError(v.field.Set(stmt.Context, model, firstVersion()))
		}
	}
	switch values := reflect.Indirect(reflect.ValueOf(stmt.Dest)).Interface().(type) {
	case map[string]any:
		v.setIn(stmt, values)
	case []map[string]any:
		v.setIn(stmt, values...)
	}
}

// selectOf makes a create write the version, whatever columns it selects or omits.
func (v *versioned) selectOf(stmt *gorm.Statement) {
	selects, omits := stmt.Selects, stmt.Omits
	stateOf(stmt).atEnd(func() { stmt.Selects, stmt.Omits = selects, omits })
	stmt.Omits = slices.DeleteFunc(slices.Clone(omits), func(name string) bool { return name == v.field.Name || names(name, v.field.DBName) })
	columns, restricted := stmt.SelectAndOmitColumns(true, false)
	written, said := columns[v.field.DBName]
	if !said && restricted {
		stmt.Selects = append(slices.Clone(selects), v.field.DBName)
	} else if said && !written {
		_ = stmt.AddError(fmt.Errorf("%w: %s: its first version could not be written: %s is omitted, or may not be created", ErrVersion, stmt.Schema.Name, v.field.Name))
	}
}

// setIn gives maps a first version until the statement is over.
func (v *versioned) setIn(stmt *gorm.Statement, maps ...map[string]any) {
	for _, values := range maps {
		name := v.field.DBName
		if _, ok := values[v.field.Name]; ok {
			name = v.field.Name
		}
		carried, ok := values[name]
		switch {
		case ok && v.keep, values == nil:
		case ok:
			stateOf(stmt).atEnd(func() { values[name] = carried })
			values[name] = firstVersion()
		default:
			stateOf(stmt).atEnd(func() { delete(values, name) })
			values[name] = firstVersion()
		}
	}
}

// buildOnConflict builds upserts as GORM's driver does, and confines them to their models, if these
// are locked. ON DUPLICATE KEY UPDATE updates whichever row any unique key finds: so it adds a
// check that this row has the primary key of the model. No existing row has one that the server
// makes by AUTO_INCREMENT. It refuses upserts of models with a Version, which can't compare it.
func buildOnConflict(c clause.Clause, builder clause.Builder) {
	if stmt, ok := builder.(*gorm.Statement); ok && upserts(stmt) {
		s := stateOf(stmt)
		if s.versions != nil {
			_ = stmt.AddError(noUpsert(stmt))
		}
		if s.upsert {
			c.Expression = sameRecord(stmt, c.Expression)
		}
	}
	driversOnConflict(c, builder)
}

// driversOnConflict builds upserts as GORM's driver does.
var driversOnConflict = mysql.Dialector{Config: new(mysql.Config)}.ClauseBuilders()[onConflict]

// upserts reports whether a create updates existing rows. If OnConflict has both DoNothing
// and updates, GORM updates.
func upserts(stmt *gorm.Statement) bool {
	c := stmt.Clauses[onConflict]
	conflict, ok := c.Expression.(clause.OnConflict)
	if !ok {
		return c.Expression != nil
	}
	return conflict.UpdateAll || slices.ContainsFunc(conflict.DoUpdates, func(a clause.Assignment) bool {
		return a.Value != a.Column // GORM's way to write "do nothing"
	})
}

// sameRecord adds to the assignments a check that the row which was found has the primary
// key of the row to insert. If it hasn't, the server evaluates the subquery, which is an
// error. TiDB evaluates it for every row that was found.
func sameRecord(stmt *gorm.Statement, expr clause.Expression) clause.Expression {
	refuse := func(why string) { _ = stmt.AddError(unidentified(stmt, why)) }
	conflict, ok := expr.(clause.OnConflict)
	insert, _ := stmt.Clauses["INSERT"].Expression.(clause.Insert)
	if !ok || len(stmt.Schema.PrimaryFields) == 0 || strings.Contains(strings.ToUpper(insert.Modifier), "IGNORE") {
		refuse("it is an upsert that can't be limited to them")
	}
	var updates clause.Set
	for _, key := range stmt.Schema.PrimaryFields {
		column := clause.Column{Name: key.DBName}
		if fresh := key.AutoIncrement && key.DefaultValue == ""; !fresh && !isWritten(stmt, column) {
			refuse(fmt.Sprintf("it is an upsert that doesn't write %q, whose default may be the key of another record", key.DBName))
		}
		for _, assignment := range conflict.DoUpdates {
			if assignment.Value != (clause.Column{Table: "excluded", Name: key.DBName}) && names(assignment.Column.Name, key.DBName) {
				refuse(fmt.Sprintf("it makes another record of it, by %q", assignment.Column.Name))
			}
		}
		updates = append(updates, clause.Assignment{Column: column, Value: clause.Expr{
			SQL: "IF(? <=> VALUES(?), ?, (SELECT 1 UNION ALL SELECT 2))", WithoutParentheses: true, Vars: []any{column, column, column},
		}})
	}
	conflict.DoUpdates = slices.Concat(updates, conflict.DoUpdates)
	return conflict
}

// isWritten reports whether a create writes a value to the column in every row.
func isWritten(stmt *gorm.Statement, column clause.Column) bool {
	values, _ := stmt.Clauses["VALUES"].Expression.(clause.Values)
	i := slices.Index(values.Columns, column)
	return i >= 0 && !slices.ContainsFunc(values.Values, func(row []any) bool { return !isValue(row[i]) })
}

// explainUpsert explains the error of that subquery.
func explainUpsert(db *gorm.DB) {
	unwatch(db)
	var server *driver.MySQLError
	if stateOf(db.Statement).upsert && errors.As(db.Error, &server) && server.Number == 1242 { // ER_SUBQUERY_NO_1_ROW
		db.Error = fmt.Errorf("%w: the upsert has found another record of %s than its model, by a unique key, or this is TiDB, where an upsert can't be limited to its models: load that record and update it, or name the keys by Clauses(lockgorm.On(...)): %w", txlock.ErrInvalidKey, db.Statement.Table, db.Error)
	}
}

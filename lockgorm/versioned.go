package lockgorm

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
)

// versioned is one statement on models with a Version.
type versioned struct {
	field   *schema.Field
	models  []reflect.Value
	loaded  []Version // as they were before the statement
	any     bool      // AnyVersion: nothing is compared
	step    int64     // by how much an update raises the versions
	keep    bool      // KeepVersion: a create writes the versions that its models have
	putBack bool      // the models get their loaded versions again, also after success
}

// beginUpdate refuses an update that can't be compared, before GORM begins a transaction.
func beginUpdate(db *gorm.DB) {
	setLoaded(db)
	beginWrite(db)
	checkSaved(db, db.Statement.Model, false)
	v, err := versionedOf(db, reflect.ValueOf(db.Statement.Model))
	if db.AddError(err) == nil && v != nil {
		_ = db.AddError(v.checkValues(db.Statement))
	}
	checkReplace(db)
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

// beginDelete does what beginUpdate does, for a delete.
func beginDelete(db *gorm.DB) {
	setLoaded(db)
	beginWrite(db)
	checkSelected(db)
	_, err := versionedOf(db, changedOf(db.Statement))
	_ = db.AddError(err)
}

// sendChange adds the comparison to an update or delete. It checks the model again, which hooks may
// have changed since.
func sendChange(db *gorm.DB) {
	last(db)
	checkIDs(db)
	compareVersions(db)
	watchText(db, false)
}

// versionedOf returns the models that a statement changes and their versions, or nil if
// they have none.
func versionedOf(db *gorm.DB, value reflect.Value) (*versioned, error) {
	if db.Error != nil {
		return nil, nil
	}
	stmt := db.Statement
	field, err := versionField(stmt)
	if field == nil || err != nil {
		return nil, err
	}
	v := &versioned{field: field, any: isSet(stmt, anyVersionOption)}
	v.collect(stmt, value)
	refuse := func(why string) (*versioned, error) {
		return nil, fmt.Errorf("%w: %s: %s", ErrVersion, stmt.Schema.Name, why)
	}
	if v.any {
		if len(v.models) > 1 && !v.identified(stmt) {
			return refuse("some of the models have no primary key: load them first")
		}
		return v, nil
	}
	const instead = ": change loaded models one by one or as a slice, or add Clauses(lockgorm.AnyVersion)"
	if len(v.models) == 0 {
		return refuse("the statement names no models" + instead)
	}
	if why := whyUnconfined(stmt); why != "" {
		return refuse("the statement may change rows of other models, since " + why + instead)
	}
	for i, model := range v.models {
		switch {
		case !model.CanAddr():
			return refuse("the version could not be incremented in it: give a pointer to the model")
		case !hasID(stmt, model):
			return refuse("the statement may change rows of models that were not loaded, since the model has no primary key; Replace, Clear and Delete of an association do so" + instead)
		case v.loaded[i] == 0:
			return refuse("the model has no version: load it first, with its version column; create a new one by Create; or add Clauses(lockgorm.AnyVersion)")
		}
	}
	return v, nil
}

// collect gathers the models of the statement's type and their versions.
func (v *versioned) collect(stmt *gorm.Statement, value reflect.Value) {
	for _, model := range modelsIn(value, stmt.Schema) {
		version, _ := v.field.ValueOf(stmt.Context, model)
		loaded, _ := version.(Version)
		v.models, v.loaded = append(v.models, model), append(v.loaded, loaded)
	}
}

// identified reports whether every model has its primary key.
func (v *versioned) identified(stmt *gorm.Statement) bool {
	return len(v.models) > 0 && !slices.ContainsFunc(v.models, func(model reflect.Value) bool { return !hasID(stmt, model) })
}

// compareVersions adds to the statement the condition that each row has the version that
// was loaded, and to an UPDATE that it raises the version.
func compareVersions(db *gorm.DB) {
	stmt := db.Statement
	value := reflect.ValueOf(stmt.Model)
	if isDelete(stmt) {
		value = changedOf(stmt)
	}
	v, err := versionedOf(db, value)
	if err == nil && v != nil && len(v.models) > 1 && !v.any && !db.DryRun {
		if _, none := transactionOf(db); none != nil {
			err = fmt.Errorf("a batch of %s with versions is changed whole or not at all: %w", stmt.Schema.Name, none)
		}
	}
	if db.AddError(err) != nil || v == nil {
		return
	}
	v.step = newStep()
	f := filterOf(stmt)
	_, hasWhere := stmt.Clauses["WHERE"]
	switch {
	case !v.any:
		f.rows, f.strict = append(f.rows, rowsOf(stmt, v.models, v.field, v.loaded)), true
	case v.identified(stmt):
		f.rows = append(f.rows, rowsOf(stmt, v.models, nil, nil))
	case db.AllowGlobalUpdate && !hasWhere:
		f.rows = []clause.Expression{clause.Expr{SQL: "TRUE"}}
	}
	if len(f.rows) > 0 { // otherwise GORM refuses a statement without a WHERE
		f.install()
	}
	omits := stmt.Omits
	stateOf(stmt).atEnd(func() { stmt.Omits = omits })
	stmt.Omits = append(slices.Clone(omits), v.field.DBName)
	stateOf(stmt).versions = v
}

// raise writes the assignment that raises the version. It stands before WHERE, and so at
// the end of SET, which GORM has written.
func (v *versioned) raise(stmt *gorm.Statement) {
	column := clause.Column{Name: v.field.DBName}
	clause.Expr{SQL: fmt.Sprintf(", ? = (? & %d) + ? ", int64(largestBefore)), Vars: []any{column, column, v.step}}.Build(stmt)
}

// verifyVersions checks that all rows were changed, while GORM can still roll back, and
// increments the versions in the models before the next hooks run.
func verifyVersions(db *gorm.DB) {
	unwatch(db)
	stmt := db.Statement
	v := stateOf(stmt).versions
	if v != nil {
		defer nameConflict(db)
	}
	if v == nil || db.Error != nil || db.DryRun || v.any && stmt.SQL.Len() == 0 {
		return
	}
	changed := slices.Repeat([]bool{true}, len(v.models))
	switch {
	case v.any:
		for _, model := range v.models {
			if model.CanAddr() {
				_ = db.AddError(v.field.Set(stmt.Context, model, Version(0)))
			}
		}
		if isUpdate(stmt) {
			noteOwn(db, nil, v.step)
		}
		return
	case db.RowsAffected != int64(len(v.models)), slices.ContainsFunc(v.loaded, Version.isLargest):
		var err error
		if changed, err = v.lookAgain(db); db.AddError(err) != nil {
			return
		}
	}
	var written []Version
	for i, model := range v.models {
		if !changed[i] || !isUpdate(stmt) {
			continue
		}
		written = append(written, v.loaded[i].raisedBy(v.step))
		_ = db.AddError(v.field.Set(stmt.Context, model, written[len(written)-1]))
	}
	noteOwn(db, written)
}

// nameConflict says of a row that the server itself has refused, since it has changed after
// the transaction's snapshot (innodb_snapshot_isolation of MariaDB), that this is a conflict.
func nameConflict(db *gorm.DB) {
	if errors.Is(fault.Interpret(db.Error).Sentinel, txlock.ErrStaleSnapshot) && !errors.Is(db.Error, txlock.ErrStaleSnapshot) {
		db.Error = fmt.Errorf("%w: another transaction changed the %s: %w", txlock.ErrConflict, db.Statement.Schema.Name, db.Error)
	}
}

// lookAgain finds out why fewer rows were changed than there are models: a conflict, a
// row that is gone, a condition of the caller, or several models of one row. It knows for
// certain which rows were changed if their number is that of the statement. It uses a
// locking read, since a plain one may show an old snapshot. The statement has locked the
// same rows already, unless it had nothing to set, so that GORM hasn't sent it.
func (v *versioned) lookAgain(db *gorm.DB) (changed []bool, err error) {
	stmt := db.Statement
	current := reflect.New(reflect.SliceOf(stmt.Schema.ModelType))
	query := db.Session(&gorm.Session{NewDB: true, SkipHooks: true}).Model(reflect.New(stmt.Schema.ModelType).Interface())
	query.Statement.Table, query.Statement.TableExpr, query.Statement.Unscoped = stmt.Table, stmt.TableExpr, stmt.Unscoped
	err = query.Select(append(slices.Clone(stmt.Schema.PrimaryFieldDBNames), v.field.DBName)).
		Clauses(clause.Locking{Strength: "UPDATE"}, clause.Where{Exprs: []clause.Expression{rowsOf(stmt, v.models, nil, nil)}}).
		Find(current.Interface()).Error
	if err != nil {
		return nil, err
	}
	now := versioned{field: v.field}
	now.collect(stmt, current)
	versions := make(map[string]Version, len(now.models))
	for i, row := range now.models {
		versions[identity(stmt, row)] = now.loaded[i]
	}
	changed = make([]bool, len(v.models))
	var gone, raised int64
	var conflicts []conflict
	var written []Version
	looked := make(map[string]int, len(v.models))
	for i, model := range v.models {
		id := identity(stmt, model)
		first, again := looked[id]
		if again && v.loaded[first] == v.loaded[i] {
			changed[i] = changed[first]
			continue
		}
		looked[id] = i
		version, found := versions[id]
		switch {
		case !found && !again:
			gone++
		case version == v.loaded[i] && version.isLargest() && !isDelete(stmt):
			return nil, fmt.Errorf("%w: %s: %d is the largest number of a type that is too small: make the column %s BIGINT UNSIGNED", ErrVersion, stmt.Schema.Name, version, v.field.DBName)
		case version == v.loaded[i]: // excluded by a condition of the caller
		case version == v.loaded[i].raisedBy(v.step) && !isDelete(stmt):
			changed[i] = true
			written = append(written, version)
			raised++
		default:
			conflicts = append(conflicts, conflict{v.loaded[i], version})
		}
	}
	if isDelete(stmt) {
		gone -= db.RowsAffected
		raised = db.RowsAffected
	}
	noteOwn(db, written)
	if len(conflicts) > 0 || raised != db.RowsAffected {
		err = conflictOf(db, conflicts)
	}
	if gone > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d of %d %s", gorm.ErrRecordNotFound, gone, len(looked), stmt.Schema.Name))
	}
	return changed, err
}

// identity returns the primary key of a model as text.
func identity(stmt *gorm.Statement, model reflect.Value) string {
	text := ""
	for _, key := range stmt.Schema.PrimaryFields {
		id, _ := key.ValueOf(stmt.Context, model)
		text += identityPart(id)
	}
	return text
}

// identityPart is what the value of one field is in an identity.
func identityPart(id any) string { return textOf(id) + "\x00" }

// restore gives the models their old versions again.
func (v *versioned) restore(db *gorm.DB) {
	for i, model := range v.models {
		if model.CanAddr() {
			_ = db.AddError(v.field.Set(db.Statement.Context, model, v.loaded[i]))
		}
	}
}

package lockgorm

import (
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// parentSetting is the statement that is under way, which GORM hands on to those of its
// associations.
const parentSetting = "lockstep:parent"

// checkCreate refuses a create that may change existing rows, whose versions an upsert
// can't compare: Save of a slice, OnConflict with updates, and the associations that
// GORM saves with a model. There it makes an upsert of new records a plain INSERT.
func checkCreate(db *gorm.DB) {
	stmt := db.Statement
	parent, handedOn := stmt.Settings.Load(parentSetting)
	association := handedOn && parent != stmt
	stmt.Settings.Store(parentSetting, stmt)
	v, err := createdOf(db)
	if err != nil {
		_ = db.AddError(err)
	}
	if err != nil || v == nil || !upserts(stmt) {
		return
	}
	isNew := !slices.ContainsFunc(v.loaded, func(version Version) bool { return version > 0 })
	switch {
	case association && isNew:
		delete(stmt.Clauses, clause.OnConflict{}.Name())
	case association:
		_ = db.AddError(fmt.Errorf("%w: %s: an association is saved by an upsert, which can't compare: leave it out by Omit, and save the loaded models by themselves", ErrVersion, stmt.Schema.Name))
	default:
		_ = db.AddError(fmt.Errorf("%w: %s: an upsert can't compare: create new models by Create, and save loaded ones one by one", ErrVersion, stmt.Schema.Name))
	}
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
	v := &versioned{by: db.Statement, field: field}
	v.collect(db.Statement, reflect.ValueOf(db.Statement.Dest))
	return v, nil
}

// upserts tells whether a create updates the rows that are there.
func upserts(stmt *gorm.Statement) bool {
	conflict, ok := onConflict(stmt)
	return ok && !conflict.DoNothing
}

func onConflict(stmt *gorm.Statement) (clause.OnConflict, bool) {
	conflict, ok := stmt.Clauses[clause.OnConflict{}.Name()].Expression.(clause.OnConflict)
	return conflict, ok
}

// firstVersion returns a version that nobody has seen, also not of a row that had the
// same primary key before, or would have got it.
func firstVersion() Version { return Version(beforeFirst + newStep()) }

// firstVersions gives new models their first version. Where GORM leaves out what is
// there already, nobody knows which rows these models have: they must be loaded first.
func firstVersions(db *gorm.DB) {
	v, err := createdOf(db)
	if err != nil {
		_ = db.AddError(err)
	}
	if err != nil || v == nil {
		return
	}
	_, v.putBack = onConflict(db.Statement)
	db.Statement.Settings.Store(versionedSetting, v)
	for i, model := range v.models {
		if v.loaded[i] == 0 && model.CanAddr() {
			_ = db.AddError(v.field.Set(db.Statement.Context, model, firstVersion()))
		}
	}
	var maps []map[string]any
	switch values := db.Statement.Dest.(type) {
	case map[string]any:
		maps = []map[string]any{values}
	case *map[string]any:
		maps = []map[string]any{*values}
	case []map[string]any:
		maps = values
	case *[]map[string]any:
		maps = *values
	}
	for _, values := range maps {
		_, byName := values[v.field.Name]
		if _, byColumn := values[v.field.DBName]; !byName && !byColumn {
			values[v.field.DBName] = firstVersion()
			v.maps = append(v.maps, values)
		}
	}
}

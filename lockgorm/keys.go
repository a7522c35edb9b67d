package lockgorm

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/txlock"
)

// lockChange locks the records that an update or delete changes, and confines it to their rows:
// those of its models, those that its conditions name, or else those that they select.
func (p *Plugin) lockChange(db *gorm.DB) (keys []txlock.Key, err error) {
	stmt := db.Statement
	if stmt.SQL.Len() > 0 || !isLocker(stmt) {
		return nil, nil
	}
	if why := whyNotSet(stmt); why != "" {
		return nil, unidentified(stmt, why)
	}
	given, err := modelsOf(stmt, changedOf(stmt))
	if err != nil {
		return nil, err
	}
	identified := 0
	for _, model := range given {
		if hasID(stmt, model) {
			identified++
		}
	}
	changed, known := given, identified > 0 && identified == len(given)
	switch {
	case known:
		if why := whyUnconfined(stmt); why != "" {
			return nil, unidentified(stmt, why)
		}
	case identified > 0:
		return nil, unidentified(stmt, "a model of it has no primary key")
	case isTagged(stmt.Schema):
		changed, known = modelsByID(stmt)
	}
	noteLocked(stmt, given)
	if !known {
		rows, find, err := p.lockRows(db)
		if err == nil {
			confine(stmt, rows).selected = find
			err = p.hint(db, rows)
		}
		return nil, err
	}
	if err := enterOwn(db); err != nil {
		return nil, err
	}
	f := confine(stmt, changed)
	if identified == 0 {
		f.named = clause.Where{Exprs: slices.Clone(whereOf(stmt).Exprs)}
	}
	return p.keysOfAll(db, changed, false)
}

// keysOfAll asks models for their keys.
func (p *Plugin) keysOfAll(db *gorm.DB, models []reflect.Value, create bool) (all []txlock.Key, err error) {
	for _, model := range models {
		keys, _, err := p.keysOfModel(db, model, create)
		if err != nil {
			return nil, err
		}
		all = append(all, keys...)
	}
	return all, nil
}

// confine confines an update or delete to the rows of models.
func confine(stmt *gorm.Statement, models []reflect.Value) *rowFilter {
	f := filterOf(stmt)
	f.rows, f.strict = append(f.rows, rowsOf(stmt, models, nil, nil)), true
	f.ids = make(map[string]any)
	for _, key := range stmt.Schema.PrimaryFields {
		f.ids[key.DBName] = nil
		if len(models) == 1 {
			f.ids[key.DBName], _ = key.ValueOf(stmt.Context, models[0])
		}
	}
	f.install()
	return f
}

// keysOfCreate asks the models of a create for their keys. If the database makes the
// primary key of a record, nobody can name the record before COMMIT, and so it needs no
// lock.
func (p *Plugin) keysOfCreate(db *gorm.DB) (all []txlock.Key, err error) {
	stmt := db.Statement
	if stmt.SQL.Len() > 0 || !isLocker(stmt) {
		return nil, nil
	}
	models, err := modelsOf(stmt, stmt.ReflectValue)
	if err == nil {
		all, err = p.keysOfAll(db, models, true)
	}
	if err == nil {
		stateOf(stmt).upsert = true
		noteLocked(stmt, models)
	}
	return all, err
}

// keysOfSaved asks the models for their keys that a hook has added, or to which it has given a
// primary key, or another one. It refuses those that still have none and would be written with
// the zero value or a constant, which is a primary key like others.
func (p *Plugin) keysOfSaved(db *gorm.DB) (all []txlock.Key, err error) {
	stmt := db.Statement
	ids := stateOf(stmt).ids
	if ids == nil {
		return nil, nil
	}
	models, err := modelsOf(stmt, stmt.ReflectValue)
	if err != nil {
		return nil, err
	}
	for _, model := range models {
		known, zero := ids[identity(stmt, model)], writesZero(stmt, model)
		if known && !zero {
			continue
		}
		keys, unnamed, err := p.keysOfModel(db, model, true)
		switch {
		case err != nil:
			return nil, err
		case zero && unnamed:
			return nil, fmt.Errorf("%w: a model of %s has no primary key, and the zero value, or its default, would be written as one: give it a key, or declare what the database makes by gorm:\"default:(...)\"", txlock.ErrInvalidKey, stmt.Table)
		case !known:
			all = append(all, keys...)
		}
	}
	return all, nil
}

// keysOfModel asks a model for its keys, none for NoLock. Those of the zero identifier are left out
// of a create whose model has no primary key yet: unnamed tells that.
func (p *Plugin) keysOfModel(db *gorm.DB, model reflect.Value, create bool) (keys []txlock.Key, unnamed bool, err error) {
	if locker, ok := model.Addr().Interface().(Locker); ok {
		keys, err = locker.LockKeys(db.Session(&gorm.Session{NewDB: true}))
	} else {
		keys, err = p.keyOfTag(db, model)
	}
	switch unsaved := create && !hasID(db.Statement, model); {
	case err != nil || isNoLock(keys):
		return nil, false, err
	case unsaved:
		named := slices.DeleteFunc(slices.Clone(keys), isOfUnsaved)
		return named, len(named) < len(keys), nil
	case len(keys) == 0:
		return nil, false, fmt.Errorf("%w: LockKeys of %s names no key: return lockgorm.NoLock where none is needed", txlock.ErrInvalidKey, db.Statement.Schema.Name)
	}
	return keys, false, nil
}

// isOfUnsaved reports whether this is a family's key of the zero identifier.
func isOfUnsaved(key txlock.Key) bool {
	key, _ = inner.Asked(key)
	return strings.HasSuffix(key.String(), ":") && key.Validate() != nil
}

// isLocker reports whether the model of a statement names its keys.
func isLocker(stmt *gorm.Statement) bool {
	return stmt.Schema != nil && isLockerModel(stmt.Schema)
}

// isLockerModel reports whether a model is a Locker, or has the tag instead of that.
func isLockerModel(model *schema.Schema) bool { return hasMethod(model) || isTagged(model) }

// isTagged reports whether the tag of a model counts. GORM gives the columns of its own join
// tables, which are types without a name, the tags of the primary keys that they refer to.
func isTagged(model *schema.Schema) bool {
	isJoin := model.ModelType.Name() == "" && len(model.PrimaryFields) > 1
	return !hasMethod(model) && !isJoin && len(tagsOf(model.ModelType)) > 0
}

func hasMethod(model *schema.Schema) bool {
	return reflect.PointerTo(model.ModelType).Implements(reflect.TypeFor[Locker]())
}

// unidentified returns the error of a change to records that no model stands for.
func unidentified(stmt *gorm.Statement, why string) error {
	return fmt.Errorf("%w: this statement on %s may change other records than its models, since %s: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, why)
}

// changedOf returns the models of an update or delete. For Model(&order).Delete(&Order{})
// that is order, whose primary key GORM makes a condition.
func changedOf(stmt *gorm.Statement) reflect.Value {
	identified := func(value reflect.Value) bool {
		return slices.ContainsFunc(modelsIn(value, stmt.Schema), func(model reflect.Value) bool { return hasID(stmt, model) })
	}
	value, model := stmt.ReflectValue, reflect.ValueOf(stmt.Model)
	if stmt.Schema != nil && value.CanAddr() && !identified(value) && identified(model) {
		return reflect.Indirect(model)
	}
	return value
}

// modelsOf returns the addressable models of a statement's value: one, those of a batch, or none
// for a nil pointer.
func modelsOf(stmt *gorm.Statement, v reflect.Value) (models []reflect.Value, err error) {
	values := []reflect.Value{v}
	switch v.Kind() {
	case reflect.Invalid:
		return nil, nil
	case reflect.Slice, reflect.Array:
		values = nil
		for i := range v.Len() {
			values = append(values, v.Index(i))
		}
	}
	for _, value := range values {
		model, err := modelOf(stmt, value)
		if err != nil {
			return nil, err
		}
		models = append(models, model)
	}
	return models, nil
}

// modelOf returns the model as a value that LockKeys can be called on.
func modelOf(stmt *gorm.Statement, v reflect.Value) (reflect.Value, error) {
	v = reflect.Indirect(v)
	if v.IsValid() && v.Type() == reflect.TypeFor[map[string]any]() && isTagged(stmt.Schema) {
		return modelOfMap(stmt, v.Interface().(map[string]any))
	}
	if !v.IsValid() {
		return v, fmt.Errorf("%w: %w: a model of this statement on %s is nil", txlock.ErrInvalidKey, gorm.ErrInvalidData, stmt.Table)
	}
	if v.Type() != stmt.Schema.ModelType {
		return v, fmt.Errorf("%w: this statement on %s has no model of type %s to name the keys: name them by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, stmt.Schema.Name)
	}
	if !v.CanAddr() {
		model := reflect.New(v.Type()).Elem()
		model.Set(v)
		v = model
	}
	return v, nil
}

// modelOfMap returns a model with the primary key that the values of a create have: a tag
// needs no more.
func modelOfMap(stmt *gorm.Statement, values map[string]any) (reflect.Value, error) {
	model := reflect.New(stmt.Schema.ModelType).Elem()
	for name, value := range values {
		field := stmt.Schema.LookUpField(name)
		for _, key := range stmt.Schema.PrimaryFields {
			if field == nil && names(name, key.DBName) {
				return model, fmt.Errorf("%w: the values for %s name the primary key %q: write %q", txlock.ErrInvalidKey, stmt.Table, name, key.DBName)
			}
		}
		if field == nil || !field.PrimaryKey {
			continue
		}
		if !isValue(value) || field.Set(stmt.Context, model, value) != nil {
			return model, fmt.Errorf("%w: the values for %s have a primary key that is no %v: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, stmt.Table, field.FieldType)
		}
	}
	return model, nil
}

// writesZero reports whether a create of the model writes the zero value of a primary key, or in
// its place the constant that is declared as its default.
func writesZero(stmt *gorm.Statement, model reflect.Value) bool {
	return slices.ContainsFunc(stmt.Schema.PrimaryFields, func(field *schema.Field) bool {
		_, zero := field.ValueOf(stmt.Context, model)
		return zero && (!field.HasDefaultValue || field.DefaultValueInterface != nil)
	})
}

// hasID reports whether every part of the model's primary key is set.
func hasID(stmt *gorm.Statement, model reflect.Value) bool {
	for _, field := range stmt.Schema.PrimaryFields {
		if _, zero := field.ValueOf(stmt.Context, model); zero {
			return false
		}
	}
	return len(stmt.Schema.PrimaryFields) > 0
}

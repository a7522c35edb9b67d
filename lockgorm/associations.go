package lockgorm

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// checkReplace refuses Association.Replace of children that have a version,
// before it saves the new ones. Afterwards GORM unlinks the others by a where clause,
// which is refused, and nothing would undo the first half. The statement is the same as
// that of Append: only the stack tells them apart, and under FullSaveAssociations not
// even that tells which association it is.
func checkReplace(db *gorm.DB) {
	stmt := db.Statement
	if db.Error != nil || stmt.Schema == nil || isSet(stmt, anyVersionOption) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(stmt.Schema.Relationships.Relations)) {
		if len(stmt.Selects) > 0 && !slices.Contains(stmt.Selects, name) {
			continue
		}
		children := changedBy(stmt.Schema.Relationships.Relations[name])
		if children == nil || !slices.ContainsFunc(children.Fields, isVersion) || !isReplace() {
			continue
		}
		what := children.Name
		if len(stmt.Selects) == 0 { // FullSaveAssociations
			what, name = "an association of "+stmt.Schema.Name, "..."
		}
		_ = db.AddError(fmt.Errorf("%w: %s: Replace changes those that it leaves out by a where clause: save them one by one, or add Clauses(lockgorm.AnyVersion) and Session(&gorm.Session{}) before Association(%q)", ErrVersion, what, name))
		return
	}
}

// changedBy returns the model whose rows change when an association is unlinked or
// deleted, or nil.
func changedBy(relation *schema.Relationship) *schema.Schema {
	switch relation.Type {
	case schema.HasOne, schema.HasMany:
		return relation.FieldSchema
	case schema.Many2Many:
		return relation.JoinTable
	}
	return nil
}

// checkSelected refuses a delete that also deletes associations with versions, as
// Select("Items").Delete(&order) does, before anything is sent. GORM deletes them by
// where clauses of new statements, and passes no clause on to these.
func checkSelected(db *gorm.DB) {
	stmt := db.Statement
	if db.Error != nil || stmt.Schema == nil {
		return
	}
	columns, restricted := stmt.SelectAndOmitColumns(true, false)
	for name, relation := range stmt.Schema.Relationships.Relations {
		children := changedBy(relation)
		if !restricted || !columns[name] || children == nil {
			continue
		}
		none := func(e clause.Expression) bool { in, ok := e.(clause.IN); return ok && len(in.Values) == 0 }
		if relation.Type != schema.Many2Many && slices.ContainsFunc(relation.ToQueryConditions(stmt.Context, stmt.ReflectValue), none) {
			continue
		}
		if slices.ContainsFunc(children.Fields, isVersion) {
			_ = db.AddError(fmt.Errorf("%w: %s: Select deletes the association by a where clause: delete its models by themselves, before", ErrVersion, children.Name))
		}
	}
}

// isReplace tells by the stack whether the statement saves the new models of
// Association.Replace. Statements of hooks inside of it don't, nor does Clear.
func isReplace() bool {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	path := []string{"gorm.(*processor).Execute", "gorm.(*DB).Updates", "gorm.(*Association).saveAssociation", "gorm.(*Association).Replace"}
	for found := 0; ; {
		frame, more := frames.Next()
		switch {
		case strings.HasSuffix(frame.Function, path[found]):
			if found++; found == len(path) {
				return true
			}
		case found > 0:
			return false
		}
		if !more {
			return false
		}
	}
}

// checkSaved refuses a create or update with which GORM would save loaded associations
// that have a version, before anything is sent. If hooks load such associations later,
// their own statement refuses them.
func checkSaved(db *gorm.DB, value any, create bool) {
	stmt := db.Statement
	if db.Error != nil || stmt.Schema == nil || stmt.SQL.Len() > 0 {
		return
	}
	s := saving{full: db.FullSaveAssociations, keep: isSet(stmt, keepVersionOption), seen: make(map[any]bool)}
	_ = db.AddError(s.with(stmt, modelsIn(reflect.ValueOf(value), stmt.Schema), create))
}

// notSaved returns the error of an association that must not be saved with its model.
func notSaved(model *schema.Schema) error {
	return fmt.Errorf("%w: %s: an association is saved by an upsert, which can't compare: leave it out by Omit, and save the loaded models by themselves", ErrVersion, model.Name)
}

// saving walks through all that GORM saves with models.
type saving struct {
	full, keep bool
	seen       map[any]bool
}

// with checks what is saved with the models of a statement, in GORM's order.
func (s *saving) with(stmt *gorm.Statement, models []reflect.Value, create bool) error {
	relations := &stmt.Schema.Relationships
	if len(models) == 0 || len(relations.Relations) == 0 {
		return nil
	}
	columns, restricted := stmt.SelectAndOmitColumns(create, !create)
	for _, relation := range slices.Concat(relations.BelongsTo, relations.HasOne, relations.HasMany, relations.Many2Many) {
		chosen, said := columns[relation.Name]
		if said && !chosen || !said && restricted {
			continue
		}
		if chosen, said = columns[relation.Name+".*"]; relation.Type == schema.Many2Many && said && !chosen {
			continue
		}
		children, err := s.children(stmt.Context, relation, models)
		if err != nil {
			return err
		}
		if err := s.with(statementOf(stmt, relation, columns, restricted), children, true); err != nil {
			return err
		}
	}
	return nil
}

// children returns the models of an association that the walk hasn't seen before.
func (s *saving) children(ctx context.Context, relation *schema.Relationship, models []reflect.Value) (children []reflect.Value, err error) {
	for _, model := range models {
		if _, zero := relation.Field.ValueOf(ctx, model); !zero {
			children = append(children, modelsIn(relation.Field.ReflectValueOf(ctx, model), relation.FieldSchema)...)
		}
	}
	children = slices.DeleteFunc(children, func(child reflect.Value) bool {
		if !child.CanAddr() {
			return false
		}
		at := child.Addr().Interface()
		before := s.seen[at]
		s.seen[at] = true
		return before
	})
	version, err := versionOf(relation.FieldSchema)
	if version == nil || err != nil {
		return children, err
	}
	loaded := func(child reflect.Value) bool {
		_, zero := version.ValueOf(ctx, child)
		return !zero
	}
	updates := s.full || relation.Type == schema.HasOne || relation.Type == schema.HasMany
	if updates && !s.keep && slices.ContainsFunc(children, loaded) {
		return nil, notSaved(relation.FieldSchema)
	}
	return children, nil
}

// statementOf returns the statement by which GORM saves an association, as far as it
// decides what else is saved.
func statementOf(stmt *gorm.Statement, relation *schema.Relationship, columns map[string]bool, restricted bool) *gorm.Statement {
	child := &gorm.Statement{DB: stmt.DB, Schema: relation.FieldSchema, Table: relation.FieldSchema.Table, Context: stmt.Context}
	for name, chosen := range columns {
		if name, ok := strings.CutPrefix(name, relation.Name+"."); ok && chosen {
			child.Selects = append(child.Selects, name)
		} else if ok {
			child.Omits = append(child.Omits, name)
		}
	}
	if restricted && len(child.Selects)+len(child.Omits) == 0 {
		child.Omits = []string{clause.Associations}
	}
	return child
}

// modelsIn returns the models of this type in a value: the value itself, or the elements
// of slices.
func modelsIn(value reflect.Value, of *schema.Schema) (models []reflect.Value) {
	for value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface {
		value = value.Elem()
	}
	switch {
	case !value.IsValid():
	case value.Kind() == reflect.Slice, value.Kind() == reflect.Array:
		for i := range value.Len() {
			models = append(models, modelsIn(value.Index(i), of)...)
		}
	case value.Type() == of.ModelType:
		models = append(models, value)
	}
	return models
}

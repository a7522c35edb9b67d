package lockgorm

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// checkSaved refuses a create or update with which GORM would save loaded associations
// that have a version, before anything is sent. If hooks load such associations later,
// their own statement refuses them.
func checkSaved(db *gorm.DB, value any, create bool) {
	stmt := db.Statement
	if db.Error != nil || stmt.Schema == nil || stmt.SQL.Len() > 0 {
		return
	}
	s := saving{full: db.FullSaveAssociations, keep: isKept(stmt), seen: make(map[any]bool)}
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

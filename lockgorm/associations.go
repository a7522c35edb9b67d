package lockgorm

import (
	"fmt"
	"maps"
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
	if db.Error != nil || stmt.Schema == nil || isAny(stmt) {
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

package lockgorm

import (
	"errors"
	"fmt"
	"reflect"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// Loaded names the loaded model of one update or delete, as db.Model(&order) does, for code
// without such a call: gorm.G and code that gorm.io/gen has generated.
//
//	gorm.G[Order](tx, lockgorm.Loaded(&order)).Update(ctx, "paid", true)
//	q.Order.WithContext(ctx).Clauses(lockgorm.Loaded(&order)).UpdateSimple(q.Order.Paid.Value(true))
//
// So the plugin locks the keys of that model, compares its Version, and changes its row
// only. A create, Exec, a statement on another type and one on another record fail with
// ErrInvalidKey. It needs the plugin: db.Use(lockgorm.New()).
func Loaded(model any) clause.Expression { return option{loadedOption, loaded{model: model}} }

type loaded struct {
	model any
	by    *gorm.Statement // the statement that has used it, nil for none yet
}

// registerLoaded registers what Loaded needs, also on a dialect of Unlocked.
func registerLoaded(db *gorm.DB) error {
	const name, all = "lockstep:set_loaded", "*"
	return errors.Join(db.Callback().Update().Before(all).Register(name, setLoaded), db.Callback().Delete().Before(all).Register(name, setLoaded))
}

// setLoaded makes the model of Loaded that of the statement.
func setLoaded(db *gorm.DB) {
	stmt := db.Statement
	l, ok := optionOf[loaded](stmt, loadedOption)
	if !ok || db.Error != nil || l.by != nil && l.by != stmt { // the statement of an association
		return
	}
	model := reflect.ValueOf(l.model)
	switch {
	case model.Kind() != reflect.Pointer:
		_ = db.AddError(fmt.Errorf("%w: Loaded needs a pointer to a model, got %T", txlock.ErrInvalidKey, l.model))
	case model.IsNil():
		_ = db.AddError(fmt.Errorf("%w: Loaded needs a pointer to a model, this %T is nil", txlock.ErrInvalidKey, l.model))
	case stmt.Schema == nil || model.Elem().Type() != stmt.Schema.ModelType:
		_ = db.AddError(fmt.Errorf("%w: Loaded has a %T, this statement is on %s: give it one loaded model of the statement's type, or name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey, l.model, stmt.Table))
	case !hasID(stmt, model.Elem()):
		_ = db.AddError(fmt.Errorf("%w: Loaded has a %T without its primary key: load it first", txlock.ErrInvalidKey, l.model))
	case namesAnother(stmt, model.Elem()):
		_ = db.AddError(fmt.Errorf("%w: this statement on %s names another record than that of Loaded: leave one of them out", txlock.ErrInvalidKey, stmt.Table))
	default:
		l.by = stmt
		stmt.Settings.Store(loadedOption, l)
		stmt.Model = l.model
	}
}

// refuseLoaded refuses a create or Exec with Loaded, but not the creates of an update's
// associations.
func refuseLoaded(db *gorm.DB) {
	if l, ok := optionOf[loaded](db.Statement, loadedOption); ok && (l.by == nil || l.by == db.Statement) {
		_ = db.AddError(fmt.Errorf("%w: Loaded is for an update or a delete of GORM, this is a create or Exec: name the keys by Clauses(lockgorm.On(...))", txlock.ErrInvalidKey))
	}
}

// namesAnother reports whether a statement has another model than this, and of another
// record.
func namesAnother(stmt *gorm.Statement, model reflect.Value) bool {
	for _, other := range modelsIn(reflect.ValueOf(stmt.Model), stmt.Schema) {
		for _, key := range stmt.Schema.PrimaryFields {
			has, zero := key.ValueOf(stmt.Context, other)
			id, _ := key.ValueOf(stmt.Context, model)
			if !zero && !same(id, has) {
				return true
			}
		}
	}
	return false
}

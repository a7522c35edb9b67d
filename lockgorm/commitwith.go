package lockgorm

import (
	"fmt"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
)

// CommitWith makes a write the last statement of its transaction: it commits if it changes the
// given number of rows, in one round trip, as Scope.CommitWith does:
//
//	tx.Model(&product).Clauses(lockgorm.CommitWith(1)).Update("stock", product.Stock-1)
//
// The write fails with txlock.ErrRows if it changes another number, and the transaction stays
// open. It fails with txlock.ErrInvalidOption, and nothing is sent, if GORM would send more after
// it: for models with hooks that run after the write, unless the session has SkipHooks; for those
// with associations, unless these are left out by Omit(clause.Associations); for those with a
// Version; for slices, which may be batches; and under Guarded. A create whose id GORM requests
// with RETURNING, as it does on MariaDB, can't commit. It needs the plugin:
// db.Use(lockgorm.New()).
func CommitWith(rows int64) clause.Expression { return option{commitWithOption, rows} }

// last marks the statement as the last, unless more follows it.
func last(db *gorm.DB) {
	rows, ok := optionOf[int64](db.Statement, commitWithOption)
	if !ok || db.Error != nil || db.DryRun {
		return
	}
	if why := followed(db.Statement, rows); why != "" {
		_ = db.AddError(fmt.Errorf("%w: CommitWith of a write behind which GORM sends more: %s", txlock.ErrInvalidOption, why))
		return
	}
	scope, err := Join(db)
	if err != nil {
		_ = db.AddError(err)
		return
	}
	db.Statement.Context = scope.CommitWith(db.Statement.Context, rows)
}

// followed says what follows the statement, or "".
func followed(stmt *gorm.Statement, rows int64) string {
	if _, guarded := leaseOf(stmt.DB); guarded {
		return "Guard checks the lease"
	}
	if k := stmt.ReflectValue.Kind(); k == reflect.Slice || k == reflect.Array {
		return "a slice may be one of several batches: let a write of one record commit, or an Exec"
	}
	model := stmt.Schema
	if model == nil {
		return ""
	}
	if version, err := versionOf(model); version != nil || err != nil {
		return "the model's Version is compared"
	}
	creates, updates := slices.Contains(stmt.BuildClauses, "INSERT"), slices.Contains(stmt.BuildClauses, "UPDATE")
	hooks := isDelete(stmt) && model.AfterDelete || creates && model.AfterCreate || updates && model.AfterUpdate || (creates || updates) && model.AfterSave
	switch {
	case updates && slices.Contains(stmt.Selects, "*") && rows < 1:
		return "Save creates the record where its UPDATE changes no row: give CommitWith the number of rows"
	case (creates || updates) && len(model.Relationships.Relations) > 0 && !slices.Contains(stmt.Omits, clause.Associations):
		return "the model has associations: use Omit(clause.Associations), or leave CommitWith out"
	case hooks && !stmt.SkipHooks:
		return "the model has hooks that run after it: use Session with SkipHooks, or leave CommitWith out"
	}
	return ""
}

// notLast refuses CommitWith for a statement that isn't a write.
func notLast(db *gorm.DB) {
	if _, ok := optionOf[int64](db.Statement, commitWithOption); ok {
		_ = db.AddError(fmt.Errorf("%w: CommitWith is for creates, updates, deletes and Exec", txlock.ErrInvalidOption))
	}
}

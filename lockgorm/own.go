package lockgorm

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"

	"gorm.io/gorm"
)

// own is the transaction that a statement has for itself, which ends with it.
type own struct {
	pool    gorm.ConnPool    // on which it is begun
	tx      gorm.TxCommitter // nil for one that GORM has begun, and ends
	cleanup runtime.Cleanup
}

const (
	ownSetting = "lockstep:own"
	gormsOwn   = "gorm:started_transaction" // how GORM marks a statement for which it has begun one
)

// ownOf returns what is known of the own transaction of this very statement, or nil.
func ownOf(stmt *gorm.Statement) *own { return noteOf[*own](stmt, ownSetting) }

// hasOwn tells whether the transaction of a statement ends with it.
func hasOwn(db *gorm.DB) bool {
	_, gorms := db.InstanceGet(gormsOwn)
	o := ownOf(db.Statement)
	return gorms || o != nil && o.tx != nil
}

// notePool notes on what GORM begins the transaction of an update or delete.
func notePool(db *gorm.DB) {
	if namesKeys(db.Statement) && !db.DryRun && !db.SkipDefaultTransaction { // where it has no place, see beginOwn
		note(db.Statement, ownSetting, &own{pool: db.Statement.ConnPool})
	}
}

// beginOwn begins a transaction for a write that may need a lock where GORM begins none, under
// SkipDefaultTransaction. endOwn ends it.
func beginOwn(db *gorm.DB, change bool) {
	stmt := db.Statement
	if _, none := transactionOf(db); none == nil || db.Error != nil || db.DryRun || !db.SkipDefaultTransaction || !mayLock(stmt, change) {
		return
	}
	note(stmt, ownSetting, &own{pool: stmt.ConnPool})
	if err := enterOwn(db); !errors.Is(err, gorm.ErrInvalidTransaction) { // otherwise the lock says so
		_ = db.AddError(err)
	}
}

// enterOwn begins a transaction of the statement's own, where it has left one or has none.
func enterOwn(db *gorm.DB) error {
	stmt, o := db.Statement, ownOf(db.Statement)
	if _, in := stmt.ConnPool.(gorm.TxCommitter); in {
		return nil
	}
	tx := db.Begin()
	if tx.Error != nil {
		return tx.Error
	}
	stmt.ConnPool = tx.Statement.ConnPool
	if _, gorms := db.InstanceGet(gormsOwn); gorms {
		return nil
	}
	o.tx = tx.Statement.ConnPool.(gorm.TxCommitter)
	o.cleanup = runtime.AddCleanup(stmt, func(tx gorm.TxCommitter) { _ = tx.Rollback() }, o.tx) // if a hook panics
	return nil
}

// leaveOwn ends the statement's own transaction, in which nothing was done.
func leaveOwn(db *gorm.DB) {
	o := ownOf(db.Statement)
	if tx, in := db.Statement.ConnPool.(gorm.TxCommitter); in {
		_ = tx.Rollback() // the server may have done so
		o.cleanup.Stop()
		db.Statement.ConnPool, o.tx = o.pool, nil
	}
}

// settleOwn lets GORM end nothing, if a statement has left its own transaction for good.
func settleOwn(db *gorm.DB) {
	if _, in := db.Statement.ConnPool.(gorm.TxCommitter); !in {
		db.Statement.Settings.Delete(fmt.Sprintf("%p", db.Statement) + gormsOwn) // as InstanceSet has named it
	}
}

// mayLock tells whether a write may have keys to lock.
func mayLock(stmt *gorm.Statement, change bool) bool {
	if named, ok := stmt.Settings.Load(onSetting); ok {
		return !isNoLock(named.(on).keys)
	}
	if !isLocker(stmt) || stmt.SQL.Len() > 0 {
		return false
	}
	models := modelsIn(stmt.ReflectValue, stmt.Schema)
	return change || hasMethod(stmt.Schema) || len(models) == 0 || // else the database makes their keys, which nobody can name yet
		slices.ContainsFunc(models, func(model reflect.Value) bool { return hasID(stmt, model) })
}

// endOwn ends the transaction that enterOwn has begun, as GORM ends its own.
func endOwn(db *gorm.DB) {
	o := ownOf(db.Statement)
	if o == nil {
		return
	}
	db.Statement.Settings.Delete(ownSetting)
	if o.tx == nil {
		return
	}
	end := o.tx.Commit
	if db.Error != nil {
		end = o.tx.Rollback
	}
	if err := end(); db.Error == nil || !errors.Is(err, sql.ErrTxDone) {
		_ = db.AddError(err)
	}
	o.cleanup.Stop()
	db.Statement.ConnPool = o.pool
}

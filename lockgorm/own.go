package lockgorm

import (
	"database/sql"
	"errors"
	"reflect"
	"runtime"
	"slices"

	"gorm.io/gorm"
)

// own is the transaction that a statement has for itself where GORM begins none, under
// SkipDefaultTransaction.
type own struct {
	by      *gorm.Statement
	pool    gorm.ConnPool // on which it was begun
	tx      gorm.TxCommitter
	cleanup runtime.Cleanup
}

const ownSetting = "lockstep:own"

// ownOf returns the own transaction of this very statement, or nil.
func ownOf(stmt *gorm.Statement) *own {
	noted, _ := stmt.Settings.Load(ownSetting)
	if o, ok := noted.(*own); ok && o.by == stmt {
		return o
	}
	return nil
}

// beginOwn begins a transaction for a write that may need a lock where GORM begins none. endOwn
// ends it.
func beginOwn(db *gorm.DB, change bool) {
	stmt := db.Statement
	if _, none := transactionOf(db); none == nil || db.Error != nil || db.DryRun || !db.SkipDefaultTransaction || !mayLock(stmt, change) {
		return
	}
	tx := db.Begin()
	if tx.Error != nil {
		if !errors.Is(tx.Error, gorm.ErrInvalidTransaction) { // otherwise the lock says so
			_ = db.AddError(tx.Error)
		}
		return
	}
	o := &own{by: stmt, pool: stmt.ConnPool, tx: tx.Statement.ConnPool.(gorm.TxCommitter)}
	o.cleanup = runtime.AddCleanup(stmt, func(tx gorm.TxCommitter) { _ = tx.Rollback() }, o.tx) // if a hook panics
	stmt.ConnPool = tx.Statement.ConnPool
	stmt.Settings.Store(ownSetting, o)
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

// endOwn ends the transaction of beginOwn, as GORM ends its own.
func endOwn(db *gorm.DB) {
	o := ownOf(db.Statement)
	if o == nil {
		return
	}
	db.Statement.Settings.Delete(ownSetting)
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

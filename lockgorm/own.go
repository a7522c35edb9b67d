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

// own is the transaction that a statement has for itself, where GORM has begun none: under
// SkipDefaultTransaction, or after leaveOwn.
type own struct {
	by      *gorm.Statement
	pool    gorm.ConnPool // on which it was begun, or is to be
	tx      gorm.TxCommitter
	cleanup runtime.Cleanup
}

const (
	ownSetting = "lockstep:own"
	gormsOwn   = "gorm:started_transaction" // how GORM marks a statement for which it has begun one
)

// notePool notes the pool, the connection or the transaction of a write of a Locker, before GORM
// begins a transaction on it.
func notePool(db *gorm.DB) {
	if _, on := db.Statement.Settings.Load(onSetting); on || isLocker(db.Statement) {
		db.Statement.Settings.Store(ownSetting, &own{by: db.Statement, pool: db.Statement.ConnPool})
	}
}

// ownOf returns what is known of the transaction of this very statement, or nil.
func ownOf(stmt *gorm.Statement) *own {
	noted, _ := stmt.Settings.Load(ownSetting)
	if o, ok := noted.(*own); ok && o.by == stmt {
		return o
	}
	return nil
}

// hasOwn tells whether the transaction of a statement ends with it.
func hasOwn(db *gorm.DB) bool {
	_, gorms := db.InstanceGet(gormsOwn)
	o := ownOf(db.Statement)
	return gorms || o != nil && o.tx != nil
}

// enterSkipped begins a transaction for a write that may need a lock where GORM begins none.
func enterSkipped(db *gorm.DB, change bool) {
	stmt := db.Statement
	if db.Error != nil || db.DryRun || !db.SkipDefaultTransaction || ownOf(stmt) == nil {
		return
	}
	if named, ok := stmt.Settings.Load(onSetting); ok {
		if isNoLock(named.(on).keys) {
			return
		}
	} else if !change && !hasMethod(stmt.Schema) {
		models := modelsIn(stmt.ReflectValue, stmt.Schema)
		if len(models) > 0 && !slices.ContainsFunc(models, func(model reflect.Value) bool { return hasID(stmt, model) }) {
			return // the database makes their keys, which nobody can name yet
		}
	}
	_ = db.AddError(enterOwn(db))
}

// enterOwn begins a transaction of the statement's own, which endOwn ends, unless it is in one.
func enterOwn(db *gorm.DB) error {
	o := ownOf(db.Statement)
	if _, in := db.Statement.ConnPool.(gorm.TxCommitter); in || o == nil {
		return nil
	}
	tx := db.Begin()
	if errors.Is(tx.Error, gorm.ErrInvalidTransaction) {
		return nil // the lock will say so
	}
	if tx.Error != nil {
		return tx.Error
	}
	db.Statement.ConnPool = tx.Statement.ConnPool
	o.tx = tx.Statement.ConnPool.(gorm.TxCommitter)
	o.cleanup = runtime.AddCleanup(db.Statement, func(tx gorm.TxCommitter) { _ = tx.Rollback() }, o.tx) // if a hook panics
	return nil
}

// leaveOwn ends the statement's own transaction, in which nothing was done. GORM isn't to end the
// next one.
func leaveOwn(db *gorm.DB) {
	if tx, ok := db.Statement.ConnPool.(gorm.TxCommitter); ok {
		_ = tx.Rollback() // the server may have done so
		o := ownOf(db.Statement)
		db.Statement.ConnPool, o.tx = o.pool, nil
		o.cleanup.Stop()
		db.Statement.Settings.Delete(fmt.Sprintf("%p", db.Statement) + gormsOwn) // as InstanceSet has named it
	}
}

// endOwn ends the transaction of enterOwn, as GORM ends its own.
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

package lockgorm

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
)

// stmtState is what the plugin knows about one create, update or delete while GORM runs it.
type stmtState struct {
	of       *gorm.Statement
	outer    *stmtState      // that of the model whose association GORM saves by it, with its settings, or of a hook's write
	own      *own            // nil if its transaction doesn't end with it, or is GORM's
	ids      map[string]bool // the primary keys of its models before its hooks, nil if these are not locked
	upsert   bool            // if it is an upsert, it is confined to its models
	filter   *rowFilter      // nil if it is confined to no rows, and raises no version
	versions *versioned      // nil if its models have no Version
	undo     []func()        // restores the statement, since a *gorm.DB may be used for another one
	options  map[string]any  // those for this very statement
	inner    []*stmtState    // those of the writes that have succeeded inside of this one
}

// stateKey is the key of a stmtState in the settings of its statement.
type stateKey struct{}

// beginWrite makes the state of a write, takes the options that its hooks and associations must not
// have, and refuses foreign clauses.
func beginWrite(db *gorm.DB) {
	stmt := db.Statement
	s := &stmtState{of: stmt}
	if before, ok := stmt.Settings.Load(stateKey{}); ok && before.(*stmtState).of != stmt {
		s.outer = before.(*stmtState)
	}
	for _, name := range []string{anyVersionOption, commitWithOption} {
		if it, ok := stmt.Settings.LoadAndDelete(name); ok {
			if s.options == nil {
				s.options = make(map[string]any)
			}
			s.options[name] = it
			s.atEnd(func() { stmt.Settings.Store(name, it) })
		}
	}
	stmt.Settings.Store(stateKey{}, s)
	checkClauses(db)
}

// writeOf returns the state of this very statement, nil for none.
func writeOf(stmt *gorm.Statement) *stmtState {
	known, _ := stmt.Settings.Load(stateKey{})
	if s, ok := known.(*stmtState); ok && s.of == stmt {
		return s
	}
	return nil
}

// stateOf does what writeOf does. Of a query it knows nothing.
func stateOf(stmt *gorm.Statement) *stmtState {
	if s := writeOf(stmt); s != nil {
		return s
	}
	return new(stmtState)
}

// isInner reports whether a write has the settings of another one, inside of which it is sent.
func isInner(stmt *gorm.Statement) bool { return stateOf(stmt).outer != nil }

// atEnd calls undo when the write is over.
func (s *stmtState) atEnd(undo func()) { s.undo = append(s.undo, undo) }

// endWrite restores the statement of a write, and its models if it has failed, at its COMMIT at the
// latest.
func endWrite(db *gorm.DB) {
	endOwn(db) // whose COMMIT may fail
	s := stateOf(db.Statement)
	db.Statement.Settings.Delete(stateKey{})
	for _, undo := range s.undo {
		undo()
	}
	if db.Error != nil || db.DryRun {
		s.restore(db)
		return
	}
	if s.versions != nil && s.versions.putBack {
		s.versions.restore(db)
	}
	if s.outer != nil {
		s.outer.inner = append(s.outer.inner, s)
	}
}

// restore gives the models of a write, and of those inside of it, their old versions again.
func (s *stmtState) restore(db *gorm.DB) {
	if s.versions != nil {
		s.versions.restore(db)
	}
	for _, inner := range s.inner {
		inner.restore(db)
	}
}

// own is the transaction that a statement has for itself, which ends with it.
type own struct {
	pool    gorm.ConnPool    // on which it is begun
	tx      gorm.TxCommitter // nil while it has not begun
	cleanup runtime.Cleanup
}

const gormsOwn = "gorm:started_transaction" // how GORM marks a statement whose transaction it ends

// hasOwn reports whether the transaction of a statement ends with it.
func hasOwn(db *gorm.DB) bool {
	_, gorms := db.InstanceGet(gormsOwn)
	return gorms || stateOf(db.Statement).own != nil
}

// planOwn notes that a write which may need a lock has a transaction of its own, if the program
// has begun none. GORM would begin it behind the locks of enterOwn's, or not at all.
func planOwn(db *gorm.DB, change bool) {
	if db.Error != nil || db.DryRun || !mayLock(db.Statement, change) {
		return
	}
	if _, none := transactionOf(db); none != nil {
		stateOf(db.Statement).own = &own{pool: db.Statement.ConnPool}
	}
}

// enterOwn begins the transaction of a statement's own, if it has one that has not begun.
func enterOwn(db *gorm.DB) error {
	stmt, o := db.Statement, stateOf(db.Statement).own
	if o == nil || o.tx != nil {
		return nil
	}
	tx := db.Begin()
	if tx.Error != nil {
		if errors.Is(tx.Error, gorm.ErrInvalidTransaction) {
			return nil // the lock says so
		}
		return tx.Error
	}
	stmt.ConnPool, o.tx = tx.Statement.ConnPool, tx.Statement.ConnPool.(gorm.TxCommitter)
	o.cleanup = runtime.AddCleanup(stmt, func(tx gorm.TxCommitter) { _ = tx.Rollback() }, o.tx) // if a hook panics
	if !db.SkipDefaultTransaction {
		db.InstanceSet(gormsOwn, true)
	}
	return nil
}

// leaveOwn ends the statement's own transaction, in which nothing was done but locking.
func leaveOwn(db *gorm.DB) {
	stmt, o := db.Statement, stateOf(db.Statement).own
	if o.tx != nil {
		_ = o.tx.Rollback() // the server may have done so
		o.cleanup.Stop()
		stmt.ConnPool, o.tx = o.pool, nil
		stmt.Settings.Delete(fmt.Sprintf("%p", stmt) + gormsOwn) // as InstanceSet has named it
	}
}

// mayLock reports whether a write may have keys to lock.
func mayLock(stmt *gorm.Statement, change bool) bool {
	if keys, ok := optionOf[[]txlock.Key](stmt, onOption); ok && (!isNoLock(keys) || !namesKeys(stmt)) {
		return !isNoLock(keys)
	}
	if !isLocker(stmt) || stmt.SQL.Len() > 0 {
		return false
	}
	models := modelsIn(stmt.ReflectValue, stmt.Schema)
	return change || hasMethod(stmt.Schema) || len(models) == 0 || // else the database makes their keys, which nobody can name yet
		slices.ContainsFunc(models, func(model reflect.Value) bool { return hasID(stmt, model) })
}

// endOwn ends the transaction that enterOwn has begun where GORM doesn't, as GORM ends its own.
func endOwn(db *gorm.DB) {
	o := stateOf(db.Statement).own
	if o == nil {
		return
	}
	o.cleanup.Stop()
	if o.tx == nil || !db.SkipDefaultTransaction {
		return
	}
	end := o.tx.Commit
	if db.Error != nil {
		end = o.tx.Rollback
	}
	if err := end(); db.Error == nil || !errors.Is(err, sql.ErrTxDone) {
		_ = db.AddError(err)
	}
	db.Statement.ConnPool = o.pool
}

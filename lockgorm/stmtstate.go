package lockgorm

import "gorm.io/gorm"

// stmtState is what the plugin knows about one create, update or delete while GORM runs it.
type stmtState struct {
	of          *gorm.Statement
	association bool            // GORM saves an association by it, and has passed on the settings of the model's write
	own         *own            // nil if its transaction doesn't end with it, or is GORM's
	ids         map[string]bool // the primary keys of its models before its hooks, nil if these are not locked
	upsert      bool            // if it is an upsert, it is confined to its models
	filter      *rowFilter      // nil if no rows are known
	versions    *versioned      // nil if its models have no Version
	undo        []func()        // restores the statement, since a *gorm.DB may be used for another one
}

// stateKey is the key of a stmtState in the settings of its statement.
type stateKey struct{}

// beginWrite makes the state of a write, and refuses foreign clauses.
func beginWrite(db *gorm.DB) {
	stmt := db.Statement
	before, ok := stmt.Settings.Load(stateKey{})
	stmt.Settings.Store(stateKey{}, &stmtState{of: stmt, association: ok && before.(*stmtState).of != stmt})
	checkClauses(db)
}

// stateOf returns what is known about this very statement, which is nothing for a query.
func stateOf(stmt *gorm.Statement) *stmtState {
	if known, ok := stmt.Settings.Load(stateKey{}); ok && known.(*stmtState).of == stmt {
		return known.(*stmtState)
	}
	return new(stmtState)
}

// atEnd calls undo when the write is over.
func (w *stmtState) atEnd(undo func()) { w.undo = append(w.undo, undo) }

// endWrite restores the statement of a write, and its models if it has failed, at its COMMIT at the
// latest.
func endWrite(db *gorm.DB) {
	endOwn(db) // whose COMMIT may fail
	w := stateOf(db.Statement)
	db.Statement.Settings.Delete(stateKey{})
	for _, undo := range w.undo {
		undo()
	}
	if v := w.versions; v != nil && (db.Error != nil || db.DryRun || v.putBack) {
		v.restore(db)
	}
}

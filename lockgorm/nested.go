package lockgorm

import (
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
)

// undoing is the dialector of a transaction of this package. It remembers whether the work of a
// nested transaction of GORM could not be undone: GORM keeps that error in the handle on which the
// nested one was called, which may be any copy of the transaction's, and returns it to no one.
type undoing struct {
	gorm.Dialector
	failed error
}

// watchUndo gives the handle of a transaction such a dialector.
func watchUndo(tx *gorm.DB) {
	base := tx.Dialector
	if outer, ok := base.(*undoing); ok { // of a transaction that undoes this one by itself
		base = outer.Dialector
	}
	tx.Dialector = &undoing{Dialector: base}
}

// SavePoint sets a savepoint.
func (u *undoing) SavePoint(tx *gorm.DB, name string) error {
	savepoints, ok := u.Dialector.(gorm.SavePointerDialectorInterface)
	if !ok {
		return gorm.ErrUnsupportedDriver
	}
	return savepoints.SavePoint(tx, name)
}

// RollbackTo rolls back to a savepoint, and remembers an error.
func (u *undoing) RollbackTo(tx *gorm.DB, name string) error {
	savepoints, ok := u.Dialector.(gorm.SavePointerDialectorInterface)
	if !ok {
		return gorm.ErrUnsupportedDriver
	}
	err := savepoints.RollbackTo(tx, name)
	u.failed = errors.Join(u.failed, err)
	return err
}

// Translate returns what the dialect makes of an error.
func (u *undoing) Translate(err error) error {
	if translator, ok := u.Dialector.(gorm.ErrorTranslator); ok {
		return translator.Translate(err)
	}
	return err
}

// whyNotCommitted returns why a transaction must not be committed although its function has returned
// nil: the work of a nested one could not be undone, or its handle has an error, which GORM's Commit
// would return although it commits.
func whyNotCommitted(scope *txlock.Scope, tx *gorm.DB) error {
	u, ok := tx.Dialector.(*undoing)
	if !ok || u.failed == nil {
		return tx.Error
	}
	if _, err := inner.Confirm(tx.Statement.Context, scope); err != nil {
		return err // the server has rolled back everything
	}
	return fmt.Errorf("lockgorm: a nested transaction could not be undone, so that all is rolled back: %w", u.failed)
}

package lockgorm

import (
	"errors"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Guard makes one statement succeed only while a lease is held:
// db.Clauses(lockgorm.Guard(l)).Create(&order). A create, update or delete is guarded after the
// model's hooks and associations, before GORM commits; a query, Row or Exec before it is sent. The
// statement fails with the error of Lease.Guard. Outside of a transaction it fails with
// ErrNoTransaction, and nothing is sent. It needs the plugin: db.Use(lockgorm.New()).
func Guard(l *lease.Lease) clause.Expression { return option{guardOption, l} }

// leaseOf returns the lease that guards a statement.
func leaseOf(db *gorm.DB) (l *lease.Lease, ok bool) {
	l, ok = optionOf[*lease.Lease](db.Statement, guardOption)
	return l, ok && db.Error == nil && !db.DryRun
}

// guardedTx returns the transaction of a statement that a lease guards.
func guardedTx(db *gorm.DB, l *lease.Lease) (txlock.Tx, error) {
	if l == nil {
		return nil, errors.New("lockgorm: Guard needs a *lease.Lease, got nil")
	}
	return transactionOf(db)
}

// checkGuard makes sure, before a create, update or delete is sent, that it can be
// guarded afterwards.
func checkGuard(db *gorm.DB) {
	l, ok := leaseOf(db)
	if !ok {
		return
	}
	_, err := guardedTx(db, l)
	if err == nil {
		err = l.Err()
	}
	_ = db.AddError(err) // GORM's callbacks report errors so
}

// guardStatement guards the transaction of a statement.
func guardStatement(db *gorm.DB) {
	l, ok := leaseOf(db)
	if !ok {
		return
	}
	tx, err := guardedTx(db, l)
	if err == nil {
		err = l.Guard(db.Statement.Context, tx)
	}
	_ = db.AddError(err)
}

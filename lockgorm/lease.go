package lockgorm

import (
	"errors"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// NewManager calls lease.NewManager with the pool of db; under dbresolver that is the
// source.
func NewManager(db *gorm.DB, options ...lease.ManagerOption) (*lease.Manager, error) {
	if db == nil || db.Config == nil {
		return nil, errors.New("lockgorm: NewManager needs a *gorm.DB, got nil")
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("lockgorm: NewManager: %w", err)
	}
	return lease.NewManager(pool, options...)
}

// AcquireTx calls Manager.AcquireTx in the transaction of tx, under the context of tx:
// the lease is held once the transaction is committed. In a DryRun session it sends
// nothing and returns ErrNoTransaction.
func AcquireTx(tx *gorm.DB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
	if m == nil {
		return nil, errors.New("lockgorm: AcquireTx needs a *lease.Manager, got nil")
	}
	pool, err := transactionOf(tx)
	if err != nil {
		return nil, err
	}
	if tx.DryRun {
		return nil, fmt.Errorf("%w: this session is a DryRun", txlock.ErrNoTransaction)
	}
	return m.AcquireTx(tx.Statement.Context, pool, key, options...)
}

// Guard calls Lease.Guard in the transaction of tx, under the context of tx, best as its
// last statement. In a DryRun session it sends nothing.
func Guard(tx *gorm.DB, l *lease.Lease, options ...txlock.JoinOption) error {
	if l == nil {
		return errors.New("lockgorm: Guard needs a *lease.Lease, got nil")
	}
	pool, err := transactionOf(tx)
	if err != nil || tx.DryRun {
		return err
	}
	return l.Guard(tx.Statement.Context, pool, options...)
}

// Guarded lets one statement succeed only while a lease is held:
// db.Clauses(lockgorm.Guarded(l)).Create(&order). A create, update or delete is guarded
// after the model's hooks and associations, before GORM commits; a query, Row or Exec
// before it is sent. The statement fails with the error of Lease.Guard. Outside of a
// transaction it fails with ErrNoTransaction, and nothing is sent. It needs the plugin:
// db.Use(lockgorm.New()).
func Guarded(l *lease.Lease) clause.Expression { return guarded{lease: l} }

type guarded struct {
	setting
	lease *lease.Lease
}

const guardedSetting = "lockstep:guarded"

// ModifyStatement keeps the lease with the statement.
func (g guarded) ModifyStatement(stmt *gorm.Statement) {
	needPlugin(stmt, "Guarded")
	stmt.Settings.Store(guardedSetting, g.lease)
}

// leaseOf returns the lease that guards a statement.
func leaseOf(db *gorm.DB) (l *lease.Lease, ok bool) {
	setting, ok := db.Statement.Settings.Load(guardedSetting)
	if !ok || db.Error != nil || db.DryRun {
		return nil, false
	}
	return setting.(*lease.Lease), true
}

// checkGuard makes sure, before a create, update or delete is sent, that it can be
// guarded afterwards.
func checkGuard(db *gorm.DB) {
	l, ok := leaseOf(db)
	if !ok {
		return
	}
	_, err := transactionOf(db)
	switch {
	case l == nil:
		err = errors.New("lockgorm: Guarded needs a *lease.Lease, got nil")
	case err == nil:
		err = l.Err()
	}
	if err != nil {
		_ = db.AddError(err) // GORM's callbacks report errors so
	}
}

// guardStatement guards the transaction of a statement.
func guardStatement(db *gorm.DB) {
	l, ok := leaseOf(db)
	if !ok {
		return
	}
	if err := Guard(db, l); err != nil {
		_ = db.AddError(err)
	}
}

package lockgorm

import (
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/txlock"
)

// waitSetting holds the limit of WaitAtMost.
const waitSetting = "lockstep:wait"

// WaitAtMost returns a handle of the transaction, or of the pool, under which all that
// waits for locks waits no longer than d, as that of Scope does: the functions of this
// package, Transaction, On and the plugin. It may be used for any number of statements.
// What Optimistic compares has no limit.
func WaitAtMost(tx *gorm.DB, d time.Duration) *gorm.DB {
	if tx == nil {
		return nil // the functions then return ErrNoTransaction
	}
	return tx.Set(waitSetting, d).Session(&gorm.Session{})
}

// limited returns the scope with the limit of WaitAtMost, if tx has one.
func limited(tx *gorm.DB, scope *txlock.Scope) *txlock.Scope {
	if d, ok := tx.Get(waitSetting); ok {
		return scope.WaitAtMost(d.(time.Duration))
	}
	return scope
}

// ReadVersion calls Scope.Version in the transaction of tx. In a DryRun session it sends
// nothing and returns 0. A version for a column is of type Version.
func ReadVersion(tx *gorm.DB, key txlock.Key) (version uint64, err error) {
	scope, err := scopeOf(tx)
	if scope == nil {
		return 0, err
	}
	return scope.Version(tx.Statement.Context, key)
}

// CompareAndBump calls Scope.CompareAndBump in the transaction of tx. In a DryRun session
// it sends nothing and returns nil.
func CompareAndBump(tx *gorm.DB, key txlock.Key, version uint64) error {
	scope, err := scopeOf(tx)
	if scope == nil {
		return err
	}
	return scope.CompareAndBump(tx.Statement.Context, key, version)
}

// Verify calls Scope.Verify in the transaction of tx. In a DryRun session it sends nothing
// and returns nil.
func Verify(tx *gorm.DB) error {
	scope, err := scopeOf(tx)
	if scope == nil {
		return err
	}
	return scope.Verify(tx.Statement.Context)
}

// scopeFor returns the scope of tx on which the keys are locked. It is nil if nothing may
// be sent.
func scopeFor(tx *gorm.DB, keys ...txlock.Key) (*txlock.Scope, error) {
	if tx != nil && tx.Config != nil && tx.DryRun {
		return nil, nil
	}
	compared, err := compareFirst(tx, keys)
	if err != nil {
		return nil, err
	}
	if compared == nil {
		return scopeOf(tx)
	}
	return limited(tx, compared), nil
}

// scopeOf returns the scope of tx. It is nil if nothing may be sent.
func scopeOf(tx *gorm.DB) (*txlock.Scope, error) {
	if tx != nil && tx.Config != nil && tx.DryRun {
		return nil, nil
	}
	scope, err := Join(tx)
	if err != nil {
		return nil, err
	}
	return limited(tx, scope), nil
}

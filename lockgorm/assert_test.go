package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestAssertLocked asserts locks with a *gorm.DB.
func TestAssertLocked(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		db, key := e.open(t).WithContext(t.Context()), newKey()
		shared := e.ensured(t)
		wantError(t, "on the pool", lockgorm.AssertLocked(db, key), txlock.ErrNoTransaction)
		wantError(t, "on nil", lockgorm.AssertLocked(nil, key), txlock.ErrNoTransaction)
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			wantError(t, "before the lock", lockgorm.AssertLocked(tx, key), txlock.ErrNotHeld)
			noError(t, lockgorm.AssertLocked(tx.Session(&gorm.Session{DryRun: true}), key))
			noError(t, second(lockgorm.Lock(tx, key)))
			noError(t, second(scopeOf(t, tx).RLock(t.Context(), shared)))
			wantError(t, "a shared lock", lockgorm.AssertLocked(tx, shared), txlock.ErrNotHeld)
			noError(t, lockgorm.AssertLocked(tx, txlock.Shared(shared)))
			return lockgorm.AssertLocked(tx, key)
		}))
	})
}

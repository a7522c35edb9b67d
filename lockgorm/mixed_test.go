package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestMixedTransaction gives exclusive and shared keys to Transaction, On and Optimistic.
func TestMixedTransaction(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		own, common, other := e.ensured(t), e.ensured(t), e.ensured(t)
		held := func(name string) {
			t.Helper()
			e.wantHeld(t, name, own)
			noError(t, db.Transaction(func(other *gorm.DB) error { // another's, to which the shared one is open
				wantError(t, name+": TryLock by another", second(scopeOf(t, other).TryLock(t.Context(), common)), txlock.ErrBusy)
				return second(scopeOf(t, other).TryRLock(t.Context(), common))
			}))
		}
		keys := []txlock.Key{txlock.Shared(common), own}
		noError(t, lockgorm.Transaction(db, keys, func(*gorm.DB) error {
			held("Transaction")
			return nil
		}))
		noError(t, db.Use(lockgorm.New()))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			var notes []Note
			noError(t, tx.Clauses(lockgorm.On(keys...)).Find(&notes).Error)
			held("On")
			return nil
		}))
		noError(t, lockgorm.Optimistic(db, own, func(tx *gorm.DB) error {
			for key, shared := range map[txlock.Key]bool{txlock.Shared(own): false, other: false, txlock.Shared(common): true} {
				grant, err := lockgorm.Lock(tx, key)
				noError(t, err)
				if grant.Shared() != shared {
					t.Errorf("Lock under Optimistic: %+v, want shared %t", grant, shared)
				}
			}
			return nil
		}))
	})
}

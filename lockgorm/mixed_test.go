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
		held := func(name string, want map[txlock.Key]bool) {
			t.Helper()
			for key, shared := range want {
				_ = db.Transaction(func(other *gorm.DB) error {
					_, err := tryLock(other, key)
					wantError(t, name+": TryLock by another", err, txlock.ErrBusy)
					if _, err = tryRLock(other, key); shared != (err == nil) {
						t.Errorf("%s: TryRLock by another: %v, want shared %t", name, err, shared)
					}
					return nil
				})
			}
		}
		want := map[txlock.Key]bool{own: false, common: true}
		keys := []txlock.Key{txlock.Shared(common), own}
		noError(t, lockgorm.Transaction(db, keys, func(*gorm.DB) error {
			held("Transaction", want)
			return nil
		}))
		noError(t, db.Use(lockgorm.New()))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			var notes []Note
			noError(t, tx.Clauses(lockgorm.On(keys...)).Find(&notes).Error)
			held("On", want)
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

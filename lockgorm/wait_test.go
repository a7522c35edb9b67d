package lockgorm_test

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestWaitAtMost demands that all that locks under a limit keeps to it, and goes on.
func TestWaitAtMost(t *testing.T) {
	const limit = 100 * time.Millisecond
	each(t, []string{"Parcel", "Note"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		id := newID()
		key := parcels.Key(id)
		noError(t, txlock.Ensure(t.Context(), poolOf(t, db), key))
		late := func(what string, err error) {
			t.Helper()
			wantError(t, what, err, txlock.ErrWaitTimeout)
		}
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error {
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				short := lockgorm.WaitAtMost(tx, limit)
				late("Lock", second(lockgorm.Lock(short, key)))
				late("RLock", second(scopeOf(t, short).RLock(short.Statement.Context, key)))
				late("LockAll", second(scopeOf(t, short).LockAll(short.Statement.Context, key)))
				late("On", short.Clauses(lockgorm.On(key)).Find(&[]Note{}).Error)
				late("the plugin", short.Create(&Parcel{ID: id}).Error)
				noError(t, short.Where("id = 1").Find(&[]Note{}).Error) // a handle for many statements
				noError(t, short.Create(&Note{ID: 2}).Error)
				var found []Note
				noError(t, short.Find(&found).Error)
				if len(found) != 1 {
					t.Errorf("found %+v", found)
				}
				return scopeOf(t, tx).Verify(t.Context())
			}))
			late("Transaction", lockgorm.Transaction(lockgorm.WaitAtMost(db, limit), []txlock.Key{key}, func(*gorm.DB) error { return nil }))
			return nil
		}))
		for _, pool := range []*gorm.DB{db, nil} {
			wantError(t, "no transaction", second(lockgorm.Lock(lockgorm.WaitAtMost(pool, limit), key)), txlock.ErrNoTransaction)
		}
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			wantError(t, "a limit below 0", second(lockgorm.Lock(lockgorm.WaitAtMost(tx, -1), key)), txlock.ErrInvalidOption)
			return nil
		}))
	})
}

package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestNamespaceOfTags: the tags of a plugin with In are families of that namespace, and
// exclude what another program of it locks by its own family.
func TestNamespaceOfTags(t *testing.T) {
	eachGuarded(t, []string{"Parcel", "Chest"}, func(t *testing.T, e *env) {
		const shop = txlock.Namespace("shop")
		db, id, code := e.openPlugin(t, lockgorm.In(shop)), newID(), "chest-"+t.Name()
		inShop := txlock.NewFamily[int64]("parcel", txlock.In(shop)).Key(id)
		hashed := txlock.NewFamily[string]("chest", txlock.Hashed(), txlock.In(shop), txlock.Exact()).Key(code)
		e.hold(t, parcels.Key(id)) // of no namespace
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Create(&Parcel{ID: id}).Error)
			noError(t, tx.Create(&Chest{Code: code}).Error)
			if e.free(t, inShop) || e.free(t, hashed) {
				t.Errorf("%v or %v is free", inShop, hashed)
			}
			return nil
		}))
		for _, bad := range []txlock.Namespace{"", "a/b"} {
			db := e.open(t)
			wantError(t, string(bad), db.Use(lockgorm.New(lockgorm.In(bad))), txlock.ErrInvalidKey)
			wantError(t, "AtMostRows(0)", db.Use(lockgorm.New(lockgorm.AtMostRows(0))), txlock.ErrInvalidOption)
			noError(t, db.Use(lockgorm.New())) // nothing of the first ones was left
		}
	})
}

package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

var shopOrders = txlock.NewFamily[int64]("order", txlock.In("shop"))

// ShopOrder is an Order of one application among several.
type ShopOrder struct {
	ID int64
	N  int64
}

func (o *ShopOrder) LockKeys(*gorm.DB) ([]txlock.Key, error) { return shopOrders.Keys(o.ID), nil }

// TestNamespace: the plugin and On lock the keys of a namespace, beside who holds the same
// record of another application.
func TestNamespace(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		e.names.tables["ShopOrder"] = e.names.tables["Order"]
		db, id := e.openPlugin(t), newID()
		e.hold(t, orders.Key(id))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Clauses(lockgorm.On(shopOrders.Key(id))).Limit(1).Find(&[]ShopOrder{}).Error)
			if !e.held(t, shopOrders.Key(id)) {
				t.Error("On doesn't hold the key")
			}
			return nil
		}))
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.Create(&ShopOrder{ID: id}).Error)
			if !e.held(t, shopOrders.Key(id)) {
				t.Error("Create doesn't hold the key")
			}
			return tx.Save(&ShopOrder{ID: id, N: 1}).Error
		}))
		if e.count(t, "Order", "id = ? AND n = 1", id) != 1 {
			t.Error("the record was not written")
		}
	})
}

// TestNamespaceOfTags: the tags of a plugin with In are families of that namespace, and
// exclude what another program of it locks by its own family.
func TestNamespaceOfTags(t *testing.T) {
	each(t, []string{"Parcel", "Chest"}, func(t *testing.T, e *env) {
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

package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestChildrenAreLocked writes children with their parent.
func TestChildrenAreLocked(t *testing.T) {
	writes := map[string]func(tx *gorm.DB, order, item int64) error{
		"Create": func(tx *gorm.DB, order, item int64) error {
			return tx.Create(&Order{ID: order, Items: []Item{{ID: item}}}).Error
		},
		"Save": func(tx *gorm.DB, order, item int64) error {
			return tx.Save(&Order{ID: order, Items: []Item{{ID: item}}}).Error
		},
		"Updates": func(tx *gorm.DB, order, item int64) error {
			return tx.Updates(&Order{ID: order, N: 1, Items: []Item{{ID: item}}}).Error
		},
		"FullSaveAssociations": func(tx *gorm.DB, order, item int64) error {
			return tx.Session(&gorm.Session{FullSaveAssociations: true}).Updates(&Order{ID: order, N: 1, Items: []Item{{ID: item}}}).Error
		},
		"Append": func(tx *gorm.DB, order, item int64) error {
			return tx.Model(&Order{ID: order}).Association("Items").Append(&Item{ID: item})
		},
	}
	eachSetting(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for what, write := range writes {
			order, item := newID(), newID()
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if what != "Create" && what != "Save" {
					noError(t, tx.Create(&Order{ID: order}).Error)
				}
				saw := false
				err := write(withHook(tx, func(_ *gorm.DB, id int64) error {
					if id == item {
						saw = true
						if !e.held(t, orders.Key(order)) || !e.held(t, items.Key(item)) {
							t.Errorf("%s: the child's hook runs without the locks", what)
						}
					}
					return nil
				}), order, item)
				if err != nil || !saw {
					t.Errorf("%s: %v, the child's hook ran: %v", what, err, saw)
				}
				return err
			}))
			if e.count(t, "Item", "id = ? AND order_id = ?", item, order) != 1 {
				t.Errorf("%s: the child was not written", what)
			}
			if !e.soonFree(t, orders.Key(order), items.Key(item)) {
				t.Errorf("%s: a lock outlives the transaction", what)
			}
		}
	})
}

// TestChildrenKeepTheirKeys proves that On names the keys of one statement only: the
// INSERT of the children is another one.
func TestChildrenKeepTheirKeys(t *testing.T) {
	eachGuarded(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		for _, on := range [][]txlock.Key{{newKey()}, lockgorm.NoLock} {
			item := newID()
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				noError(t, tx.Clauses(lockgorm.On(on...)).Create(&Order{Items: []Item{{ID: item}}}).Error)
				if !e.held(t, items.Key(item)) {
					t.Errorf("On(%v) of the parent has left the child without its lock", on)
				}
				return nil
			}))
		}
	})
}

// TestReplaceAndClear changes children that only a where clause names: they are locked.
func TestReplaceAndClear(t *testing.T) {
	changes := map[string]func(tx *gorm.DB, order Order) error{
		"Replace": func(tx *gorm.DB, order Order) error {
			return tx.Model(&Order{ID: order.ID}).Association("Items").Replace(&order.Items[0])
		},
		"Clear": func(tx *gorm.DB, order Order) error {
			return tx.Model(&Order{ID: order.ID}).Association("Items").Clear()
		},
		"Delete": func(tx *gorm.DB, order Order) error {
			return tx.Model(&Order{ID: order.ID}).Association("Items").Delete(&order.Items[1])
		},
		"Unscoped": func(tx *gorm.DB, order Order) error {
			return tx.Model(&Order{ID: order.ID}).Association("Items").Unscoped().Clear()
		},
		"Select": func(tx *gorm.DB, order Order) error {
			return tx.Select("Items").Delete(&Order{ID: order.ID}).Error
		},
	}
	eachSetting(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		db, plain := e.openPlugin(t), e.open(t)
		for what, change := range changes {
			order := Order{ID: newID(), Items: []Item{{ID: newID()}, {ID: newID()}}}
			noError(t, plain.Create(&order).Error)
			noError(t, change(plain, order))
			left := e.count(t, "Item", "order_id = ?", order.ID)
			noError(t, plain.Delete(&order.Items).Error)
			noError(t, plain.Delete(&Order{ID: order.ID}).Error)
			noError(t, e.inTransaction(db, func(tx *gorm.DB) error { return tx.Create(&order).Error }))
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if err := change(tx, order); err != nil {
					return err
				}
				if !e.held(t, items.Key(order.Items[1].ID)) || !e.held(t, items.Key(order.Items[0].ID)) && what != "Delete" {
					t.Errorf("%s: a child that was changed is free", what)
				}
				return nil
			}))
			if n := e.count(t, "Item", "order_id = ?", order.ID); n != left || left == 2 {
				t.Errorf("%s: %d children are left, want %d", what, n, left)
			}
		}
	})
}

package lockgorm_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestChildrenAreLocked writes children with their parent.
func TestChildrenAreLocked(t *testing.T) {
	writes := map[string]func(tx *gorm.DB, o *Order) error{
		"Create":  func(tx *gorm.DB, o *Order) error { return tx.Create(o).Error },
		"Save":    func(tx *gorm.DB, o *Order) error { return tx.Save(o).Error },
		"Updates": func(tx *gorm.DB, o *Order) error { return tx.Updates(o).Error },
		"FullSaveAssociations": func(tx *gorm.DB, o *Order) error {
			return tx.Session(&gorm.Session{FullSaveAssociations: true}).Updates(o).Error
		},
		"Append": func(tx *gorm.DB, o *Order) error {
			return tx.Model(&Order{ID: o.ID}).Association("Items").Append(&o.Items[0])
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
						e.wantHeld(t, what+": the child's hook runs without the locks", orders.Key(order), items.Key(item))
					}
					return nil
				}), &Order{ID: order, N: 1, Items: []Item{{ID: item}}})
				if err != nil || !saw {
					t.Errorf("%s: %v, the child's hook ran: %v", what, err, saw)
				}
				return err
			}))
			e.wantRows(t, what+": the child was not written", 1, "Item", "id = ? AND order_id = ?", item, order)
			e.wantSoonFree(t, what+": a lock outlives the transaction", orders.Key(order), items.Key(item))
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
	changes := map[string]func(of *gorm.Association, order Order) error{
		"Replace":  func(of *gorm.Association, order Order) error { return of.Replace(&order.Items[0]) },
		"Clear":    func(of *gorm.Association, _ Order) error { return of.Clear() },
		"Delete":   func(of *gorm.Association, order Order) error { return of.Delete(&order.Items[1]) },
		"Unscoped": func(of *gorm.Association, _ Order) error { return of.Unscoped().Clear() },
		"Select": func(of *gorm.Association, order Order) error {
			return of.DB.Select("Items").Delete(&Order{ID: order.ID}).Error
		},
	}
	eachSetting(t, []string{"Order", "Item"}, func(t *testing.T, e *env) {
		db, plain := e.openPlugin(t), e.open(t)
		itemsOf := func(tx *gorm.DB, order Order) *gorm.Association {
			return tx.Model(&Order{ID: order.ID}).Association("Items")
		}
		for what, change := range changes {
			order := Order{ID: newID(), Items: []Item{{ID: newID()}, {ID: newID()}}}
			noError(t, plain.Create(&order).Error)
			noError(t, change(itemsOf(plain, order), order))
			left := e.count(t, "Item", "order_id = ?", order.ID)
			noError(t, plain.Delete(&order.Items).Error)
			noError(t, plain.Delete(&Order{ID: order.ID}).Error)
			noError(t, e.inTransaction(db, func(tx *gorm.DB) error { return tx.Create(&order).Error }))
			noError(t, db.Transaction(func(tx *gorm.DB) error {
				if err := change(itemsOf(tx, order), order); err != nil {
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

// Package bypass writes tables of models with a lock, past their models and by these.
package bypass

import (
	"context"

	"gorm.io/gorm"

	"example.com/shop/helper"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Order has the tag.
type Order struct {
	ID   int64 `lockstep:"order"`
	Paid bool
}

// Base has the tag of models that embed it.
type Base struct {
	ID int64 `lockstep:"category"`
}

// Category has the tag from Base.
type Category struct {
	Base
	Name string
}

// SalesPerson has a table that GORM calls sales_people.
type SalesPerson struct {
	ID int64 `lockstep:"person"`
}

// Cart names its keys and its table.
type Cart struct{ ID int64 }

// TableName is the table's.
func (Cart) TableName() string { return "shop_carts" }

// LockKeys names the keys.
func (c *Cart) LockKeys(*gorm.DB) ([]txlock.Key, error) { return helper.Orders.Keys(c.ID), nil }

// Split has a table that only the running program knows.
type Split struct {
	ID int64 `lockstep:"split"`
}

// TableName is the table's.
func (s Split) TableName() string { return tables[s.ID] }

var tables = map[int64]string{}

// Note has no lock.
type Note struct{ ID int64 }

var global *gorm.DB

type shop struct{ db *gorm.DB }

const pay = "UPDATE `orders` SET paid = 1 WHERE id = ?"

func (s *shop) wrong(id int64) {
	s.db.Exec(pay, id)                                                          // want `Exec writes the table orders without a lock of its model Order`
	global.Exec("DELETE FROM shop.orders WHERE id = ?", id)                     // want `Exec writes the table shop.orders`
	s.db.Exec("INSERT IGNORE INTO shop_carts (id) VALUES (?)", id)              // want `Exec writes the table shop_carts without a lock of its model Cart`
	s.db.Exec("REPLACE INTO categories (id) VALUES (?)", id)                    // want `of its model Category`
	s.db.Exec("DELETE FROM sales_people WHERE id = ?", id)                      // want `of its model SalesPerson`
	s.db.Exec("UPDATE helper_models SET n = 1")                                 // want `of its model HelperModel`
	s.db.Model(&Order{ID: id}).Exec(pay, id)                                    // want `Exec writes the table orders`
	s.db.Raw("DELETE FROM orders WHERE id = ? RETURNING id", id).Scan(&id)      // want `Raw writes the table orders`
	s.db.Table("orders").Where("id = ?", id).Update("paid", true)               // want `Table\("orders"\).Update writes the table orders`
	s.db.Table("orders o").Where("o.id = ?", id).UpdateColumn("paid", true)     // want `Table\("orders o"\).UpdateColumn writes the table orders`
	s.db.Table("orders").Where("id = ?", id).Updates(map[string]any{"paid": 1}) // want `Table\("orders"\).Updates`
	s.db.Table("orders").Create(map[string]any{"id": id})                       // want `Table\("orders"\).Create`
	s.db.Table("orders").Where("id = ?", id).Delete(&Note{})                    // want `Table\("orders"\).Delete`
	s.db.Table("orders").Model(&Note{}).Where("id = ?", id).Update("paid", 1)   // want `Table\("orders"\).Update`
	of := s.db.Table("orders").Where("id = ?", id)
	_ = gorm.G[Order](s.db).Exec(context.Background(), pay, id) // want `Exec writes the table orders`
	of.UpdateColumns(Note{})                                    // want `Table\("orders"\).UpdateColumns`
}

func (s *shop) wrongTexts(id int64) {
	s.db.Exec("/* it's paid */ -- \n# \n UPDATE /*+ NO_ICP(orders) */ orders SET paid = 1")                // want `Exec writes the table orders`
	s.db.Exec("WITH paid (id) AS (SELECT 1 FOR UPDATE) UPDATE orders SET paid = 1")                        // want `Exec writes the table orders`
	s.db.Exec("WITH paid AS (SELECT 1) DELETE FROM orders WHERE id = 1")                                   // want `Exec writes the table orders`
	s.db.Exec("TRUNCATE TABLE `orders`")                                                                   // want `Exec writes the table orders`
	s.db.Exec("TRUNCATE orders")                                                                           // want `Exec writes the table orders`
	s.db.Exec("UPDATE notes JOIN orders ON notes.id = orders.id SET notes.n = 1, orders.paid = 1 WHERE 1") // want `Exec writes the table orders`
	s.db.Exec("UPDATE notes AS n LEFT JOIN shop.`orders` o USING (id), x SET o.paid = 1")                  // want `Exec writes the table shop.orders`
	s.db.Exec("UPDATE orders o SET o.paid = (SELECT 1 FROM notes WHERE id = 1)")                           // want `Exec writes the table orders`
	s.db.Exec("UPDATE orders, (SELECT 1) AS n SET shop.orders.paid = 1")                                   // want `Exec writes the table orders`
	s.db.Exec("DELETE o FROM orders o JOIN notes n ON n.id = o.id WHERE n.id = 1")                         // want `Exec writes the table orders`
	s.db.Exec("DELETE n, o.* FROM orders o JOIN notes n ON n.id = o.id")                                   // want `Exec writes the table orders`
	s.db.Exec("DELETE QUICK FROM o USING orders o JOIN notes USING (id)")                                  // want `Exec writes the table orders`
	s.db.Exec("DELETE FROM orders ORDER BY id LIMIT 1")                                                    // want `Exec writes the table orders`
	s.db.Exec("UPDATE orders o JOIN carts c SET o.paid = 1, c.n = 2")                                      // want `Exec writes the table orders`
}

func (s *shop) rightTexts() {
	s.db.Exec("DELETE n FROM orders o JOIN notes n ON n.id = o.id")
	s.db.Exec("DELETE FROM n USING orders JOIN notes n ON n.id = orders.id")
	s.db.Exec("UPDATE orders o JOIN notes n ON n.id = o.id SET n.n = o.id")
	s.db.Exec("UPDATE notes SET text = 'x'', UPDATE orders SET', n = 1, orders = 1")
	s.db.Exec("UPDATE notes SET n = \"\\\", orders.paid = \" # , orders.paid = 1")
	s.db.Exec("WITH orders AS (SELECT 1) SELECT * FROM orders FOR UPDATE")
	s.db.Exec("WITH orders AS (SELECT 1) UPDATE notes SET n = 1")
	s.db.Exec("INSERT INTO notes SELECT id FROM orders")
	s.db.Exec("UPDATE (orders o JOIN notes n) SET o.paid = 1") // not read
	s.db.Exec("/* UPDATE orders SET paid = 1 */")
	s.db.Exec("UPDATE")
}

func (db *shop) wrongInTransactions(id int64) error {
	if err := db.db.Transaction(func(tx *gorm.DB) error {
		return tx.Exec(pay, id).Error // want `Exec writes the table orders`
	}); err != nil {
		return err
	}
	return lockgorm.Transaction(global, nil, func(tx *gorm.DB) error {
		return tx.Exec(pay, id).Error // want `Exec writes the table orders`
	})
}

// handle is given, as the elements of many are, and perhaps a transaction that has locked.
type handle struct{ *gorm.DB }

func asGiven(tx *gorm.DB, h handle, many []*gorm.DB, id int64) error {
	h.Exec(pay, id)
	many[0].Exec(pay, id)
	return tx.Transaction(func(tx *gorm.DB) error { // or a savepoint
		return tx.Exec(pay, id).Error
	})
}

func (s *shop) right(id int64, any any, text string) {
	s.db.Model(&Order{ID: id}).Update("paid", true)
	s.db.Table("orders").Create(&Order{ID: id})
	s.db.Table("orders").CreateInBatches([]*Order{{ID: id}}, 10)
	s.db.Table("orders").Where("id = ?", id).Delete(&Order{})
	s.db.Table("orders").Model(&Order{ID: id}).Update("paid", true)
	s.db.Table("orders").Create(any)
	s.db.Table("orders").Find(&[]Order{})
	s.db.Table("notes").Where("id = ?", id).Update("n", 1)
	s.db.Exec(text, id)
	s.db.Exec("SELECT 1 FROM orders")
	s.db.Exec("UPDATE carts, orders SET n = 1")
	s.db.Exec("UPDATE splits SET n = 1")
	s.db.Raw("SELECT paid FROM orders WHERE id = ?", id).Scan(&any)
}

func (s *shop) named(id int64) {
	s.db.Clauses(lockgorm.On(helper.Orders.Key(id))).Exec(pay, id)
	locked := s.db.Clauses(lockgorm.On(helper.Orders.Key(id)))
	locked.Table("orders").Where("id = ?", id).Update("paid", true)
}

func (s *shop) read(id int64) error {
	return s.db.Transaction(func(tx *gorm.DB) error {
		var order Order
		if err := tx.Clauses(lockgorm.On(helper.Orders.Key(id))).Take(&order, id).Error; err != nil {
			return err
		}
		return tx.Exec(pay, id).Error
	})
}

func given(tx *gorm.DB, id int64) error { return tx.Exec(pay, id).Error } // its caller may have locked

func givenToG(tx *gorm.DB, id int64) error {
	return gorm.G[Order](tx).Exec(context.Background(), pay, id)
}

func (s *shop) namedToG(id int64) error {
	return gorm.G[Order](s.db, lockgorm.On(helper.Orders.Key(id))).Exec(context.Background(), pay, id)
}

func (s *shop) lockedBefore(id int64) error {
	return s.db.Transaction(func(tx *gorm.DB) error {
		if _, err := lockgorm.Lock(tx, helper.Orders.Key(id)); err != nil {
			return err
		}
		return tx.Exec(pay, id).Error
	})
}

func (s *shop) lockedFirst(id int64) error {
	return lockgorm.Transaction(s.db, helper.Orders.Keys(id), func(tx *gorm.DB) error {
		return tx.Exec(pay, id).Error
	})
}

func (s *shop) lockedInPart(id int64) error { // what else it locks isn't known
	err := lockgorm.Transaction(s.db, helper.Orders.Keys(id), func(tx *gorm.DB) error { return tx.Exec(pay, id).Error })
	if err != nil {
		return err
	}
	return s.db.Exec(pay, id).Error
}

func (s *shop) asserted(id int64) error {
	return s.db.Transaction(func(tx *gorm.DB) error {
		if err := lockgorm.AssertLocked(tx, helper.Orders.Key(id)); err != nil {
			return err
		}
		return tx.Exec(pay, id).Error
	})
}

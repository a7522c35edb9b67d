// Package custom names tables in a way that can't be read.
package custom

import (
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

type namer struct{ schema.NamingStrategy }

// TableName is the table's.
func (namer) TableName(name string) string { return "t_" + name }

func write() {
	db, _ := lockgorm.Open("shop", &gorm.Config{NamingStrategy: namer{schema.NamingStrategy{}}})
	db.Exec("DELETE FROM shop_carts") // want `of its model Cart`
	db.Exec("UPDATE orders SET n = 1")
	db.Exec("UPDATE t_orders SET n = 1")
}

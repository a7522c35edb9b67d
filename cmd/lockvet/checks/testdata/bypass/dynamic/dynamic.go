// Package dynamic has a prefix that only the running program knows.
package dynamic

import (
	"os"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

func write() {
	db, _ := lockgorm.Open("shop", &gorm.Config{NamingStrategy: schema.NamingStrategy{TablePrefix: os.Getenv("PREFIX")}})
	db.Exec("DELETE FROM shop_carts") // want `of its model Cart`
	db.Exec("UPDATE orders SET n = 1")
}

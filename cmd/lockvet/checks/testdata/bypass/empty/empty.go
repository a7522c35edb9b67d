// Package empty opens a pool with a config that has no strategy.
package empty

import (
	"gorm.io/gorm"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

func write() {
	db, _ := lockgorm.Open("shop", &gorm.Config{SkipDefaultTransaction: true})
	db.Exec("UPDATE orders SET n = 1") // want `of its model Order`
	db.Exec("UPDATE `order` SET n = 1")
}

// Package plain opens a pool without a config: GORM makes plurals.
package plain

import (
	"gorm.io/gorm"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

func write() {
	db, _ := gorm.Open(lockgorm.Dialector("shop"))
	db.Exec("UPDATE orders SET n = 1") // want `of its model Order`
	db.Exec("UPDATE `order` SET n = 1")
}

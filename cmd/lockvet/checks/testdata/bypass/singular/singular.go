// Package singular opens a pool whose tables have the names of their types. The strategy is
// assigned, and a pointer.
package singular

import (
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

func write() {
	var config gorm.Config
	config.NamingStrategy = &schema.NamingStrategy{SingularTable: true, NoLowerCase: true}
	db, _ := lockgorm.Open("shop", &config)
	db.Exec("UPDATE `Order` SET n = 1")     // want `of its model Order`
	db.Exec("UPDATE SalesPerson SET n = 1") // want `of its model SalesPerson`
	db.Exec("UPDATE orders SET n = 1")
	db.Exec("UPDATE sales_people SET n = 1")
}

// Package flag is read with -bypass.prefix=t_, which the running program asks its environment for.
package flag

import (
	"os"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

func write() {
	db, _ := lockgorm.Open("shop", &gorm.Config{NamingStrategy: schema.NamingStrategy{TablePrefix: os.Getenv("PREFIX")}})
	db.Exec("UPDATE t_orders SET n = 1") // want `of its model Order`
	db.Exec("UPDATE t_order SET n = 1")  // want `of its model Order`
	db.Exec("DELETE FROM shop_carts")    // want `of its model Cart`
	db.Exec("UPDATE orders SET n = 1")
	db.Exec("DELETE FROM t_shop_carts")
}

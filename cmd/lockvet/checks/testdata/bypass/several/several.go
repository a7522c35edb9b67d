// Package several has pools that name tables differently.
package several

import (
	"example.com/shop/bypass/prefix"
	"github.com/dca00107/lockstep/lockgorm"
)

func write() {
	db, _ := lockgorm.Open("shop")
	db.Exec("DELETE FROM shop_carts") // want `of its model Cart`
	db.Exec("UPDATE orders SET n = 1")
	prefix.DB.Exec("UPDATE t_orders SET n = 1")
}

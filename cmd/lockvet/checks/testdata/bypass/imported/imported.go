// Package imported uses pools of other packages, which name tables in the same way: in a
// database, with a prefix, without a plural, and with other words.
package imported

import (
	"example.com/shop/bypass/imported/pool"
	_ "example.com/shop/bypass/models"
)

func write() {
	pool.Primary.Exec("UPDATE t_order SET n = 1")       // want `of its model Order`
	pool.Replica.Exec("UPDATE shop.t_order SET n = 1")  // want `of its model Order`
	pool.Primary.Exec("UPDATE t_sales_human SET n = 1") // want `of its model SalesPerson`
	pool.Primary.Exec("UPDATE old.t_order SET n = 1")
	pool.Primary.Exec("UPDATE orders SET n = 1")
	pool.Primary.Exec("UPDATE t_orders SET n = 1")
	pool.Primary.Exec("UPDATE t_sales_person SET n = 1")
}

// Package prefix opens a pool whose tables have a prefix.
package prefix

import (
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	_ "example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

// DB is the pool.
var DB, _ = lockgorm.Open("shop", &gorm.Config{NamingStrategy: schema.NamingStrategy{TablePrefix: prefix, IdentifierMaxLength: 64}})

const prefix = "t_"

func write() {
	DB.Exec("UPDATE t_orders SET n = 1")          // want `Exec writes the table t_orders without a lock of its model Order`
	DB.Exec("UPDATE `shop`.`t_orders` SET n = 1") // want `Exec writes the table shop.t_orders`
	DB.Table("t_sales_people").Update("n", 1)     // want `writes the table t_sales_people without a lock of its model SalesPerson`
	DB.Exec("DELETE FROM shop_carts")             // want `of its model Cart`
	DB.Exec("DELETE FROM bills")                  // want `of its model Bill`
	DB.Exec("DELETE FROM books.bills")            // want `of its model Bill`
	DB.Exec("UPDATE orders SET n = 1")
	DB.Exec("UPDATE t_order SET n = 1")
	DB.Exec("UPDATE sales_people SET n = 1")
	DB.Exec("DELETE FROM t_shop_carts")
	DB.Exec("DELETE FROM old.bills")
	DB.Exec("DELETE FROM t_refunds")
	DB.Exec("DELETE FROM t_returns")
}

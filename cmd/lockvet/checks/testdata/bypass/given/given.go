// Package given opens a pool with a config of its caller, whose strategy isn't known.
package given

import (
	"context"

	"gorm.io/gorm"

	"example.com/shop/bypass/models"
	"github.com/dca00107/lockstep/lockgorm"
)

func write(ctx context.Context, config *gorm.Config) {
	db, _ := lockgorm.Open("shop", config)
	db.Exec("DELETE FROM shop_carts") // want `of its model Cart`
	db.Exec("UPDATE orders SET n = 1")
	both := func() (context.Context, string) { return ctx, "UPDATE orders SET n = 1" }
	_ = gorm.G[models.Order](db).Exec(both())
	db.Table("shop_carts").Create(tree{}) // want `of its model Cart`
}

// tree is a slice of itself.
type tree []tree

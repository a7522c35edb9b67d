// A lock with GORM.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// Product is locked by the plugin before each create, update and delete.
type Product struct {
	ID    int64 `lockstep:"product" gorm:"autoIncrement:false"`
	Stock int64
}

var Products = txlock.NewFamily[int64]("product") // the same keys, for explicit locks

func main() {
	ctx := context.Background()
	config := &gorm.Config{Logger: logger.Default.LogMode(logger.Error)}
	db, err := lockgorm.Open(os.Getenv("SHOP_DSN"), config) // instead of gorm.Open
	must(err)
	pool, err := db.DB()
	must(err)
	must(schema.Install(ctx, pool))
	must(db.AutoMigrate(&Product{}))
	must(db.Use(lockgorm.New()))
	must(db.Save(&Product{ID: 7, Stock: 5}).Error)

	err = lockgorm.Transaction(db.WithContext(ctx), Products.Keys(7), func(tx *gorm.DB) error {
		var p Product
		if err := tx.Take(&p, 7).Error; err != nil {
			return err
		}
		return tx.Model(&p).Update("stock", p.Stock-1).Error
	})
	must(err)
	fmt.Println("sold one of product 7")
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

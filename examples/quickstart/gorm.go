package main

import (
	"context"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// Product is a row of products.
type Product struct {
	ID    int64
	Stock int64
}

// Order is a row of orders.
type Order struct {
	ID        int64
	ProductID int64
	BuyerID   int64
}

// withGORM buys by lockgorm.Transaction.
type withGORM struct{ db *gorm.DB }

func openGORM(dsn string, buyers int) (counter, error) {
	db, err := openGuarded(dsn, buyers)
	return withGORM{db}, err
}

// openGuarded opens GORM over a guarded pool.
func openGuarded(dsn string, buyers int) (*gorm.DB, error) {
	// GORM's logger would write a line for each buyer who waits over 200 ms.
	db, err := lockgorm.Open(dsn, &gorm.Config{Logger: logger.Discard}) // instead of gorm.Open
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	keepOpen(pool, buyers)
	return db, nil
}

// buy is a db.Transaction that locks first. Where the keys are known only later,
// lockgorm.Lock(tx, key) takes a lock inside of any transaction of GORM.
func (c withGORM) buy(ctx context.Context, product, buyer int64) error {
	key := products.Key(product)
	return lockgorm.Transaction(c.db.WithContext(ctx), []txlock.Key{key}, func(tx *gorm.DB) error {
		var p Product
		if err := tx.Take(&p, product).Error; err != nil {
			return err
		}
		return order(tx, p, buyer)
	})
}

func (c withGORM) close() error { return closeGORM(c.db) }

// order decides on a product that was read, and writes the order and the stock.
func order(tx *gorm.DB, p Product, buyer int64) error {
	if p.Stock <= 0 {
		return errSoldOut
	}
	if err := tx.Create(&Order{ProductID: p.ID, BuyerID: buyer}).Error; err != nil {
		return err
	}
	return tx.Model(&p).Update("stock", p.Stock-1).Error
}

func closeGORM(db *gorm.DB) error {
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return pool.Close()
}

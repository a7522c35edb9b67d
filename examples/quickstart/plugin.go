package main

import (
	"context"
	"errors"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// LockKeys names the lock that writes of a product need. With the plugin in use no
// code can forget it: every Create, Update and Delete of a Product takes it.
func (p *Product) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	if p.ID == 0 {
		return lockgorm.NoLock, nil // the database will make the identifier
	}
	return products.Keys(p.ID), nil
}

var _ lockgorm.Locker = (*Product)(nil)

// withPlugin buys in plain transactions of GORM, with the plugin in use.
type withPlugin struct{ db *gorm.DB }

func openPlugin(dsn string, buyers int) (counter, error) {
	db, err := openGuarded(dsn, buyers)
	if err != nil {
		return nil, err
	}
	if err := db.Use(lockgorm.New()); err != nil {
		return nil, errors.Join(err, closeGORM(db))
	}
	return withPlugin{db}, nil
}

// buy is a plain db.Transaction. The stock has to be read under the lock that its
// update needs, and On takes this before the query. Without On nothing is oversold
// either: where somebody has bought after the query, the update takes the lock too
// late and ends with ErrStaleSnapshot. That is right, but several times slower.
func (c withPlugin) buy(ctx context.Context, product, buyer int64) error {
	return c.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		var p Product
		if err := tx.Clauses(lockgorm.On(products.Key(product))).Take(&p, product).Error; err != nil {
			return err
		}
		return order(tx, p, buyer)
	})
}

func (c withPlugin) close() error { return closeGORM(c.db) }

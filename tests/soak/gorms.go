package main

import (
	"context"
	"time"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// counter is a record as a model, whose key the plugin locks.
type counter struct {
	Name  string `gorm:"primaryKey"`
	Value int64
}

// LockKeys names the lock that a write of the record needs.
func (c *counter) LockKeys(tx *gorm.DB) ([]txlock.Key, error) {
	return []txlock.Key{txlock.Named(c.Name)}, tx.Error
}

// article is a record with a version.
type article struct {
	ID      int64
	Value   int64
	Version lockgorm.Version
}

// gormKinds are the locks in transactions of GORM.
func gormKinds() []kind {
	return []kind{
		{name: "lockgorm.Transaction", every: often, burst: 3, run: gormTransaction},
		{name: "lockgorm plugin", every: often, burst: 2, run: gormPlugin},
		{name: "lockgorm.Version", every: often, burst: 2, run: gormVersion, expected: []error{txlock.ErrConflict}},
		{name: "lockgorm.Optimistic", every: often, burst: 2, run: gormOptimistic},
	}
}

// raiseModel raises the record by its model.
func (o *op) raiseModel(tx *gorm.DB) error {
	var c counter
	if err := tx.Take(&c, "name = ?", o.name()).Error; err != nil {
		return err
	}
	think(5 * time.Millisecond)
	if err := tx.Model(&c).Update("value", c.Value+1).Error; err != nil {
		return err
	}
	o.wrote = append(o.wrote, o.name())
	return nil
}

func gormTransaction(ctx context.Context, o *op) error {
	return lockgorm.Transaction(o.gorm.WithContext(ctx), []txlock.Key{o.key()}, func(tx *gorm.DB) error {
		o.again()
		return o.raiseModel(tx)
	})
}

// gormPlugin locks by a statement that names the key, and enters the lock again by the
// model that is written.
func gormPlugin(ctx context.Context, o *op) error {
	return lockgorm.Transaction(o.gorm.WithContext(ctx), nil, func(tx *gorm.DB) error {
		o.wrote = nil
		var c counter
		if err := tx.Clauses(lockgorm.On(o.key())).Take(&c, "name = ?", o.name()).Error; err != nil {
			return err
		}
		o.granted()
		if err := tx.Model(&c).Update("value", c.Value+1).Error; err != nil {
			return err
		}
		o.wrote = append(o.wrote, o.name())
		return nil
	})
}

// gormVersion saves a record that another may have saved since it was loaded.
func gormVersion(ctx context.Context, o *op) error {
	db := o.gorm.WithContext(ctx)
	var a article
	if err := db.Take(&a, 1+o.burst%2).Error; err != nil {
		return err
	}
	think(5 * time.Millisecond)
	err := db.Model(&a).Update("value", a.Value+1).Error
	o.granted()
	return err
}

func gormOptimistic(ctx context.Context, o *op) error {
	return lockgorm.Optimistic(o.gorm.WithContext(ctx), o.key(), func(tx *gorm.DB) error {
		o.wrote = nil
		err := o.raiseModel(tx) // whose plugin locks the key, too
		o.granted()
		return err
	})
}

//go:build sqlite

// Package sqlite tests lockgorm's option Unlocked on another database.
package sqlite

import (
	"bytes"
	"errors"
	"log"
	"strings"
	"testing"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

type Order struct {
	ID      int64 `lockstep:"order"`
	N       int64
	Version lockgorm.Version
}

var orders = txlock.NewFamily[int64]("order")

// TestUnlocked runs what a service does with locks on a database that has none.
func TestUnlocked(t *testing.T) {
	logged := new(bytes.Buffer)
	warnings := logger.New(log.New(logged, "", 0), logger.Config{LogLevel: logger.Warn, IgnoreRecordNotFoundError: true})
	db := testdb.Got(gorm.Open(sqlite.Open("file::memory:"), &gorm.Config{Logger: warnings}))(t)
	pool := testdb.Got(db.DB())(t)
	pool.SetMaxOpenConns(1) // each connection has a database of its own
	t.Cleanup(func() { noError(t, pool.Close()) })
	noError(t, db.AutoMigrate(&Order{}))
	noError(t, db.Use(lockgorm.New(lockgorm.Unlocked("postgres", "sqlite"), lockgorm.Check(&Order{}))))
	n := strings.Count(logged.String(), "nothing is locked on sqlite")
	testdb.ErrorIf(t, n != 1, "%d warnings: %s", n, logged)
	noError(t, db.Create(&Order{ID: 7, N: 1}).Error)
	noError(t, db.Model(&Order{}).Where("n = ?", 1).Update("n", 2).Error)
	noError(t, lockgorm.Transaction(db, orders.Keys(7), func(tx *gorm.DB) error {
		var o Order
		noError(t, tx.Clauses(lockgorm.On(orders.Key(7)), lockgorm.MaxWait(1)).Take(&o, 7).Error)
		testdb.Got(lockgorm.Lock(tx, orders.Key(7)))(t)
		testdb.Got(lockgorm.Lock(lockgorm.WaitAtMost(tx, 1), txlock.Shared(orders.Key(7))))(t)
		noError(t, lockgorm.AssertLocked(tx, orders.Key(7)))
		o.N = 3
		noError(t, tx.Save(&o).Error)
		noError(t, tx.Model(&Order{}).Clauses(lockgorm.Loaded(&o)).Update("n", 4).Error)
		return tx.Model(&o).Clauses(lockgorm.CommitWith(1)).Update("n", 5).Error
	}))
	failed := errors.New("failed")
	testdb.Wants(t, "Optimistic", lockgorm.Optimistic(db, orders.Key(7), func(tx *gorm.DB) error {
		noError(t, tx.Model(&Order{ID: 7}).Update("n", 6).Error)
		return failed
	}), failed)
	var o Order
	noError(t, db.Take(&o, 7).Error)
	testdb.Equal(t, "the row", o.N, 5)
	noError(t, db.Delete(&Order{}, 7).Error)
}

var noError = testdb.Must

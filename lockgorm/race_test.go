package lockgorm_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

const (
	workers = 4
	rounds  = 5
)

// together runs fn in several goroutines and returns their errors.
func together(n int, fn func(worker int) error) error {
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() { errs[i] = fn(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// manyTimes calls fn in turn in several goroutines.
func manyTimes(fn func() error) error {
	return together(workers, func(int) error {
		for range rounds {
			if err := fn(); err != nil {
				return err
			}
		}
		return nil
	})
}

// increment updates an order. Its hook reads note 1 and writes it back, raised by one.
// Only a lock taken before the hook keeps two of them apart.
func increment(db *gorm.DB, order int64, between func()) error {
	return withHook(db, func(tx *gorm.DB, _ int64) error {
		var note Note
		if err := tx.First(&note, 1).Error; err != nil {
			return err
		}
		between()
		return tx.Model(&note).Update("n", note.N+1).Error
	}).Model(&Order{ID: order}).Update("name", "x").Error
}

func TestNoUpdateIsLost(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Note{ID: 1}).Error)
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, manyTimes(func() error { return increment(db, id, func() {}) }))
		if e.count(t, "Note", "n = ?", workers*rounds) != 1 {
			t.Error("an update was lost")
		}
	})
}

// TestUpdateIsLostWithoutPlugin does the same without the plugin, and both read before
// one writes. It shows that TestNoUpdateIsLost can fail.
func TestUpdateIsLostWithoutPlugin(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		noError(t, db.Create(&Note{ID: 1}).Error)
		noError(t, db.Create(&Order{ID: 1}).Error)
		var read sync.WaitGroup
		read.Add(2)
		// A server with innodb_snapshot_isolation refuses one of them instead.
		err := together(2, func(int) error { return increment(db, 1, func() { read.Done(); read.Wait() }) })
		if err == nil && e.count(t, "Note", "n = 1") != 1 {
			t.Error("without the plugin no update was lost")
		}
	})
}

// TestOnLosesNoUpdate reads by On(key) and writes back.
func TestOnLosesNoUpdate(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, manyTimes(func() error {
			return db.Transaction(func(tx *gorm.DB) error {
				var order Order
				if err := tx.Clauses(lockgorm.On(orders.Key(id))).First(&order, id).Error; err != nil {
					return err
				}
				order.N++
				return tx.Save(&order).Error
			})
		}))
		if e.count(t, "Order", "id = ? AND n = ?", id, workers*rounds) != 1 {
			t.Error("an update was lost")
		}
	})
}

// TestTransactionLosesNoUpdate does the same by Transaction, on new keys.
func TestTransactionLosesNoUpdate(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db, id := e.open(t), newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, manyTimes(func() error {
			return lockgorm.Transaction(db, []txlock.Key{orders.Key(id), items.Key(id)}, func(tx *gorm.DB) error {
				var order Order
				if err := tx.First(&order, id).Error; err != nil {
					return err
				}
				return tx.Model(&order).Update("n", order.N+1).Error
			})
		}))
		if e.count(t, "Order", "id = ? AND n = ?", id, workers*rounds) != 1 {
			t.Error("an update was lost")
		}
	})
}

// TestReverseBatches writes the same records in opposite orders.
func TestReverseBatches(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db := e.openPlugin(t)
		var forth []Order
		for range 5 {
			forth = append(forth, Order{ID: newID()})
		}
		noError(t, db.Create(&forth).Error)
		noError(t, together(2*workers, func(worker int) error {
			batch := slices.Clone(forth)
			if worker%2 == 1 {
				slices.Reverse(batch)
			}
			for round := range rounds {
				for i := range batch {
					batch[i].N = int64(worker*rounds + round)
				}
				if err := db.Save(&batch).Error; err != nil {
					return err
				}
			}
			return nil
		}))
		if e.count(t, "Order", "n = (SELECT n FROM "+e.names.tables["Order"]+" WHERE id = ?)", forth[0].ID) != len(forth) {
			t.Error("the records of one batch are of two")
		}
	})
}

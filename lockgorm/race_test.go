package lockgorm_test

import (
	"errors"
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
func increment(db *gorm.DB, order int64) error {
	return withHook(db, func(tx *gorm.DB, _ int64) error {
		var note Note
		if err := tx.First(&note, 1).Error; err != nil {
			return err
		}
		return tx.Model(&note).Update("n", note.N+1).Error
	}).Model(&Order{ID: order}).Update("name", "x").Error
}

// TestNoUpdateIsLost reads and writes back under a lock that the plugin takes before the hooks, that
// On takes with the read, and that Transaction takes first, on new keys.
func TestNoUpdateIsLost(t *testing.T) {
	each(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Note{ID: 1}).Error)
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, manyTimes(func() error { return increment(db, id) }))
		raise := func(read, tx *gorm.DB) error {
			var order Order
			if err := read.First(&order, id).Error; err != nil {
				return err
			}
			return tx.Model(&order).Update("n", order.N+1).Error
		}
		noError(t, manyTimes(func() error {
			return db.Transaction(func(tx *gorm.DB) error { return raise(tx.Clauses(lockgorm.On(orders.Key(id))), tx) })
		}))
		noError(t, manyTimes(func() error {
			return lockgorm.Transaction(db, []txlock.Key{orders.Key(id), items.Key(id)}, func(tx *gorm.DB) error { return raise(tx, tx) })
		}))
		e.wantRows(t, "an update was lost", 1, "Note", "n = ?", workers*rounds)
		e.wantRows(t, "an update was lost", 1, "Order", "id = ? AND n = ?", id, 2*workers*rounds)
	})
}

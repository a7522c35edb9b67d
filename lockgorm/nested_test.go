package lockgorm_test

import (
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

var errInner = errors.New("the inner block fails")

// nested opens pools that differ in what a nested transaction does.
func nested(t *testing.T, e *env) map[string]*gorm.DB {
	return map[string]*gorm.DB{
		"savepoints":          e.open(t),
		"prepared savepoints": e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }),
		"none":                e.open(t, func(cfg *gorm.Config) { cfg.DisableNestedTransaction = true }),
	}
}

// TestWaitForItself writes by the outer db inside of Transaction, and begins another one:
// both would wait for the transaction in which they are called.
func TestWaitForItself(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		if !e.guarded { // which waits: see txlock's TestWaitOnAPlainPool
			return
		}
		db := used(t, e.open(t))
		id := newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		write := func(db *gorm.DB) error { return db.Model(&Order{ID: id}).Update("n", 1).Error }
		for what, call := range map[string]func() error{
			"a write":     func() error { return write(db) },
			"Transaction": func() error { return lockgorm.Transaction(db, orders.Keys(id), write) },
			"nil keys":    func() error { return lockgorm.Transaction(db, nil, write) },
		} {
			for by, keys := range map[string][]txlock.Key{"keys": orders.Keys(id), "the plugin": nil} {
				err := lockgorm.Transaction(db, keys, func(tx *gorm.DB) error {
					noError(t, write(tx))
					return call()
				})
				var held *txlock.HeldError
				if wantError(t, what, err, txlock.ErrWaitTimeout); !errors.As(err, &held) || !held.Here || !strings.Contains(err.Error(), "would wait for itself") {
					t.Errorf("%s, locked by %s: %v", what, by, err)
				}
			}
		}
		noError(t, write(db))
	})
}

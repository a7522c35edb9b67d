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

// TestHeldAfterNestedFailure proves that the scope doesn't claim a lock which a savepoint
// may have freed.
func TestHeldAfterNestedFailure(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		key := e.ensured(t)
		noError(t, e.open(t).Transaction(func(tx *gorm.DB) error {
			scope, err := lockgorm.Join(tx)
			noError(t, err)
			err = tx.Transaction(func(tx2 *gorm.DB) error {
				_, err := lockgorm.Lock(tx2, key)
				noError(t, err)
				if _, ok := scope.Held(key); !ok {
					t.Error("the outer scope doesn't see the nested block's lock")
				}
				return errInner
			})
			wantError(t, "the nested block", err, errInner)
			if _, ok := scope.Held(key); ok {
				t.Error("a lock counts as held that the savepoint may have freed")
			}
			return nil
		}))
	})
}

// TestRefusalKeepsSavepoints proves that a refused lock adds no error to the outer *gorm.DB: with
// one, GORM would send no ROLLBACK TO for a nested block.
func TestRefusalKeepsSavepoints(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		key := e.ensured(t)
		release := e.hold(t, key)
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			err := tx.Transaction(func(tx2 *gorm.DB) error {
				noError(t, tx2.Create(&Note{N: 1001}).Error)
				for verb, lock := range verbs {
					_, err := lock(tx, txlock.Key{})
					wantError(t, verb+" of the zero key", err, txlock.ErrInvalidKey)
				}
				_, err := tryLock(tx, key)
				return err
			})
			wantError(t, "the nested block", err, txlock.ErrBusy)
			noError(t, tx.Error)
			return tx.Create(&Note{N: 1002}).Error
		}))
		release()
		if e.count(t, "Note", "n = 1001") != 0 || e.count(t, "Note", "n = 1002") != 1 {
			t.Error("the nested block was not undone, or the outer one was")
		}
	})
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

package lockgorm_test

import (
	"errors"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// TestOtherEngine: on a server that answers as TiDB and Vitess do, the first call of each kind
// is refused, and nothing is written.
func TestOtherEngine(t *testing.T) {
	ran := errors.New("the function was called")
	calls := map[string]func(db *gorm.DB, key txlock.Key, id int64) error{
		"Transaction": func(db *gorm.DB, key txlock.Key, _ int64) error {
			return lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error { return ran })
		},
		"Optimistic": func(db *gorm.DB, key txlock.Key, _ int64) error {
			return lockgorm.Optimistic(db, key, func(*gorm.DB) error { return ran })
		},
		"Once": func(db *gorm.DB, key txlock.Key, _ int64) error {
			_, err := lockgorm.Once(db, key, func(*gorm.DB) error { return ran })
			return err
		},
		"Lock": func(db *gorm.DB, key txlock.Key, _ int64) error {
			return db.Transaction(func(tx *gorm.DB) error {
				_, err := lockgorm.Lock(tx, key)
				return err
			})
		},
		"a create":  func(db *gorm.DB, _ txlock.Key, id int64) error { return db.Create(&Order{ID: id}).Error },
		"an update": func(db *gorm.DB, _ txlock.Key, _ int64) error { return db.Model(&Order{ID: 1}).Update("n", 9).Error },
		"by condition": func(db *gorm.DB, _ txlock.Key, _ int64) error {
			return db.Model(&Order{}).Where("n = 1").Update("n", 9).Error
		},
		"in a transaction": func(db *gorm.DB, _ txlock.Key, _ int64) error {
			return db.Transaction(func(tx *gorm.DB) error { return tx.Model(&Order{}).Where("n = 1").Update("n", 9).Error })
		},
	}
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		noError(t, e.open(t).Create(&Order{ID: 1, N: 1}).Error)
		_, mutate := testdb.Rewritten(t, locksuite.AsAnotherEngine)
		pool := openPool(e.guarded, false)(t, e.Config(mutate)).DB()
		db, err := gorm.Open(mysql.New(mysql.Config{Conn: pool, SkipInitializeWithVersion: true}), e.config())
		noError(t, err)
		noError(t, db.Use(lockgorm.New()))
		for name, call := range calls {
			if err := call(db.WithContext(t.Context()), newKey(), newID()); !errors.Is(err, schema.ErrEngine) || errors.Is(err, ran) {
				t.Errorf("%s: %v, want ErrEngine", name, err)
			}
		}
		if n, all := e.count(t, "Order", "n = 1"), e.count(t, "Order", "1 = 1"); n != 1 || all != 1 {
			t.Errorf("%d rows, of which %d are as they were, want 1 and 1", all, n)
		}
	})
}

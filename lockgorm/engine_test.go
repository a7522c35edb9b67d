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
)

var errRan = errors.New("the function was called")

// onOtherEngine are calls that a server on which there are no locks refuses, and writes of a model,
// of which there is the one with the number 1.
func onOtherEngine[M any](model func(id int64) *M) map[string]func(db *gorm.DB) error {
	byCondition := func(db *gorm.DB) error { return db.Model(new(M)).Where("n = 1").Update("n", 9).Error }
	calls := map[string]func(db *gorm.DB) error{
		"Lock": func(db *gorm.DB) error {
			return db.Transaction(func(tx *gorm.DB) error { return second(lockgorm.Lock(tx, newKey())) })
		},
		"a create":         func(db *gorm.DB) error { return db.Create(model(newID())).Error },
		"an update":        func(db *gorm.DB) error { return db.Model(model(1)).Update("n", 9).Error },
		"a delete":         func(db *gorm.DB) error { return db.Delete(model(1)).Error },
		"by condition":     byCondition,
		"in a transaction": func(db *gorm.DB) error { return db.Transaction(byCondition) },
	}
	for name, run := range outermost {
		if name != "Transaction, no key" {
			calls[name] = func(db *gorm.DB) error { return run(db, newKey(), func(*gorm.DB) error { return errRan }) }
		}
	}
	return calls
}

// TestOtherEngine: on a server that answers as TiDB and Vitess do, the first call of each kind
// is refused, and nothing is written.
func TestOtherEngine(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		noError(t, e.open(t).Create(&Order{ID: 1, N: 1}).Error)
		_, mutate := testdb.Rewritten(t, locksuite.AsAnotherEngine)
		pool := openPool(e.guarded, false)(t, e.Config(mutate)).DB()
		db, err := gorm.Open(mysql.New(mysql.Config{Conn: pool, SkipInitializeWithVersion: true}), e.config())
		noError(t, err)
		noError(t, db.Use(lockgorm.New()))
		for name, call := range onOtherEngine(func(id int64) *Order { return &Order{ID: id} }) {
			if err := call(db.WithContext(t.Context())); !errors.Is(err, schema.ErrEngine) || errors.Is(err, errRan) {
				t.Errorf("%s: %v, want ErrEngine", name, err)
			}
		}
		if n, all := e.count(t, "Order", "n = 1"), e.count(t, "Order", "1 = 1"); n != 1 || all != 1 {
			t.Errorf("%d rows, of which %d are as they were, want 1 and 1", all, n)
		}
	})
}

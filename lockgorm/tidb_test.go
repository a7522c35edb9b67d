//go:build tidb

package lockgorm_test

import (
	"errors"
	"maps"
	"testing"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// onTiDB is GORM with the plugin, over a table of one order.
func onTiDB(t *testing.T, guarded bool) (*testdb.DB, *gorm.DB) {
	t.Helper()
	pool := testdb.Open(t, testdb.TiDB)
	pool.Exec(t, "CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
	pool.Grant(t, "orders")
	pool.Exec(t, "REPLACE INTO orders VALUES (1, 1)")
	on := openPool(guarded, false)(t, pool.Config()).DB()
	db := testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: on, SkipInitializeWithVersion: true}), &gorm.Config{Logger: logger.Discard}))(t)
	noError(t, db.Use(lockgorm.New()))
	return pool, db
}

// TestTiDBRefused: on TiDB a plain pool is refused whatever locks, and a guarded one shared locks and upserts; nothing is written.
func TestTiDBRefused(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		pool, db := onTiDB(t, guarded)
		shared := txlock.Shared(newKey())
		calls := map[string]func(db *gorm.DB) error{
			"shared, Transaction": func(db *gorm.DB) error {
				return lockgorm.Transaction(db, []txlock.Key{shared}, func(*gorm.DB) error { return errRan })
			},
			"shared, Lock": func(db *gorm.DB) error {
				return db.Transaction(func(tx *gorm.DB) error { return testdb.Err(lockgorm.Lock(tx, shared)) })
			},
		}
		wantError(t, "Save of a new record", db.Save(&tidbOrder{ID: 2, N: 2}).Error, map[bool]error{false: schema.ErrEngine, true: nil}[guarded])
		if guarded {
			pool.Exec(t, "DELETE FROM orders WHERE id = 2")
		}
		err := db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&tidbOrder{ID: 1, N: 2}).Error
		wantError(t, "an upsert", err, map[bool]error{false: schema.ErrEngine, true: txlock.ErrInvalidKey}[guarded])
		if !guarded {
			maps.Copy(calls, onOtherEngine(func(id int64) *tidbOrder { return &tidbOrder{ID: id} }))
		}
		for name, call := range calls {
			err := call(db)
			testdb.ErrorIf(t, !errors.Is(err, schema.ErrEngine) || errors.Is(err, errRan), "%s, guarded %t: %v, want ErrEngine", name, guarded, err)
		}
		var n, sum int
		noError(t, pool.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*), SUM(n) FROM orders").Scan(&n, &sum))
		testdb.ErrorIf(t, n != 1 || sum != 1, "%d rows with %d, want 1 and 1", n, sum)
	}
}

// TestTiDBReadBeforeLock: Transaction chooses READ COMMITTED, refuses a lock after a read, and runs again at the session's level.
func TestTiDBReadBeforeLock(t *testing.T) {
	_, db := onTiDB(t, true)
	noError(t, db.Create(&tidbOrder{ID: 3, N: 1}).Error)
	defer func() { noError(t, db.Delete(&tidbOrder{ID: 3}).Error) }()
	increment := func(db *gorm.DB) error { return db.Model(&tidbOrder{ID: 3}).Update("n", gorm.Expr("n + 1")).Error }
	runs, fresh := 0, 0
	noError(t, lockgorm.Transaction(db, []txlock.Key{newKey()}, func(tx *gorm.DB) error {
		runs++
		var before, after tidbOrder
		noError(t, tx.First(&before, 3).Error)
		if runs < 3 {
			noError(t, increment(db))
		}
		noError(t, tx.First(&after, 3).Error)
		if after.N > before.N {
			fresh++
		}
		return tx.Model(&before).Update("n", before.N+1).Error
	}))
	var last tidbOrder
	noError(t, db.First(&last, 3).Error)
	testdb.ErrorIf(t, last.N != 4 || runs != 3 || fresh != 1,
		"%d after %d runs, want 4 after 3; %d read what was committed meanwhile, want the first", last.N, runs, fresh)
}

// tidbOrder is a tagged model.
type tidbOrder struct {
	ID int64 `gorm:"primaryKey" lockstep:"tidborder"`
	N  int64
}

func (tidbOrder) TableName() string { return "orders" }

package sharding

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"
	"gorm.io/sharding"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const tables = 4 // with the suffixes of makeTables

// tenYears is the one PrepareStmtTTL for which GORM starts no goroutine that never ends.
const tenYears = 10 * 365 * 24 * time.Hour

// Order is in the table sharded_orders_N of its user.
type Order struct {
	ID     int64 `gorm:"primaryKey;autoIncrement:false" lockstep:"sharded-order"`
	UserID int64
	N      int64
}

func (Order) TableName() string { return "sharded_orders" }

// Stock is in the table sharded_stocks_N of its user, and has a version in place of a key.
type Stock struct {
	ID     int64 `gorm:"primaryKey;autoIncrement:false"`
	UserID int64
	N      int64
	Ver    lockgorm.Version
}

func (Stock) TableName() string { return "sharded_stocks" }

var orders = txlock.NewFamily[int64]("sharded-order")

var lastID atomic.Int64

// env is GORM over a guarded pool, with both plugins.
type env struct {
	*testdb.DB
	g *gorm.DB
}

// newEnv opens GORM over a database of its own, which has the one of lockstep's tables that is needed.
func newEnv(t *testing.T, engine testdb.Engine) env {
	t.Helper()
	db := testdb.Fresh(t, engine)
	for _, s := range testdb.Got(schema.Statements())(t) {
		if strings.Contains(s, "TABLE IF NOT EXISTS lockstep_locks") {
			db.Exec(t, s)
		}
	}
	db.Grant(t, "lockstep_locks")
	makeTables(t, db)
	g := testdb.Got(lockgorm.Open(db.DSN(), &gorm.Config{Logger: logger.Discard, PrepareStmtTTL: tenYears}))(t)
	pool := testdb.Got(g.DB())(t)
	t.Cleanup(func() { noError(t, pool.Close()) })
	return env{db, g}
}

// use uses a plugin.
func (e env) use(t *testing.T, plugin string) {
	t.Helper()
	switch plugin {
	case "lockstep":
		noError(t, e.g.Use(lockgorm.New()))
	case "sharding":
		noError(t, e.g.Use(sharding.Register(sharding.Config{
			ShardingKey: "user_id", NumberOfShards: tables,
			PrimaryKeyGenerator: sharding.PKCustom, PrimaryKeyGeneratorFn: func(int64) int64 { return 0 },
		}, &Order{}, &Stock{})))
	case "dbresolver":
		replica := testdb.Fresh(t, e.Engine())
		makeTables(t, replica)
		resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{lockgorm.Dialector(replica.AdminDSN())}})
		noError(t, e.g.Use(resolver))
		t.Cleanup(func() { noError(t, resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() })) })
	}
}

func makeTables(t *testing.T, db *testdb.DB) {
	t.Helper()
	for name, more := range map[string]string{"sharded_orders": "", "sharded_stocks": ", ver BIGINT UNSIGNED NOT NULL"} {
		for _, suffix := range []string{"", "_0", "_1", "_2", "_3"} { // lockgorm compares the tag with the model's own table, which stays empty
			db.Exec(t, "CREATE TABLE "+name+suffix+" (id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, n BIGINT NOT NULL DEFAULT 0"+more+")")
			db.Grant(t, name+suffix)
		}
	}
}

// wantNumber fails the test unless a query of the source, past GORM, has this result.
func (e env) wantNumber(t *testing.T, want int64, query string, args ...any) {
	t.Helper()
	var n int64
	noError(t, e.Admin().QueryRowContext(t.Context(), query, args...).Scan(&n))
	testdb.Equal(t, fmt.Sprint(query, args), n, want)
}

// inTransaction calls fn in a transaction, which is committed.
func (e env) inTransaction(t *testing.T, fn func(tx *gorm.DB)) {
	t.Helper()
	noError(t, e.g.Transaction(func(tx *gorm.DB) error { fn(tx); return nil }))
}

var noError, wantError = testdb.Must, testdb.Wants

func (e env) held(t *testing.T, key txlock.Key) bool {
	t.Helper()
	holders := testdb.Got(txlock.Holders(t.Context(), e.Admin(), key))(t)
	return len(holders) == 1
}

// TestSharding spreads the rows of a model over tables by gorm.io/sharding, with lockstep's plugin before that and
// after it, and with dbresolver as well, whose replica has the tables without rows.
func TestSharding(t *testing.T) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		for _, order := range []string{"sharding, lockstep", "lockstep, sharding", "dbresolver, sharding, lockstep", "sharding, dbresolver, lockstep"} {
			t.Run(order, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, engine)
				for plugin := range strings.SplitSeq(order, ", ") {
					e.use(t, plugin)
				}
				transaction(t, e)
				plugin(t, e)
				versioned(t, e)
				whatShardingDoesNot(t, e)
			})
		}
	})
}

// transaction locks and writes in one transaction, on the tables of two users.
func transaction(t *testing.T, e env) {
	t.Helper()
	one, two := &Order{ID: lastID.Add(1), UserID: 1}, &Order{ID: lastID.Add(1), UserID: 2}
	keys := []txlock.Key{orders.Key(one.ID), orders.Key(two.ID)}
	write := func(fail error) error {
		return lockgorm.Transaction(e.g, keys, func(tx *gorm.DB) error {
			noError(t, tx.Create(one).Error)
			noError(t, tx.Create(two).Error)
			noError(t, tx.Model(&Order{}).Where("id = ? AND user_id = ?", two.ID, int64(2)).Clauses(lockgorm.On(keys[1])).Update("n", 7).Error)
			var read Order
			noError(t, tx.Where("user_id = ? AND id = ?", int64(2), two.ID).First(&read).Error)
			testdb.Equal(t, "what the transaction reads", read.N, 7)
			for _, key := range keys {
				noError(t, lockgorm.AssertLocked(tx, key))
				testdb.ErrorIf(t, !e.held(t, key), "%s is free inside", key)
			}
			e.wantNumber(t, 0, "SELECT (SELECT COUNT(*) FROM sharded_orders_1) + (SELECT COUNT(*) FROM sharded_orders_2)")
			return fail
		})
	}
	failed := errors.New("failed")
	wantError(t, "the transaction that fails", write(failed), failed)
	noError(t, write(nil))
	for id, table := range map[int64]string{one.ID: "sharded_orders_1", two.ID: "sharded_orders_2"} {
		e.wantNumber(t, 1, "SELECT COUNT(*) FROM "+table+" WHERE id = ?", id)
		testdb.ErrorIf(t, e.held(t, orders.Key(id)), "the key of order %d is held", id)
	}
}

// plugin leaves the locks to the plugin, in a transaction of the program. Outside of one
// it refuses: under the sharding plugin GORM begins none for a single statement.
func plugin(t *testing.T, e env) {
	t.Helper()
	o := &Order{ID: lastID.Add(1), UserID: 3}
	key := orders.Key(o.ID)
	const count = "SELECT COUNT(*) FROM sharded_orders_3 WHERE n = ?"
	wantError(t, "a write outside of a transaction", e.g.Create(o).Error, txlock.ErrNoTransaction)
	e.wantNumber(t, 0, count, 0)
	byID := func(tx *gorm.DB) *gorm.DB {
		return tx.Clauses(lockgorm.On(key)).Where("id = ? AND user_id = ?", o.ID, o.UserID)
	}
	for i, write := range []func(tx *gorm.DB) *gorm.DB{
		func(tx *gorm.DB) *gorm.DB { return tx.Create(o) },
		func(tx *gorm.DB) *gorm.DB { return byID(tx).Model(&Order{}).Update("n", 1) },
		func(tx *gorm.DB) *gorm.DB { return tx.Model(o).Where("user_id = ?", o.UserID).Update("n", 2) }, // GORM names no table in its condition
		func(tx *gorm.DB) *gorm.DB { return byID(tx).Delete(&Order{}) },
	} {
		e.inTransaction(t, func(tx *gorm.DB) {
			noError(t, errors.Join(write(tx).Error, lockgorm.AssertLocked(tx, key)))
			testdb.ErrorIf(t, !e.held(t, key), "the key is free after write %d", i)
		})
		e.wantNumber(t, int64(min(1, 3-i)), count, i)
		testdb.ErrorIf(t, e.held(t, key), "the key is held after write %d was committed", i)
	}
}

// versioned updates a loaded model that has a version. A conflict is an error: the row isn't in the
// model's own table, where the plugin looks for it.
func versioned(t *testing.T, e env) {
	t.Helper()
	made, read := &Stock{ID: lastID.Add(1), UserID: 1}, &Stock{}
	noError(t, e.g.Create(made).Error)
	e.inTransaction(t, func(tx *gorm.DB) { // dbresolver would read a replica
		noError(t, tx.Where("user_id = ? AND id = ?", made.UserID, made.ID).Take(read).Error)
	})
	update := func(stock *Stock) error {
		return e.g.Model(stock).Where("user_id = ?", stock.UserID).Update("n", stock.N+5).Error
	}
	noError(t, update(made))
	wantError(t, "an update of an older version", update(read), gorm.ErrRecordNotFound)
	e.wantNumber(t, 5, "SELECT n FROM sharded_stocks_1 WHERE id = ?", made.ID)
}

// whatShardingDoesNot shows what the sharding plugin can't do, with lockstep or without.
// If it fails the plugin has learnt it: say so in docs/scale.md.
func whatShardingDoesNot(t *testing.T, e env) {
	t.Helper()
	o := &Order{ID: lastID.Add(1), UserID: 1}
	e.inTransaction(t, func(tx *gorm.DB) {
		noError(t, tx.Create(o).Error)
		// It can't parse FOR UPDATE, and leaves that at the model's own table, without rows.
		err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Where("user_id = ? AND id = ?", o.UserID, o.ID).First(&Order{}).Error
		wantError(t, "FOR UPDATE", err, gorm.ErrRecordNotFound)
		// It leaves the name of that table in the condition that GORM makes of a deleted model. The
		// plugin names it where it looks for the rows of an update, which FOR UPDATE would not find.
		for what, err := range map[string]error{
			"a delete of a loaded model": tx.Where("user_id = ?", o.UserID).Delete(o).Error,
			"an update by conditions":    tx.Model(&Order{}).Where("user_id = ?", o.UserID).Update("n", 5).Error,
		} {
			wantError(t, what, err, &mysql.MySQLError{Number: 1054})
		}
	})
}

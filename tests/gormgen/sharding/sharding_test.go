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

const tables = 4

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

// each runs a test on every engine, with lockstep's plugin before the other and after it, and
// with dbresolver as well, whose replica has the tables without rows.
func each(t *testing.T, test func(t *testing.T, e env)) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, order := range []string{"sharding, lockstep", "lockstep, sharding", "dbresolver, sharding, lockstep", "sharding, dbresolver, lockstep"} {
			t.Run(string(engine)+"/"+order, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, engine)
				g := e.g
				for plugin := range strings.SplitSeq(order, ", ") {
					switch plugin {
					case "lockstep":
						noError(t, g.Use(lockgorm.New()))
					case "sharding":
						spread(t, g)
					case "dbresolver":
						replica := testdb.Fresh(t, engine)
						makeTables(t, replica)
						resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{lockgorm.Dialector(replica.AdminDSN())}})
						noError(t, g.Use(resolver))
						t.Cleanup(func() {
							noError(t, resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() }))
						})
					}
				}
				test(t, e)
			})
		}
	}
}

// newEnv opens GORM over a database of its own, without plugins.
func newEnv(t *testing.T, engine testdb.Engine) env {
	t.Helper()
	db := ownDB(t, engine)
	makeTables(t, db)
	g, err := lockgorm.Open(db.DSN(), &gorm.Config{Logger: logger.Discard, PrepareStmtTTL: tenYears})
	noError(t, err)
	t.Cleanup(func() { closePool(t, g) })
	return env{db, g}
}

// spread lets the sharding plugin spread orders over the tables.
func spread(t *testing.T, g *gorm.DB) {
	t.Helper()
	noError(t, g.Use(sharding.Register(sharding.Config{
		ShardingKey: "user_id", NumberOfShards: tables,
		PrimaryKeyGenerator: sharding.PKCustom, PrimaryKeyGeneratorFn: func(int64) int64 { return 0 },
	}, &Order{}, &Stock{})))
}

// ownDB has the one of lockstep's tables that is needed.
func ownDB(t *testing.T, engine testdb.Engine) *testdb.DB {
	t.Helper()
	db := testdb.Fresh(t, engine)
	statements, err := schema.Statements()
	noError(t, err)
	for _, s := range statements {
		if strings.Contains(s, "TABLE IF NOT EXISTS lockstep_locks") {
			db.Exec(t, s)
		}
	}
	db.Grant(t, "lockstep_locks")
	return db
}

func makeTables(t *testing.T, db *testdb.DB) {
	t.Helper()
	for name, more := range map[string]string{"sharded_orders": "", "sharded_stocks": ", ver BIGINT UNSIGNED NOT NULL"} {
		suffixes := []string{""} // lockgorm compares the tag with the model's own table, which stays empty
		for i := range tables {
			suffixes = append(suffixes, fmt.Sprintf("_%d", i))
		}
		for _, suffix := range suffixes {
			db.Exec(t, "CREATE TABLE "+name+suffix+" (id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, n BIGINT NOT NULL DEFAULT 0"+more+")")
			db.Grant(t, name+suffix)
		}
	}
}

func closePool(t *testing.T, g *gorm.DB) {
	t.Helper()
	pool, err := g.DB()
	noError(t, errors.Join(err, pool.Close()))
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// number reads the source, past GORM.
func (e env) number(t *testing.T, query string, args ...any) (n int64) {
	t.Helper()
	noError(t, e.Admin().QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}

func (e env) held(t *testing.T, key txlock.Key) bool {
	t.Helper()
	holders, err := txlock.Holders(t.Context(), e.Admin(), key)
	noError(t, err)
	return len(holders) == 1
}

// TestSharding spreads the rows of a model over tables by gorm.io/sharding.
func TestSharding(t *testing.T) {
	each(t, func(t *testing.T, e env) {
		transaction(t, e)
		plugin(t, e)
		loadedModel(t, e)
		versioned(t, e)
		whatShardingDoesNot(t, e)
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
			if read.N != 7 {
				t.Errorf("the transaction reads %+v", read)
			}
			for _, key := range keys {
				noError(t, lockgorm.AssertLocked(tx, key))
				if !e.held(t, key) {
					t.Errorf("%s is free inside", key)
				}
			}
			if n := e.number(t, "SELECT COUNT(*) FROM sharded_orders_1") + e.number(t, "SELECT COUNT(*) FROM sharded_orders_2"); n != 0 {
				t.Errorf("%d rows are committed inside", n)
			}
			return fail
		})
	}
	failed := errors.New("failed")
	if err := write(failed); !errors.Is(err, failed) {
		t.Errorf("the transaction that fails: %v", err)
	}
	noError(t, write(nil))
	for id, table := range map[int64]string{one.ID: "sharded_orders_1", two.ID: "sharded_orders_2"} {
		if e.number(t, "SELECT COUNT(*) FROM "+table+" WHERE id = ?", id) != 1 || e.held(t, orders.Key(id)) {
			t.Errorf("order %d is not in %s, or its key is held", id, table)
		}
	}
}

// plugin leaves the locks to the plugin, in a transaction of the program. Outside of one
// it refuses: under the sharding plugin GORM begins none for a single statement.
func plugin(t *testing.T, e env) {
	t.Helper()
	o := &Order{ID: lastID.Add(1), UserID: 3}
	key := orders.Key(o.ID)
	if err := e.g.Create(o).Error; !errors.Is(err, txlock.ErrNoTransaction) {
		t.Errorf("a write outside of a transaction: %v", err)
	}
	if n := e.number(t, "SELECT COUNT(*) FROM sharded_orders_3"); n != 0 {
		t.Errorf("%d rows were written without a lock", n)
	}
	for what, write := range map[string]func(tx *gorm.DB) *gorm.DB{ // in any order
		"create": func(tx *gorm.DB) *gorm.DB { return tx.Create(o) },
		"update": func(tx *gorm.DB) *gorm.DB {
			return tx.Model(&Order{}).Clauses(lockgorm.On(key)).Where("id = ? AND user_id = ?", o.ID, o.UserID).Update("n", 5)
		},
		"delete": func(tx *gorm.DB) *gorm.DB {
			return tx.Clauses(lockgorm.On(key)).Where("id = ? AND user_id = ?", o.ID, o.UserID).Delete(&Order{})
		},
	} {
		noError(t, e.g.Transaction(func(tx *gorm.DB) error {
			err := write(tx).Error
			if !e.held(t, key) {
				t.Errorf("the key is free after the %s", what)
			}
			return err
		}))
		if e.held(t, key) {
			t.Errorf("the key is held after the %s was committed", what)
		}
	}
}

// loadedModel updates a loaded model, in whose condition GORM names no table.
func loadedModel(t *testing.T, e env) {
	t.Helper()
	o := &Order{ID: lastID.Add(1), UserID: 1}
	noError(t, e.g.Transaction(func(tx *gorm.DB) error { return tx.Create(o).Error }))
	noError(t, e.g.Transaction(func(tx *gorm.DB) error {
		noError(t, tx.Model(o).Where("user_id = ?", o.UserID).Update("n", 5).Error)
		scope, err := lockgorm.Join(tx)
		noError(t, err)
		if _, held := scope.Held(orders.Key(o.ID)); !held {
			t.Error("the order's lock isn't held")
		}
		return nil
	}))
	if n := e.number(t, "SELECT n FROM sharded_orders_1 WHERE id = ?", o.ID); n != 5 {
		t.Errorf("the update has made %d", n)
	}
}

// versioned updates a loaded model that has a version. A conflict is an error: the row isn't in the
// model's own table, where the plugin looks for it.
func versioned(t *testing.T, e env) {
	t.Helper()
	made, read := &Stock{ID: lastID.Add(1), UserID: 1}, &Stock{}
	noError(t, e.g.Create(made).Error)
	noError(t, e.g.Transaction(func(tx *gorm.DB) error { // dbresolver would read a replica
		return tx.Where("user_id = ? AND id = ?", made.UserID, made.ID).Take(read).Error
	}))
	update := func(stock *Stock) error {
		return e.g.Model(stock).Where("user_id = ?", stock.UserID).Update("n", stock.N+5).Error
	}
	noError(t, update(made))
	if err := update(read); !errors.Is(err, gorm.ErrRecordNotFound) {
		t.Errorf("an update of an older version: %v", err)
	}
	if n := e.number(t, "SELECT n FROM sharded_stocks_1 WHERE id = ?", made.ID); n != 5 {
		t.Errorf("the updates have made %d", n)
	}
}

// whatShardingDoesNot shows what the sharding plugin can't do, with lockstep or without.
// If it fails the plugin has learnt it: say so in docs/scale.md.
func whatShardingDoesNot(t *testing.T, e env) {
	t.Helper()
	o := &Order{ID: lastID.Add(1), UserID: 1}
	noError(t, e.g.Transaction(func(tx *gorm.DB) error { return tx.Create(o).Error }))
	noError(t, e.g.Transaction(func(tx *gorm.DB) error {
		// It can't parse FOR UPDATE, and leaves that at the model's own table, without rows.
		var read Order
		err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Where("user_id = ? AND id = ?", o.UserID, o.ID).First(&read).Error
		if !errors.Is(err, gorm.ErrRecordNotFound) {
			t.Errorf("FOR UPDATE finds %+v, %v", read, err)
		}
		// It leaves the name of that table in the condition that GORM makes of a deleted model.
		var server *mysql.MySQLError
		if err := tx.Where("user_id = ?", o.UserID).Delete(o).Error; !errors.As(err, &server) || server.Number != 1054 {
			t.Errorf("a delete of a loaded model: %v", err)
		}
		// The plugin names it where it looks for the rows of an update, which FOR UPDATE would not find.
		if err := tx.Model(&Order{}).Where("user_id = ?", o.UserID).Update("n", 5).Error; !errors.As(err, &server) || server.Number != 1054 {
			t.Errorf("an update by conditions: %v", err)
		}
		return nil
	}))
}

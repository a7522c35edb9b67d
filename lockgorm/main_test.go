package lockgorm_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// The families of the models below.
var (
	orders = txlock.NewFamily[int64]("gorm-order")
	items  = txlock.NewFamily[int64]("gorm-item")
)

// Order is a model that names its key, and whose hooks a test can watch.
type Order struct {
	ID    int64
	Name  string
	N     int64
	Items []Item
}

func (o *Order) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	if o.ID == 0 {
		return lockgorm.NoLock, nil
	}
	return []txlock.Key{orders.Key(o.ID)}, nil
}

func (o *Order) BeforeCreate(tx *gorm.DB) error { return hooked(tx, o.ID) }
func (o *Order) BeforeUpdate(tx *gorm.DB) error { return hooked(tx, o.ID) }
func (o *Order) BeforeDelete(tx *gorm.DB) error { return hooked(tx, o.ID) }

// Item belongs to an order and has a key of its own.
type Item struct {
	ID      int64
	OrderID *int64
	Name    string
}

func (i *Item) LockKeys(*gorm.DB) ([]txlock.Key, error) {
	if i.ID == 0 {
		return lockgorm.NoLock, nil
	}
	return []txlock.Key{items.Key(i.ID)}, nil
}

func (i *Item) BeforeCreate(tx *gorm.DB) error { return hooked(tx, i.ID) }

// Note is a model that names no keys.
type Note struct {
	ID int64
	N  int64
}

// hookKey finds the function that the models' hooks call in a context.
type hookKey struct{}

// withHook lets the hooks of the models call fn.
func withHook(db *gorm.DB, fn func(tx *gorm.DB, id int64) error) *gorm.DB {
	return db.WithContext(context.WithValue(db.Statement.Context, hookKey{}, fn))
}

func hooked(tx *gorm.DB, id int64) error {
	if fn, ok := tx.Statement.Context.Value(hookKey{}).(func(*gorm.DB, int64) error); ok {
		return fn(tx, id)
	}
	return nil
}

const (
	serial        = "id BIGINT AUTO_INCREMENT PRIMARY KEY, "
	counted       = "n BIGINT NOT NULL DEFAULT 0"
	versionColumn = "version BIGINT UNSIGNED NOT NULL DEFAULT 1"
)

// columns are the columns of the models' tables. Others have an id and an n, as Note has.
var columns = map[string]string{
	"Order":     serial + "name VARCHAR(50) NOT NULL DEFAULT '', " + counted,
	"Item":      serial + "order_id BIGINT, name VARCHAR(50) NOT NULL DEFAULT ''",
	"Carton":    serial + "code VARCHAR(50) NOT NULL UNIQUE, n BIGINT NOT NULL, deleted_at DATETIME(3)",
	"Lid":       serial + "carton_id BIGINT NOT NULL, n BIGINT NOT NULL",
	"Folder":    serial + "code VARCHAR(50) NOT NULL UNIQUE, n BIGINT NOT NULL, deleted_at DATETIME(3)" + ", " + versionColumn,
	"Ware":      serial + "code VARCHAR(50) NULL UNIQUE, " + counted,
	"Part":      serial + "ware_id BIGINT NOT NULL",
	"Named":     "id VARCHAR(50) PRIMARY KEY, n BIGINT NOT NULL",
	"ShelfNote": serial + "shelf_id BIGINT",
	"Shown":     "id BIGINT PRIMARY KEY, n BIGINT NOT NULL, seen BIGINT NOT NULL DEFAULT 0",
	"Couple":    "id VARBINARY(50) PRIMARY KEY, n BIGINT NOT NULL",
	"Code":      "code VARBINARY(50) PRIMARY KEY, n BIGINT NOT NULL",
	"Tenant":    "id BIGINT PRIMARY KEY, n BIGINT NOT NULL, updated_at BIGINT NOT NULL DEFAULT 0",
	"Loose":     "n BIGINT NOT NULL",
	"Chest":     "code VARBINARY(50) PRIMARY KEY, " + counted,
	"Box":       "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, created_at DATETIME(3), updated_at DATETIME(3), deleted_at DATETIME(3)",
	"Sample":    "id BINARY(16) PRIMARY KEY, " + counted,
	"Parole":    "code VARBINARY(50) PRIMARY KEY, " + counted,
	"Tally":     "id BIGINT PRIMARY KEY, " + counted,
	"Coupon":    "code VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, " + counted,
	"Ticket":    "code VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, " + counted,
	"Ledger":    serial + "n BIGINT NOT NULL DEFAULT 0, deleted_at DATETIME(3), " + versionColumn,
	"Doc":       serial + "name VARCHAR(50) NOT NULL DEFAULT '', n BIGINT NOT NULL DEFAULT 0, author_id BIGINT, shelf_id BIGINT, " + versionColumn,
	"Page":      serial + "doc_id BIGINT, n BIGINT NOT NULL DEFAULT 0, row_" + versionColumn,
	"Author":    serial + "name VARCHAR(50) NOT NULL DEFAULT '', " + versionColumn,
	"Sheet":     "id BIGINT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, deleted_at DATETIME(3), " + versionColumn,
}

// env is a database for one test, on a guarded pool or a plain one.
type env struct {
	*testdb.DB
	guarded bool
	skip    bool // SkipDefaultTransaction
	names   names
}

// names are the tables of one test.
type names struct {
	schema.NamingStrategy
	tables map[string]string
}

func (n names) TableName(model string) string { return n.tables[model] }

// each runs a test on guarded and plain pools of every engine, with tables for the models.
func each(t *testing.T, models []string, test func(t *testing.T, e *env)) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); onEngines(t, models, name, guarded, test) })
	}
}

// eachSetting runs a test on a guarded pool of every engine, and on a plain one under SkipDefaultTransaction, where
// GORM drops some of its callbacks, and callbacks registered relative to these lose their place.
func eachSetting(t *testing.T, models []string, test func(t *testing.T, e *env)) {
	each(t, models, func(t *testing.T, e *env) {
		e.skip = !e.guarded
		test(t, e)
	})
}

// eachGuarded runs a test on a guarded pool of every engine.
func eachGuarded(t *testing.T, models []string, test func(t *testing.T, e *env)) {
	t.Parallel()
	onEngines(t, models, "guarded", true, test)
}

// onEngines runs a test on every engine, in the database of a setting: the same test beside it, in another setting, locks the same keys.
func onEngines(t *testing.T, models []string, setting string, guarded bool, test func(t *testing.T, e *env)) {
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		if engine.Guarded() && !guarded {
			return // see TestTiDBRefused
		}
		e := &env{DB: testdb.OpenBeside(t, engine, setting), guarded: guarded, names: names{tables: map[string]string{}}}
		for _, model := range models {
			e.names.tables[model] = e.CreateTable(t, model, cmp.Or(columns[model], serial+counted))
		}
		test(t, e)
	})
}

// open opens GORM over a pool of its own for the application user.
func (e *env) open(t *testing.T, configure ...func(*gorm.Config)) *gorm.DB {
	t.Helper()
	return e.openDSN(t, e.DSN(), configure...)
}

func (e *env) openDSN(t *testing.T, dsn string, configure ...func(*gorm.Config)) *gorm.DB {
	t.Helper()
	dialector := mysql.Open(dsn)
	if e.guarded {
		dialector = lockgorm.Dialector(dsn)
	}
	db := testdb.Got(gorm.Open(dialector, e.config(configure...)))(t)
	closeAfter(t, db)
	return db
}

// tenYears is the one PrepareStmtTTL for which GORM starts no goroutine that outlives the pool.
const tenYears = 10 * 365 * 24 * time.Hour

// config is a configuration with the tables of the test.
func (e *env) config(configure ...func(*gorm.Config)) *gorm.Config {
	cfg := &gorm.Config{Logger: logger.Discard, NamingStrategy: e.names, PrepareStmtTTL: tenYears, SkipDefaultTransaction: e.skip}
	for _, c := range configure {
		c(cfg)
	}
	return cfg
}

// openPlugin does what open does, and uses the plugin.
func (e *env) openPlugin(t *testing.T, options ...lockgorm.Option) *gorm.DB {
	t.Helper()
	return used(t, e.open(t), options...)
}

// withPlugin is a test that begins by openPlugin.
func withPlugin(test func(t *testing.T, e *env, db *gorm.DB)) func(t *testing.T, e *env) {
	return func(t *testing.T, e *env) { test(t, e, e.openPlugin(t)) }
}

// within calls fn in a transaction, which is committed.
func within(t *testing.T, db *gorm.DB, fn func(tx *gorm.DB)) {
	t.Helper()
	noError(t, db.Transaction(func(tx *gorm.DB) error { fn(tx); return nil }))
}

// used uses the plugin.
func used(t *testing.T, db *gorm.DB, options ...lockgorm.Option) *gorm.DB {
	t.Helper()
	noError(t, db.Use(lockgorm.New(options...)))
	return db
}

// configs prepare statements, or not.
var configs = map[string]func(*gorm.Config){
	"default":     func(*gorm.Config) {},
	"PrepareStmt": func(cfg *gorm.Config) { cfg.PrepareStmt = true },
}

// closeAfter closes the pool at the end of the test, and fails if somebody still uses it.
func closeAfter(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool := poolOf(t, db)
	t.Cleanup(func() {
		testdb.Equal(t, "connections in use at the end", testdb.InUse(pool), 0)
		_ = pool.Close()
	})
}

func poolOf(t *testing.T, db *gorm.DB) *sql.DB {
	t.Helper()
	return testdb.Got(db.DB())(t)
}

// held reports whether somebody holds all keys exclusively. It asks by a session of its own.
func (e *env) held(t *testing.T, keys ...txlock.Key) bool {
	t.Helper()
	if e.Engine().Guarded() { // which shows no locks
		return !slices.ContainsFunc(keys, func(key txlock.Key) bool { return !e.refused(t, key) })
	}
	holders := testdb.Got(txlock.Holders(context.WithoutCancel(t.Context()), e.Admin(), keys...))(t)
	return len(holders) == len(keys)
}

// refused reports whether the row of a key can't be locked at once.
func (e *env) refused(t *testing.T, key txlock.Key) bool {
	t.Helper()
	tx := testdb.Got(e.Admin().BeginTx(t.Context(), nil))(t)
	defer tx.Rollback() //nolint:errcheck // nothing was done in it
	_, err := tx.ExecContext(t.Context(), "SELECT 1 FROM lockstep_locks WHERE name = ? FOR UPDATE NOWAIT", key.String())
	if err != nil && !errors.Is(err, &driver.MySQLError{Number: 3572}) {
		t.Fatal(err)
	}
	return err != nil
}

// hold takes keys in a transaction of somebody else, until the end of the test.
func (e *env) hold(t *testing.T, keys ...txlock.Key) {
	t.Helper()
	pool := e.Admin()
	if e.Engine().Guarded() {
		pool = openPool(true, false)(t, e.AdminConfig()).DB()
	}
	tx := testdb.Begin(t, pool)
	scope := testdb.Got(txlock.Join(t.Context(), tx, txlock.NothingRead()))(t)
	noError(t, testdb.Err(scope.LockAll(t.Context(), keys...)))
}

// count counts rows by a session of its own.
func (e *env) count(t *testing.T, model, where string, args ...any) int {
	t.Helper()
	var n int
	noError(t, e.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+e.names.tables[model]+" WHERE "+where, args...).Scan(&n))
	return n
}

// wantRows fails the test unless so many rows of a model are where.
func (e *env) wantRows(t *testing.T, what string, want int, model, where string, args ...any) {
	t.Helper()
	n := e.count(t, model, where, args...)
	testdb.ErrorIf(t, n != want, "%s: %d rows of %s where %s, %v, want %d", what, n, model, where, args, want)
}

// wantHeld fails the test unless somebody holds all keys exclusively.
func (e *env) wantHeld(t *testing.T, what string, keys ...txlock.Key) {
	t.Helper()
	testdb.ErrorIf(t, len(keys) > 0 && !e.held(t, keys...), "%s: not all are held: %v", what, keys)
}

// wantFree fails the test unless somebody else could lock each of the keys now.
func (e *env) wantFree(t *testing.T, what string, keys ...txlock.Key) {
	t.Helper()
	for _, key := range keys {
		testdb.ErrorIf(t, !e.free(t, key), "%s: %v is not free", what, key)
	}
}

// lastID is the last number that newID has returned.
var lastID atomic.Int64

// newID returns a number that no other test uses for a key.
func newID() int64 { return lastID.Add(1) + 1_000_000 }

// newKey returns the key of a number that no other test uses.
func newKey() txlock.Key { return orders.Key(newID()) }

var noError, wantError, wantFailure = testdb.Must, testdb.Wants, testdb.Fails

// wantCure fails the test unless the error matches, and says how to cure it.
func wantCure(t *testing.T, err, want error, cure string) {
	t.Helper()
	testdb.ErrorIf(t, !errors.Is(err, want) || !strings.Contains(err.Error(), cure), "%v, want %v and %q", err, want, cure)
}

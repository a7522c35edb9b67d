package gormgen

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gen"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/tests/gormgen/query"
	"github.com/dca00107/lockstep/tests/gormgen/shop"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var (
	orders = txlock.NewFamily[int64]("gen-order") // of the tag
	lastID atomic.Int64
)

// tables are the tables of one test.
type tables struct {
	schema.NamingStrategy
	of map[string]string
}

func (n tables) TableName(model string) string { return n.of[model] }

// env is a database with the tables of the models, and GORM over a guarded pool.
type env struct {
	*testdb.DB
	db *gorm.DB
	q  *query.Query
}

// each runs a test on every engine.
func each(t *testing.T, test func(t *testing.T, e *env)) {
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
		e := &env{DB: testdb.Open(t, engine)}
		const id = "id BIGINT AUTO_INCREMENT PRIMARY KEY, "
		names := tables{of: map[string]string{
			"Order":   e.CreateTable(t, "orders", id+"n BIGINT NOT NULL DEFAULT 0"),
			"Item":    e.CreateTable(t, "items", id+"order_id BIGINT, n BIGINT NOT NULL DEFAULT 0"),
			"Account": e.CreateTable(t, "accounts", id+"balance BIGINT NOT NULL DEFAULT 0, version BIGINT UNSIGNED NOT NULL DEFAULT 1"),
		}}
		db := testdb.Got(lockgorm.Open(e.DSN(), &gorm.Config{Logger: logger.Discard, NamingStrategy: names}))(t)
		t.Cleanup(func() {
			pool, err := db.DB()
			noError(t, errors.Join(err, pool.Close()))
		})
		noError(t, db.Use(lockgorm.New(lockgorm.Check(&shop.Order{}, &shop.Account{}))))
		e.db, e.q = db, query.Use(db)
		test(t, e)
	})
}

// order makes an order that nobody else uses, and its key. The database numbers what follows
// it, which other tests don't use either.
func (e *env) order(t *testing.T) (*shop.Order, txlock.Key) {
	t.Helper()
	o := &shop.Order{ID: lastID.Add(1000) + 1_000_000}
	noError(t, e.q.Order.WithContext(t.Context()).Create(o))
	return o, orders.Key(o.ID)
}

// held tells whether somebody holds the key exclusively.
func (e *env) held(t *testing.T, key txlock.Key) bool {
	t.Helper()
	holders := testdb.Got(txlock.Holders(t.Context(), e.Admin(), key))(t)
	return len(holders) == 1
}

// lockedBy fails the test unless a write succeeds, and holds the key until its transaction ends.
func (e *env) lockedBy(t *testing.T, what string, key txlock.Key, write func(q *query.Query) error) {
	t.Helper()
	noError(t, e.q.Transaction(func(q *query.Query) error {
		err := write(q)
		testdb.ErrorIf(t, err != nil || !e.held(t, key), "%s: %v is free: %v", what, key, err)
		return nil
	}))
}

var noError, wantError = testdb.Must, testdb.Wants

// TestLocksByHand locks with UnderlyingDB in transactions of the queries, and with Clauses and Scopes of a query.
func TestLocksByHand(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		ctx := t.Context()
		o, key := e.order(t)
		_, other := e.order(t)
		byID, on := e.q.Order.ID.Eq(o.ID), lockgorm.On(other)
		wantError(t, "Lock outside of a transaction", testdb.Err(lockgorm.Lock(e.q.Order.WithContext(ctx).UnderlyingDB(), key)), txlock.ErrNoTransaction)
		wantError(t, "On outside of a transaction", testdb.Err(e.q.Order.WithContext(ctx).Clauses(on).Find()), txlock.ErrNoTransaction)
		e.lockedBy(t, "Lock", key, func(q *query.Query) error {
			db := q.Order.WithContext(ctx).UnderlyingDB()
			return errors.Join(testdb.Err(lockgorm.Lock(db, key)), lockgorm.AssertLocked(db, key))
		})
		for name, send := range map[string]func(do query.IOrderDo) error{
			"First":   func(do query.IOrderDo) error { return testdb.Err(do.Clauses(on).Where(byID).First()) },
			"Preload": func(do query.IOrderDo) error { return testdb.Err(do.Clauses(on).Preload(e.q.Order.Items).Find()) },
			"Update":  func(do query.IOrderDo) error { return testdb.Err(do.Clauses(on).Where(byID).Update(e.q.Order.N, 1)) },
			"Scopes": func(do query.IOrderDo) error {
				return testdb.Err(do.Scopes(func(do gen.Dao) gen.Dao { return do.Clauses(on) }).Find())
			},
		} {
			e.lockedBy(t, name, other, func(q *query.Query) error { return send(q.Order.WithContext(ctx)) })
		}
		noError(t, lockgorm.Transaction(e.db, []txlock.Key{key}, func(tx *gorm.DB) error {
			short := query.Use(lockgorm.WaitAtMost(e.db, 100*time.Millisecond)) // beside it
			wantError(t, "Save", short.Order.WithContext(ctx).Save(o), txlock.ErrWaitTimeout)
			return testdb.Err(query.Use(tx).Order.WithContext(ctx).Where(byID).Update(e.q.Order.N, 2))
		}))
	})
}

// TestTagged writes models whose keys a tag names.
func TestTagged(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		ctx := t.Context()
		o, key := e.order(t)
		loaded := lockgorm.Loaded(o)
		for name, write := range map[string]func(do query.IOrderDo) error{
			"Save": func(do query.IOrderDo) error { return do.Save(o) },
			"Loaded, UpdateSimple": func(do query.IOrderDo) error {
				return testdb.Err(do.Clauses(loaded).UpdateSimple(e.q.Order.N.Value(2)))
			},
			"Loaded, Updates":      func(do query.IOrderDo) error { return testdb.Err(do.Clauses(loaded).Updates(map[string]any{"n": 3})) },
			"Loaded, UpdateColumn": func(do query.IOrderDo) error { return testdb.Err(do.Clauses(loaded).UpdateColumn(e.q.Order.N, 4)) },
			"by its primary key": func(do query.IOrderDo) error {
				return testdb.Err(do.Where(e.q.Order.ID.Eq(o.ID), e.q.Order.N.Gt(0)).Update(e.q.Order.N, 5))
			},
			"by another column": func(do query.IOrderDo) error {
				info, err := do.Where(e.q.Order.N.Gte(0), e.q.Order.N.Lt(99)).UpdateSimple(e.q.Order.N.Add(1))
				testdb.Equal(t, "rows by another column", info.RowsAffected, 1)
				return err
			},
			"by a list": func(do query.IOrderDo) error {
				return testdb.Err(do.Where(e.q.Order.N.Gt(0)).Where(e.q.Order.ID.In(o.ID, o.ID+1000)).UpdateSimple(e.q.Order.N.Add(1)))
			},
		} {
			e.lockedBy(t, name, key, func(q *query.Query) error { return write(q.Order.WithContext(ctx)) })
		}
		noError(t, e.db.Transaction(func(tx *gorm.DB) error {
			n, err := gorm.G[shop.Order](tx).Where("id = ?", o.ID).Set(set("n", 100)).Update(ctx) // no other write leaves that
			testdb.ErrorIf(t, n != 1 || !e.held(t, key), "Set has changed %d rows, %v", n, err)
			return err
		}))
		wantError(t, "Set of a key of another name", gorm.G[shop.Order](e.db).Set(set("iD", o.ID+1)).Create(ctx), txlock.ErrInvalidKey)
		made := &shop.Order{}
		noError(t, e.q.Transaction(func(q *query.Query) error {
			noError(t, q.Order.WithContext(ctx).Create(made))
			testdb.ErrorIf(t, e.held(t, orders.Key(made.ID)), "a create whose key the database makes has taken a lock")
			info, err := q.Order.WithContext(ctx).Clauses(lockgorm.Loaded(made)).Delete()
			testdb.ErrorIf(t, info.RowsAffected != 1 || !e.held(t, orders.Key(made.ID)), "Delete of a loaded one: %+v, %v", info, err)
			info, err = q.Order.WithContext(ctx).Delete(o)
			testdb.ErrorIf(t, info.RowsAffected != 1 || !e.held(t, key), "Delete: %+v", info)
			return err
		}))
	})
}

// TestVersions compares the versions of loaded models.
func TestVersions(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		q, do := e.q, e.q.Account.WithContext(t.Context())
		a := &shop.Account{Balance: 1}
		noError(t, do.Create(a))
		old := *a
		noError(t, testdb.Err(do.Clauses(lockgorm.Loaded(a)).UpdateSimple(q.Account.Balance.Value(2))))
		noError(t, testdb.Err(do.Clauses(lockgorm.Loaded(a)).Updates(&shop.Account{Balance: 3})))
		found := testdb.Got(do.Where(q.Account.ID.Eq(a.ID)).First())(t)
		testdb.ErrorIf(t, found.Balance != 3 || found.Version != a.Version || a.Version == old.Version, "found %+v, the model is %+v", found, a)
		wantError(t, "an old version", testdb.Err(do.Clauses(lockgorm.Loaded(&old)).UpdateSimple(q.Account.Balance.Value(4))), txlock.ErrConflict)
		wantError(t, "Delete of an old version", testdb.Err(do.Delete(&old)), txlock.ErrConflict)
		wantError(t, "nothing to compare", testdb.Err(do.Where(q.Account.ID.Eq(a.ID)).UpdateSimple(q.Account.Balance.Value(5))), lockgorm.ErrVersion)
		wantError(t, "Save, which is an upsert", do.Save(found), lockgorm.ErrVersion)
		setVersion := gorm.G[shop.Account](e.db, lockgorm.AnyVersion).Where("id = ?", a.ID).Set(set("version", 41))
		wantError(t, "Set of the version", testdb.Err(setVersion.Update(t.Context())), lockgorm.ErrVersion)
		noError(t, testdb.Err(do.Clauses(lockgorm.AnyVersion).Where(q.Account.ID.Eq(a.ID)).UpdateSimple(q.Account.Balance.Value(6))))
		wantError(t, "a version that AnyVersion has raised", testdb.Err(do.Clauses(lockgorm.Loaded(found)).UpdateSimple(q.Account.Balance.Value(7))), txlock.ErrConflict)
	})
}

// set is an assignment for Set of gorm.G, which GORM has had since 1.31: lockgorm asks for an older one.
func set(column string, value any) clause.Assignment {
	return clause.Assignment{Column: clause.Column{Name: column}, Value: value}
}

package lockgorm_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestUnknownRecords sends writes of a Locker without a primary key that names the
// records. None may be sent, unless On names the keys.
func TestUnknownRecords(t *testing.T) {
	order := func(db *gorm.DB) *gorm.DB { return db.Model(&Order{ID: 41}) }
	writes := map[string]func(db *gorm.DB) *gorm.DB{
		"one without id":  func(db *gorm.DB) *gorm.DB { return db.Model([]Order{{ID: 41}, {}}).Where("id > 40").Update("n", 1) },
		"id or else":      func(db *gorm.DB) *gorm.DB { return order(db).Where("n = 7").Or("id = 42").Update("n", 1) },
		"Or alone":        func(db *gorm.DB) *gorm.DB { return order(db).Or("id = 42").Update("n", 1) },
		"Delete, or else": func(db *gorm.DB) *gorm.DB { return db.Where("n = 7").Or("id = 42").Delete(&Order{ID: 41}) },
		"XOR, named": func(db *gorm.DB) *gorm.DB {
			return db.Where("n = @n XOR id = 42", sql.Named("n", 7)).Delete(&Order{ID: 41})
		},
		"NOT, OR":                  func(db *gorm.DB) *gorm.DB { return order(db).Not("id = 9\nOR\nid = 42").Update("n", 1) },
		"an expression":            func(db *gorm.DB) *gorm.DB { return order(db).Where("?", gorm.Expr("id = 1 OR id = 42")).Update("n", 1) },
		"an expression as a value": func(db *gorm.DB) *gorm.DB { return order(db).Where("n", gorm.Expr("1 OR id = 42")).Update("n", 1) },
		"ORDER BY in a condition":  func(db *gorm.DB) *gorm.DB { return db.Where("id > ? ORDER BY id DESC", 40).Delete(&Order{}) },
		"another table": func(db *gorm.DB) *gorm.DB {
			table := clause.Table{Name: db.NamingStrategy.TableName("Order")}
			return order(db.Table("? AS a, ? AS b", table, table)).Where("b.id = 42").Update("b.n", 1)
		},
		"another key":      func(db *gorm.DB) *gorm.DB { return db.Model(&Order{ID: 42}).Update("id", 43) },
		"a map with Model": func(db *gorm.DB) *gorm.DB { return db.Model(&Order{}).Create(map[string]any{"id": 43}) },
		"maps with Model":  func(db *gorm.DB) *gorm.DB { return db.Model(&Order{}).Create([]map[string]any{{"id": 44}}) },
	}
	for _, text := range []string{"n = 7\n\tOR\tid = 42", "n = 7 || id = 42", "n = 1 /*!OR*/ id = 42", "id = 42 -- ", "n = 1) OR (id = 42"} {
		writes[text] = func(db *gorm.DB) *gorm.DB { return order(db).Where(text).Update("n", 1) }
		writes["Delete, "+text] = func(db *gorm.DB) *gorm.DB { return db.Where(text).Delete(&Order{ID: 41}) }
	}
	eachGuarded(t, []string{"Order"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		noError(t, db.Create(&Order{ID: 42}).Error)
		for what, write := range writes {
			wantError(t, what, write(db).Error, txlock.ErrInvalidKey)
			err := db.Transaction(func(tx *gorm.DB) error { return write(tx).Error })
			wantError(t, what+" in a Transaction", err, txlock.ErrInvalidKey)
			e.wantRows(t, what+": it was written", 1, "Order", "id = 42 AND n = 0")
			e.wantRows(t, what+": it was written", 0, "Order", "id <> 42")
		}
		for what, write := range writes {
			switch what {
			case "maps with Model", "id = 42 -- ", "Delete, id = 42 -- ", "another table":
				continue // GORM itself can't read MariaDB's RETURNING into maps, and writes no SQL for the others
			}
			key := e.ensured(t)
			wantError(t, what+" with On", db.Transaction(func(tx *gorm.DB) error {
				err := write(tx.Clauses(lockgorm.On(key)).Session(&gorm.Session{})).Error
				e.wantHeld(t, what+": the key of On is free", key)
				return cmp.Or(err, errInner)
			}), errInner)
		}
	}))
}

// Wagon names a key by a read in the transaction of its statement.
type Wagon struct {
	ID int64
	N  int64
}

func (w *Wagon) LockKeys(tx *gorm.DB) ([]txlock.Key, error) {
	_, err := lockgorm.Join(tx)
	return orders.Keys(w.ID), err
}

// TestOwnTransaction proves of the transactions that the plugin begins under
// SkipDefaultTransaction that keys are asked for within them, that they leave the connection of
// the program as it was, and that errors and panics end them.
func TestOwnTransaction(t *testing.T) {
	each(t, []string{"Wagon", "Coupon", "Parcel", "Order"}, func(t *testing.T, e *env) {
		e.skip = true
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Wagon{ID: id}).Error)
		noError(t, db.Model(&Wagon{ID: id}).Update("n", 1).Error)
		noError(t, db.Create(&Coupon{Code: "ten"}).Error) // its column is looked up
		noError(t, db.Create(&Parcel{ID: id}).Error)
		noError(t, db.Connection(func(tx *gorm.DB) error {
			var mine int
			noError(t, tx.Session(&gorm.Session{}).Exec("SET @mine = 5").Error)
			noError(t, tx.Session(&gorm.Session{}).Delete(&Parcel{}, id).Error)
			noError(t, tx.Model(&Order{ID: id}).Update("n", 3).Error)
			err := tx.Session(&gorm.Session{NewDB: true}).Raw("SELECT @mine").Scan(&mine).Error
			equal(t, "the session's variable", mine, 5)
			return err
		}))
		ctx, cancel := context.WithCancel(t.Context())
		err := withHook(db.WithContext(ctx), func(*gorm.DB, int64) error { cancel(); return ctx.Err() }).Model(&Order{ID: id}).Update("n", 4).Error
		if !errors.Is(err, context.Canceled) || errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a hook that cancels: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = withHook(db, func(*gorm.DB, int64) error { panic("hook") }).Model(&Order{ID: id}).Update("n", 5).Error
			t.Error("the hook's panic was lost")
		}()
		if !testdb.Await(time.Minute, func() bool { runtime.GC(); return testdb.InUse(poolOf(t, db)) == 0 }) {
			t.Error("a panic has left a transaction open")
		}
	})
}

// TestSkipDefaultTransaction proves that a write that needs a lock has a transaction of its own
// where GORM begins none: it holds the lock, hooks run in it, and an error undoes all of it.
func TestSkipDefaultTransaction(t *testing.T) {
	each(t, []string{"Order", "Item", "Parcel"}, func(t *testing.T, e *env) {
		skip := used(t, e.open(t, func(cfg *gorm.Config) { cfg.SkipDefaultTransaction = true }))
		session := e.openPlugin(t).Session(&gorm.Session{SkipDefaultTransaction: true})
		for name, db := range map[string]*gorm.DB{"Config": skip, "Session": session, "PrepareStmt": skip.Session(&gorm.Session{PrepareStmt: true})} {
			id := newID()
			for what, write := range map[string]func(db *gorm.DB) error{
				"Create":          func(db *gorm.DB) error { return db.Create(&Order{ID: id, Items: []Item{{ID: id}}}).Error },
				"Update":          func(db *gorm.DB) error { return db.Model(&Order{ID: id}).Update("n", 1).Error },
				"Save":            func(db *gorm.DB) error { return db.Save(&Order{ID: id, N: 2}).Error },
				"CreateInBatches": func(db *gorm.DB) error { return db.Save([]*Order{{ID: id, N: 3}}).Error },
				"Delete":          func(db *gorm.DB) error { return db.Delete(&Order{ID: id}).Error },
			} {
				noError(t, db.Clauses(clause.OnConflict{DoNothing: true}).Create(&Order{ID: id}).Error)
				before, calls := e.count(t, "Order", "id = ? AND n = 0", id), 0
				fails := withHook(db, func(tx *gorm.DB, _ int64) error {
					calls++
					e.wantHeld(t, name+", "+what+": its hook", orders.Key(id))
					if err := lockgorm.AssertLocked(tx, orders.Key(id)); e.guarded && err != nil {
						t.Errorf("%s, %s: its hook runs outside: %v", name, what, err)
					}
					return errInner
				})
				wantError(t, what+" whose hook fails", write(fails), errInner)
				e.wantRows(t, name+", "+what+" whose hook fails", before, "Order", "id = ? AND n = 0", id)
				if e.wantSoonFree(t, name+", "+what+" whose hook fails", orders.Key(id)); calls == 0 {
					t.Errorf("%s, %s: no hook", name, what)
				}
			}
			noError(t, db.Create(&Order{ID: -id - 1<<40, Items: []Item{{ID: id}}}).Error)
			e.wantRows(t, name, 1, "Item", "id = ?", id)
			noError(t, db.Create(&Order{}).Error) // NoLock needs no transaction
			wantError(t, "Exec", db.Clauses(lockgorm.On(orders.Key(id))).Exec("DO 1").Error, txlock.ErrNoTransaction)
			twice := db.Model(&Parcel{ID: id})
			noError(t, twice.Update("n", 1).Error)
			noError(t, twice.Update("n", 2).Error)
			wantError(t, "a transaction", db.Transaction(func(tx *gorm.DB) error {
				noError(t, tx.Create(&Order{ID: -id}).Error)
				e.wantHeld(t, name+": a write in a transaction has ended it", orders.Key(-id))
				return errInner
			}), errInner)
			e.wantRows(t, name+": a write in a transaction was committed", 0, "Order", "id = ?", -id)
		}
	})
}

// TestItsReadsAreNotPrepared looks into GORM's store of prepared statements, which waits for a
// connection of the pool while others wait for the store: what the plugin reads by itself isn't
// there.
func TestItsReadsAreNotPrepared(t *testing.T) {
	each(t, []string{"Parcel"}, func(t *testing.T, e *env) {
		e.names.tables["Voucher"] = e.CreateTable(t, "vouchers", "code VARBINARY(50) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0")
		db := used(t, e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }))
		store := db.ConnPool.(*gorm.PreparedStmtDB).Stmts
		raise := func(db *gorm.DB) error {
			return db.Model(&Parcel{}).Where("n + 0 = ?", 1).Update("n", gorm.Expr("n + 0")).Error
		}
		noError(t, db.Create(&Parcel{ID: newID(), N: 1}).Error)
		noError(t, db.Create(&Voucher{Code: "a"}).Error)
		noError(t, raise(db))
		noError(t, db.Transaction(raise))
		noError(t, db.Transaction(func(tx *gorm.DB) error { // a session that prepares, of one that does
			return raise(tx.Session(&gorm.Session{PrepareStmt: true}))
		}))
		if !slices.ContainsFunc(store.Keys(), func(text string) bool { return strings.HasPrefix(text, "UPDATE") }) {
			t.Error("the update is not prepared: this test can't tell")
		}
		for _, text := range store.Keys() {
			if strings.HasPrefix(text, "SELECT") {
				t.Errorf("prepared: %s", text)
			}
		}
	})
}

// TestPanicOfAHook lets a hook panic in a transaction of the statement's own: that ends with the
// context, as a handler's does, and the lock with it.
func TestPanicOfAHook(t *testing.T) {
	eachSetting(t, []string{"Order"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		id := newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		ctx, end := context.WithCancel(t.Context())
		hook := withHook(db.WithContext(ctx), func(*gorm.DB, int64) error { panic("boom") })
		panicked := func() (what any) {
			defer func() { what = recover() }()
			return hook.Model(&Order{ID: id}).Update("n", 5).Error
		}()
		equal(t, "the panic of the hook", panicked, any("boom"))
		end()
		equal(t, "connections in use", testdb.InUse(poolOf(t, db)), 0)
		e.wantSoonFree(t, "afterwards", orders.Key(id))
		e.wantRows(t, "the order was written", 1, "Order", "id = ? AND n = 0", id)
	}))
}

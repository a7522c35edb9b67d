package lockgorm_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestUnknownRecords sends writes of a Locker without a primary key that names the records.
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

// TestOwnTransaction shows of the transactions that the plugin begins under SkipDefaultTransaction that keys are asked for within them, that they
// leave the connection of the program as it was, and that errors and panics end them.
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
			leasetest.Equal(t, "the session's variable", mine, 5)
			return err
		}))
		ctx, cancel := context.WithCancel(t.Context())
		err := withHook(db.WithContext(ctx), func(*gorm.DB, int64) error { cancel(); return ctx.Err() }).Model(&Order{ID: id}).Update("n", 4).Error
		testdb.ErrorIf(t, !errors.Is(err, context.Canceled) || errors.Is(err, sql.ErrTxDone), "a hook that cancels: %v", err)
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

// TestSkipDefaultTransaction: a write that needs a lock has a transaction of its own where GORM begins none, with its hooks, and an error undoes it.
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
					err := lockgorm.AssertLocked(tx, orders.Key(id))
					testdb.ErrorIf(t, e.guarded && err != nil, "%s, %s: its hook runs outside: %v", name, what, err)
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

// TestItsReadsAreNotPrepared: what the plugin reads by itself isn't in GORM's store of prepared statements, for which others would wait.
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
		testdb.ErrorIf(t, !slices.ContainsFunc(store.Keys(), func(text string) bool { return strings.HasPrefix(text, "UPDATE") }),
			"the update is not prepared: this test can't tell")
		for _, text := range store.Keys() {
			testdb.ErrorIf(t, strings.HasPrefix(text, "SELECT"), "prepared: %s", text)
		}
	})
}

const (
	workers = 4
	rounds  = 5
)

// together runs fn in several goroutines and returns their errors.
func together(n int, fn func(worker int) error) error {
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() { errs[i] = fn(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// manyTimes calls fn in turn in several goroutines.
func manyTimes(fn func() error) error {
	return together(workers, func(int) error {
		for range rounds {
			if err := fn(); err != nil {
				return err
			}
		}
		return nil
	})
}

// increment updates an order. Its hook reads note 1 and writes it back, raised by one. Only a lock taken before the hook keeps two of them apart.
func increment(db *gorm.DB, order int64) error {
	return withHook(db, func(tx *gorm.DB, _ int64) error {
		var note Note
		if err := tx.First(&note, 1).Error; err != nil {
			return err
		}
		return tx.Model(&note).Update("n", note.N+1).Error
	}).Model(&Order{ID: order}).Update("name", "x").Error
}

// TestNoUpdateIsLost reads and writes back under a lock of the plugin, of On and of Transaction, and without one under a version.
func TestNoUpdateIsLost(t *testing.T) {
	each(t, append([]string{"Order", "Note"}, versionedModels...), func(t *testing.T, e *env) {
		db, id := e.openPlugin(t), newID()
		noError(t, db.Create(&Note{ID: 1}).Error)
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, manyTimes(func() error { return increment(db, id) }))
		raise := func(read, tx *gorm.DB) error {
			var order Order
			if err := read.First(&order, id).Error; err != nil {
				return err
			}
			return tx.Model(&order).Update("n", order.N+1).Error
		}
		noError(t, manyTimes(func() error {
			return db.Transaction(func(tx *gorm.DB) error { return raise(tx.Clauses(lockgorm.On(orders.Key(id))), tx) })
		}))
		noError(t, manyTimes(func() error {
			return lockgorm.Transaction(db, []txlock.Key{orders.Key(id), items.Key(id)}, func(tx *gorm.DB) error { return raise(tx, tx) })
		}))
		doc := newDoc(t, db).ID
		save := func(tx *gorm.DB) error {
			var d Doc
			if err := tx.First(&d, doc).Error; err != nil {
				return err
			}
			d.N++
			return tx.Save(&d).Error
		}
		levels := []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelReadCommitted}
		noError(t, together(workers, func(worker int) error {
			once := func() error { return db.Transaction(save, &sql.TxOptions{Isolation: levels[worker%2]}) }
			if worker == 0 {
				once = func() error { return save(db) }
			}
			for done := 0; done < rounds; {
				if err := once(); err == nil {
					done++
				} else if !txlock.Retryable(err) && !errors.Is(err, txlock.ErrConflict) {
					return err
				}
			}
			return nil
		}))
		e.wantRows(t, "a save was lost", 1, "Doc", "n = ?", workers*rounds)
		e.wantRows(t, "an update was lost", 1, "Note", "n = ?", workers*rounds)
		e.wantRows(t, "an update was lost", 1, "Order", "id = ? AND n = ?", id, 2*workers*rounds)
	})
}

// Barrel stands on a shelf, which has an index.
type Barrel struct {
	ID    int64 `lockstep:"barrel"`
	Shelf int64
	N     int64
}

// TestRowsBesideEverything writes by conditions, by primary keys and by Save, then also moves rows by SQL between the shelves that the conditions
// name, at each level and on guarded and plain pools: nothing is lost, no write fails unless reads lock, and without moves there is no deadlock.
func TestRowsBesideEverything(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			server := testdb.Dedicated(t, engine) // whose deadlocks are those of this test
			for i, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
				for _, guarded := range []bool{true, false} {
					if testdb.Meet(i, guarded) {
						besideEverything(t, &env{DB: server.OpenNamed(t), guarded: guarded, names: names{tables: map[string]string{}}}, level)
					}
				}
			}
		})
	}
}

func besideEverything(t *testing.T, e *env, level sql.IsolationLevel) {
	what := fmt.Sprintf("guarded=%t, %v", e.guarded, level)
	table := e.CreateTable(t, "Barrel", "id BIGINT PRIMARY KEY, shelf BIGINT NOT NULL, n BIGINT NOT NULL DEFAULT 0, KEY by_shelf (shelf)")
	e.names.tables["Barrel"] = table
	db := e.openPlugin(t)
	poolOf(t, db).SetMaxOpenConns(24)
	barrels, options := txlock.NewFamily[int64]("barrel"), &sql.TxOptions{Isolation: level}
	const rows, shelves, workers, moves = 24, 4, 10, 4
	rounds := testdb.Long(6, 50)
	for id := range int64(rows) {
		noError(t, db.Create(&Barrel{ID: id + 1, Shelf: id % shelves}).Error)
	}
	var added atomic.Int64
	// Where reads lock, all ten tries of a transaction may deadlock.
	transaction := func(id int64, fn func(tx *gorm.DB) error) error {
		added.Add(1)
		for {
			err := lockgorm.Transaction(db, barrels.Keys(id), fn, options)
			if level != sql.LevelSerializable || !txlock.Retryable(err) {
				return err
			}
		}
	}
	raise := func(where string, args ...any) error {
		got := db.Model(&Barrel{}).Where(where, args...).Update("n", clause.Expr{SQL: "n + 1"})
		added.Add(got.RowsAffected)
		return got.Error
	}
	writes := []func(id, shelf int64) error{
		func(_, shelf int64) error { return raise("shelf = ?", shelf) }, // rows that a condition selects by an index
		func(id, _ int64) error { return raise("id + 0 IN ?", []int64{id, id%rows + 1}) },
		func(id, _ int64) error { return raise("id = ?", id) },
		func(id, _ int64) error {
			return transaction(id, func(tx *gorm.DB) error {
				var c Barrel
				if err := tx.Take(&c, id).Error; err != nil {
					return err
				}
				c.N++
				return tx.Save(&c).Error
			})
		},
		moves: func(id, shelf int64) error { // moves a row, by SQL under a lock of the program's
			return transaction(id, func(tx *gorm.DB) error {
				return tx.Exec("UPDATE "+table+" SET shelf = ?, n = n + 1 WHERE id = ?", shelf, id).Error
			})
		},
	}
	before := e.deadlocks(t)
	for _, writes := range [][]func(id, shelf int64) error{writes[:moves], writes} {
		noError(t, together(workers, func(w int) (all error) {
			for i := range rounds {
				all = errors.Join(all, writes[(w+i)%len(writes)](int64(w*7+i*5)%rows+1, int64(w+i*3)%shelves))
			}
			return all
		}))
		var sum int64
		noError(t, e.Admin().QueryRowContext(context.Background(), "SELECT SUM(n) FROM "+table).Scan(&sum))
		leasetest.Equal(t, what+": the rows, of what was added", sum, added.Load())
		if n := e.deadlocks(t) - before; len(writes) == moves && n > 0 && level != sql.LevelSerializable { // where reads lock
			t.Errorf("%s: %d deadlocks where no row moves", what, n)
		}
	}
}

// deadlocks returns how many the server has seen.
func (e *env) deadlocks(t *testing.T) (n int64) {
	t.Helper()
	query := "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'INNODB_DEADLOCKS'"
	if e.Engine() == testdb.MySQL {
		query = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
	}
	noError(t, e.Admin().QueryRowContext(context.Background(), query).Scan(&n))
	return n
}

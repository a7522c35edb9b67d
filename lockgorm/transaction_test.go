package lockgorm_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

// TestTransactionNested runs in the open transaction, under a savepoint, and leaves retries to the outermost call.
func TestTransactionNested(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, db := range nested(t, e) {
			outer, inner, failing := e.ensured(t), e.ensured(t), e.ensured(t)
			runs := 0
			noError(t, lockgorm.Transaction(db, []txlock.Key{outer}, func(tx *gorm.DB) error {
				noError(t, lockgorm.Transaction(tx, []txlock.Key{inner, outer}, func(tx *gorm.DB) error { return tx.Create(&Note{N: 1}).Error }))
				e.wantHeld(t, name+": a lock is gone behind the nested Transaction", inner, outer)
				wantError(t, name, lockgorm.Transaction(tx, []txlock.Key{failing}, func(tx *gorm.DB) error {
					runs++
					noError(t, tx.Create(&Note{N: 2}).Error)
					return txlock.ErrConflict
				}), txlock.ErrConflict)
				return tx.Error
			}))
			testdb.Equal(t, name+": runs of the failing block", runs, 1)
			e.wantFree(t, name+": a lock outlives the outermost transaction", inner, outer, failing)
		}
		e.wantRows(t, "the blocks that went well", 3, "Note", "n = 1")
		e.wantRows(t, "those that failed, where no savepoint was", 1, "Note", "n = 2")
	})
}

// TestTransactionRetries makes the first run the victim of a deadlock.
func TestTransactionRetries(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			var log bytes.Buffer
			observer := txlock.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			dialector := mysql.Open(e.DSN())
			if e.guarded {
				dialector = lockgorm.Dialector(e.DSN(), txlock.Observe(observer))
			}
			db := testdb.Got(gorm.Open(dialector, e.config(configure)))(t)
			closeAfter(t, db)
			key, runs := e.ensured(t), 0
			noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
				runs++
				noError(t, tx.Create(&Note{N: 5}).Error)
				e.wantHeld(t, fmt.Sprintf("%s, run %d", name, runs), key)
				if runs == 1 {
					return e.deadlock(t, tx)
				}
				return nil
			}))
			noError(t, db.Error)
			testdb.Equal(t, name+": runs", runs, 2)
			told := fmt.Sprintf("msg=\"transaction retried\" key=%s ", key)
			testdb.Equal(t, name+": the observer is told once", strings.Count(log.String(), told) == 1, e.guarded)
		}
		e.wantRows(t, "rows, want one of each second run", 2, "Note", "n = 5")
	})
}

func TestTransactionOptions(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, key := e.open(t), e.ensured(t)
		noError(t, db.Create(&Note{ID: 1}).Error)
		for level, sees := range map[sql.IsolationLevel]int64{sql.LevelDefault: 0, sql.LevelReadCommitted: 1} {
			noError(t, db.Model(&Note{ID: 1}).Update("n", 0).Error)
			noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
				var before, after Note
				noError(t, tx.First(&before, 1).Error)
				e.Exec(t, "UPDATE "+e.names.tables["Note"]+" SET n = 1 WHERE id = 1")
				noError(t, tx.First(&after, 1).Error)
				testdb.Equal(t, fmt.Sprintf("%v: a second read", level), after.N, sees)
				return nil
			}, &sql.TxOptions{Isolation: level}))
		}
		err := lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error { t.Error("fn runs without a lock"); return nil },
			&sql.TxOptions{ReadOnly: true})
		wantError(t, "a read-only transaction", err, txlock.ErrReadOnly)
		err = lockgorm.Optimistic(db, key, func(*gorm.DB) error { t.Error("fn runs"); return nil }, nil, &sql.TxOptions{})
		wantError(t, "the options of two transactions", err, txlock.ErrInvalidOption)
	})
}

// endings are statements that end a transaction.
var endings = []struct {
	statement string
	rows      int    // that are committed
	says      string // the error, on a guarded pool
	anew      bool   // a plain pool doesn't know, but for the lock that Transaction compares after a deadlock
}{
	{"ALTER TABLE {T} COMMENT 'altered'", 1, "ALTER TABLE", false},
	{"COMMIT", 1, `the statement "COMMIT"`, false},
	{"CALL own_{T}()", 1, "CALL", true},
	{"ROLLBACK AND CHAIN", 0, `the statement "ROLLBACK AND CHAIN"`, true},
}

// outermost are the functions that begin and end a transaction.
var outermost = map[string]func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error{
	"Transaction": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, []txlock.Key{key}, fn)
	},
	"Transaction, no key": func(db *gorm.DB, _ txlock.Key, fn func(tx *gorm.DB) error) error {
		return lockgorm.Transaction(db, nil, fn)
	},
	"Optimistic": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		return lockgorm.Optimistic(db, key, fn)
	},
	"Once": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		return testdb.Err(lockgorm.Once(db, key, fn))
	},
	"OnceValue": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		_, _, err := lockgorm.OnceValue(db, key, func(tx *gorm.DB) (int, error) { return 1, fn(tx) })
		return err
	},
}

// TestTransactionNeverRepeatsCommitted has a statement end the transaction behind a write, and the function then return nil or have a deadlock: what
// was committed is not written again, and the error says what the statement did. What was rolled back isn't said to be committed.
func TestTransactionNeverRepeatsCommitted(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		table := e.names.tables["Note"]
		e.CreateProcedure(t, "own_"+table, "BEGIN COMMIT; START TRANSACTION; END")
		for i, end := range endings {
			for j, way := range slices.Sorted(maps.Keys(outermost)) {
				for _, deadlock := range []bool{false, true} {
					known := e.guarded || !end.anew || way == "Transaction" && deadlock && end.rows > 0
					if !known || !testdb.Meet(i, j, deadlock) {
						continue
					}
					db := e.openDSN(t, e.AdminDSN(), func(cfg *gorm.Config) { cfg.PrepareStmt = j%2 == 0 })
					runs, before := 0, e.count(t, "Note", "n = 5")
					err := outermost[way](db, e.ensured(t), func(tx *gorm.DB) error {
						runs++
						noError(t, tx.Create(&Note{N: 5}).Error)
						err := tx.Exec(strings.ReplaceAll(end.statement, "{T}", table)).Error
						if runs > 1 || !deadlock || errors.Is(err, txlock.ErrTxDoomed) {
							return err
						}
						return e.deadlock(t, tx)
					})
					n := e.count(t, "Note", "n = 5") - before
					if runs != 1 || n != end.rows || txlock.Retryable(err) || !errors.Is(err, txlock.ErrTxDoomed) ||
						e.guarded && (strings.Contains(err.Error(), "committed") != (n == 1) || !strings.Contains(err.Error(), end.says)) {
						t.Errorf("%s, %s, deadlock=%t: %d runs, %d rows, %v", end.statement, way, deadlock, runs, n, err)
					}
				}
			}
		}
	})
}

// TestUnknownOutcome: what loses the connection with the text that commits, or with its reply, isn't run again, and the error says why.
func TestUnknownOutcome(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		insert := "INSERT INTO " + e.names.tables["Note"] + " (n) VALUES (1)"
		for _, arrives := range []bool{false, true} {
			pool := leasetest.Pool(t, e.DB, e.guarded, testdb.LosingCommits(arrives))
			db := testdb.Got(gorm.Open(mysql.New(mysql.Config{Conn: pool}), e.config()))(t)
			for name, run := range outermost {
				runs := 0
				err := run(db, onceKey(), func(tx *gorm.DB) error { runs++; return tx.Exec(insert).Error })
				testdb.ErrorIf(t, !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || runs != 1,
					"%s, arrives %t: %d runs, %v", name, arrives, runs, err)
			}
		}
	})
}

// TestAfterCommit: what a transaction has registered, in a nested block too, is called when it is committed, and not after a rollback.
func TestAfterCommit(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		db, called := e.open(t), make(chan error, 16)
		for what, transaction := range outermost {
			for _, fails := range []error{errInner, nil} {
				then := func(tx *gorm.DB) error { return scopeOf(t, tx).AfterCommit(func() { called <- fails }) }
				wantError(t, what, transaction(db, newKey(), func(tx *gorm.DB) error {
					return errors.Join(then(tx), tx.Transaction(then), fails)
				}), fails)
			}
			if testdb.Await(time.Minute, func() bool { return len(called) == 2 }); len(called) != 2 || <-called != nil || <-called != nil {
				t.Fatalf("%s: %d more functions were called, want 2 of the one that is committed", what, len(called))
			}
		}
	})
}

// TestOnce: fn is called until one call has committed, alone and in a transaction.
func TestOnce(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, broken := e.open(t), errors.New("fn fails")
		key, id := onceKey(), int64(0)
		once := func(what string, db *gorm.DB, key txlock.Key, then error, want bool) {
			t.Helper()
			first, err := lockgorm.Once(db, key, func(tx *gorm.DB) error {
				id++
				if err := tx.Create(&Note{ID: id}).Error; err != nil {
					return err
				}
				return then
			})
			wantError(t, what, err, then)
			testdb.ErrorIf(t, first != want, "%s: first %t", what, first)
		}
		once("fn fails", db, key, broken, false)
		once("fn succeeds", db, key, nil, true)
		once("again", db, key, nil, false)

		nested := onceKey()
		within(t, db, func(tx *gorm.DB) {
			once("a nested fn that fails", tx, nested, broken, false)
			once("nested", tx, nested, nil, true)
		})
		once("after the nested one", db, nested, nil, false)
		e.wantRows(t, "all", 2, "Note", "1 = 1")
	})
}

// TestOnceValue: all get what the first has stored.
func TestOnceValue(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, key := e.open(t), onceKey()
		for i := range 3 {
			note, first, err := lockgorm.OnceValue(db, key, func(tx *gorm.DB) (Note, error) {
				note := Note{ID: 7 + int64(i)}
				return note, tx.Create(&note).Error
			})
			noError(t, err)
			testdb.Equal(t, "the value", note, Note{ID: 7})
			testdb.Equal(t, "it is first", first, i == 0)
		}
		_, first, err := lockgorm.OnceValue(db, onceKey(), func(tx *gorm.DB) (func(), error) { return nil, tx.Create(&Note{ID: 1}).Error })
		wantError(t, "a function", err, txlock.ErrResult)
		testdb.Equal(t, "a function is first", first, false)
		e.wantRows(t, "all", 1, "Note", "1 = 1")
		_, _, err = lockgorm.OnceValue[int](db, key, nil)
		wantFailure(t, "nil function", err)
		wantFailure(t, "Transaction", db.Transaction(func(tx *gorm.DB) error { // GORM's own savepoint is gone as well
			noError(t, tx.SavePoint("before_once").Error)
			_, _, err := lockgorm.OnceValue(tx, onceKey(), func(tx *gorm.DB) (int, error) { return 1, tx.RollbackTo("before_once").Error })
			wantError(t, "a value of what a savepoint has undone", err, txlock.ErrNotHeld)
			return nil
		}))
	})
}

// TestOnceHandler gives the handler its transaction. How it answers is tested in package locksqlc.
func TestOnceHandler(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		key, status, calls := onceKey().String(), http.StatusInternalServerError, 0
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			noError(t, lockgorm.TxOf(r.Context()).Create(&Note{ID: int64(calls)}).Error)
			w.WriteHeader(status)
		})
		for i, want := range []int{http.StatusInternalServerError, http.StatusCreated, http.StatusCreated, http.StatusServiceUnavailable} {
			db := e.open(t)
			if i == 3 {
				db = nil
			}
			r, w := httptest.NewRequest("POST", "/", nil), httptest.NewRecorder()
			r.Header.Set("Idempotency-Key", key)
			lockgorm.OnceHandler(db, handler, idempotency.KeyRequired()).ServeHTTP(w, r)
			status = http.StatusCreated
			testdb.Equal(t, "the status of request "+strconv.Itoa(i), w.Code, want)
		}
		n := e.count(t, "Note", "1 = 1")
		testdb.ErrorIf(t, n != 1 || calls != 2 || lockgorm.TxOf(t.Context()) != nil, "%d notes of %d calls", n, calls)
	})
}

// onceKey is a key that no other test has.
func onceKey() txlock.Key { return txlock.Named("once:" + rand.Text()) }

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
			testdb.Equal(t, "the session's variable", mine, 5)
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
		closed := testdb.Await(time.Minute, func() bool { runtime.GC(); return testdb.InUse(poolOf(t, db)) == 0 })
		testdb.ErrorIf(t, !closed, "a panic has left a transaction open")
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
				soon := testdb.Await(15*time.Second, func() bool { return !e.held(t, orders.Key(id)) }) // a lock that is just ending may show
				testdb.ErrorIf(t, !soon || calls == 0, "%s, %s whose hook fails: the key is free %t, %d hooks", name, what, soon, calls)
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
	testdb.OnServers(t, func(t *testing.T, engine testdb.Engine) {
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
		testdb.Equal(t, what+": the rows, of what was added", sum, added.Load())
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

package lockgorm_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

// TestTransactionWithoutKeys leaves the locks to the plugin. A model that was read
// before its lock, and changed meanwhile, is read again in the second run.
func TestTransactionWithoutKeys(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db, id, runs := e.openPlugin(t), newID(), 0
		noError(t, db.Create(&Order{ID: id}).Error)
		noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error {
			runs++
			var order Order
			noError(t, tx.First(&order, id).Error)
			if runs == 1 {
				noError(t, db.Model(&Order{ID: id}).Update("n", gorm.Expr("n + 10")).Error)
			}
			order.N++
			err := tx.Save(&order).Error
			if runs == 1 {
				wantError(t, "a write behind somebody else's", err, txlock.ErrStaleSnapshot)
			}
			return err
		}))
		equal(t, "runs", runs, 2)
		e.wantRows(t, "an update was lost", 1, "Order", "id = ? AND n = 11", id)
	})
}

// TestTransactionNested runs in the open transaction, under a savepoint, and leaves
// retries to the outermost call.
func TestTransactionNested(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, db := range nested(t, e) {
			outer, inner, failing := e.ensured(t), e.ensured(t), e.ensured(t)
			runs := 0
			noError(t, lockgorm.Transaction(db, []txlock.Key{outer}, func(tx *gorm.DB) error {
				noError(t, lockgorm.Transaction(tx, []txlock.Key{inner, outer}, func(tx *gorm.DB) error {
					return tx.Create(&Note{N: 1}).Error
				}))
				e.wantHeld(t, name+": a lock is gone behind the nested Transaction", inner, outer)
				wantError(t, name, lockgorm.Transaction(tx, []txlock.Key{failing}, func(tx *gorm.DB) error {
					runs++
					noError(t, tx.Create(&Note{N: 2}).Error)
					return txlock.ErrConflict
				}), txlock.ErrConflict)
				return tx.Error
			}))
			equal(t, name+": runs of the failing block", runs, 1)
			e.wantFree(t, name+": a lock outlives the outermost transaction", inner, outer, failing)
		}
		e.wantRows(t, "the blocks that went well", 3, "Note", "n = 1")
		e.wantRows(t, "those that failed, where no savepoint was", 1, "Note", "n = 2")
	})
}

// TestTransactionRetries makes the first run the victim of a deadlock. The observer of a guarded pool
// is told that the transaction is run again.
func TestTransactionRetries(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			var log bytes.Buffer
			observer := txlock.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			dialector := mysql.Open(e.DSN())
			if e.guarded {
				dialector = lockgorm.Dialector(e.DSN(), txlock.Observe(observer))
			}
			db, err := gorm.Open(dialector, e.config(configure))
			noError(t, err)
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
			equal(t, name+": runs", runs, 2)
			told := fmt.Sprintf("msg=\"transaction retried\" key=%s ", key)
			equal(t, name+": the observer is told once", strings.Count(log.String(), told) == 1, e.guarded)
		}
		e.wantRows(t, "rows, want one of each second run", 2, "Note", "n = 5")
	})
}

func TestTransactionOptions(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, key := e.open(t), e.ensured(t)
		noError(t, db.Create(&Note{ID: 1}).Error)
		for level, sees := range map[sql.IsolationLevel]int64{
			sql.LevelDefault: 0, sql.LevelRepeatableRead: 0, sql.LevelReadCommitted: 1, sql.LevelReadUncommitted: 1,
		} {
			noError(t, db.Model(&Note{ID: 1}).Update("n", 0).Error)
			noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
				var before, after Note
				noError(t, tx.First(&before, 1).Error)
				e.Exec(t, "UPDATE "+e.names.tables["Note"]+" SET n = 1 WHERE id = 1")
				noError(t, tx.First(&after, 1).Error)
				equal(t, fmt.Sprintf("%v: a second read", level), after.N, sees)
				return nil
			}, &sql.TxOptions{Isolation: level}))
		}
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
			return tx.Model(&Note{ID: 1}).Update("n", 2).Error
		}, &sql.TxOptions{Isolation: sql.LevelSerializable}))
		err := lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error { t.Error("fn runs without a lock"); return nil },
			&sql.TxOptions{ReadOnly: true})
		wantError(t, "a read-only transaction", err, txlock.ErrReadOnly)
		err = lockgorm.Optimistic(db, key, func(*gorm.DB) error { t.Error("fn runs"); return nil }, nil, &sql.TxOptions{})
		wantError(t, "the options of two transactions", err, txlock.ErrInvalidOption)
	})
}

// TestContextEndsInFunction: if the context ends while the function runs, database/sql rolls the
// transaction back, and the error is the context's.
func TestContextEndsInFunction(t *testing.T) {
	each(t, nil, func(t *testing.T, e *env) {
		db := e.open(t)
		for _, name := range []string{"Transaction", "Optimistic", "Once", "OnceValue"} {
			ctx, cancel := context.WithCancel(t.Context())
			err := outermost[name](db.WithContext(ctx), newKey(), func(tx *gorm.DB) error {
				err := tx.Exec("DO 0").Error
				cancel()
				for err == nil { // until database/sql has rolled back
					err = tx.WithContext(context.Background()).Exec("DO 0").Error
				}
				return nil
			})
			wantError(t, name, err, context.Canceled)
		}
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
		return second(lockgorm.Once(db, key, fn))
	},
	"OnceValue": func(db *gorm.DB, key txlock.Key, fn func(tx *gorm.DB) error) error {
		_, _, err := lockgorm.OnceValue(db, key, func(tx *gorm.DB) (int, error) { return 1, fn(tx) })
		return err
	},
}

// TestTransactionNeverRepeatsCommitted has a statement end the transaction behind a write, and the
// function then return nil or have a deadlock: what was committed is not written again, and the
// error says what the statement did. What was rolled back isn't said to be committed.
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

// TestUnknownOutcome loses the connection with the text that commits, or with its reply, on
// guarded and plain pools: nothing is run again, and the error says why.
func TestUnknownOutcome(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		insert := "INSERT INTO " + e.names.tables["Note"] + " (n) VALUES (1)"
		for _, arrives := range []bool{false, true} {
			pool := leasetest.Pool(t, e.DB, e.guarded, testdb.LosingCommits(arrives))
			db, err := gorm.Open(mysql.New(mysql.Config{Conn: pool}), e.config())
			noError(t, err)
			for name, run := range outermost {
				runs := 0
				err := run(db, onceKey(), func(tx *gorm.DB) error { runs++; return tx.Exec(insert).Error })
				if !errors.Is(err, txlock.ErrUnknownOutcome) || errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || runs != 1 {
					t.Errorf("%s, arrives %t: %d runs, %v", name, arrives, runs, err)
				}
			}
		}
	})
}

// TestAfterCommit proves that the functions of a transaction are called when it is committed, in
// order, whoever has begun it: Transaction, Optimistic, GORM's Transaction, or GORM for one write
// of a model with hooks; that those of a nested block are called with the outer one, and not if the
// block is rolled back; and none after a rollback. An unguarded pool refuses them.
func TestAfterCommit(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		db, called := e.open(t), make(chan string, 16)
		then := func(tx *gorm.DB, name string) error {
			scope, err := lockgorm.Join(tx)
			if err != nil {
				return err
			}
			return scope.AfterCommit(func() { called <- name })
		}
		if !e.guarded {
			within(t, db, func(tx *gorm.DB) {
				wantError(t, "on an unguarded pool", then(tx, "never"), txlock.ErrUnguarded)
			})
			return
		}
		wants := func(what string, want ...string) {
			t.Helper()
			var got []string
			testdb.Await(time.Minute, func() bool {
				for len(called) > 0 {
					got = append(got, <-called)
				}
				return len(got) >= len(want)
			})
			equal(t, what, fmt.Sprint(got), fmt.Sprint(want))
		}
		work := func(fails error) func(tx *gorm.DB) error {
			return func(tx *gorm.DB) error {
				noError(t, then(tx, "outer"))
				noError(t, tx.Transaction(func(tx *gorm.DB) error { return then(tx, "inner") }))
				wantError(t, "a block", tx.Transaction(func(tx *gorm.DB) error {
					noError(t, then(tx, "rolled back"))
					return errInner
				}), errInner)
				noError(t, lockgorm.Transaction(tx, []txlock.Key{newKey()}, func(tx *gorm.DB) error { return then(tx, "locked") }))
				return fails
			}
		}
		ways := maps.Clone(outermost)
		ways["GORM's Transaction"] = func(db *gorm.DB, _ txlock.Key, fn func(tx *gorm.DB) error) error { return db.Transaction(fn) }
		for what, transaction := range ways {
			noError(t, transaction(db, newKey(), work(nil)))
			wants(what, "outer", "inner", "locked")
			wantError(t, what, transaction(db, newKey(), work(errInner)), errInner)
			wants(what + ", rolled back")
		}
		hooked := withHook(db, func(tx *gorm.DB, _ int64) error { return then(tx, "hook") })
		noError(t, hooked.Create(&Order{ID: newID()}).Error)
		wants("a write of GORM's own transaction", "hook")
	})
}

package lockgorm_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"gorm.io/gorm"

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
		if runs != 2 || e.count(t, "Order", "id = ? AND n = 11", id) != 1 {
			t.Errorf("%d runs, or an update was lost", runs)
		}
	})
}

// TestTransactionNested runs in the open transaction, under a savepoint, and leaves
// retries to the outermost call.
func TestTransactionNested(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, db := range nested(t, e) {
			outer, inner, failing := e.ensured(t), e.ensured(t), e.ensured(t)
			runs := 0
			err := lockgorm.Transaction(db, []txlock.Key{outer}, func(tx *gorm.DB) error {
				noError(t, lockgorm.Transaction(tx, []txlock.Key{inner, outer}, func(tx *gorm.DB) error {
					return tx.Create(&Note{N: 1}).Error
				}))
				e.wantHeld(t, name+": a lock is gone behind the nested Transaction", inner, outer)
				err := lockgorm.Transaction(tx, []txlock.Key{failing}, func(tx *gorm.DB) error {
					runs++
					noError(t, tx.Create(&Note{N: 2}).Error)
					return txlock.ErrConflict
				})
				wantError(t, name, err, txlock.ErrConflict)
				return tx.Error
			})
			if err != nil || runs != 1 {
				t.Errorf("%s: %v, the failing block has run %d times", name, err, runs)
			}
			e.wantFree(t, name+": a lock outlives the outermost transaction", inner, outer, failing)
		}
		if one, two := e.count(t, "Note", "n = 1"), e.count(t, "Note", "n = 2"); one != 3 || two != 1 {
			t.Errorf("%d rows of the blocks that went well, want 3; %d of those that failed, want 1, where no savepoint was", one, two)
		}
	})
}

// TestTransactionRetries makes the first run the victim of a deadlock.
func TestTransactionRetries(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, configure := range configs {
			db, key, runs := e.open(t, configure), e.ensured(t), 0
			noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(tx *gorm.DB) error {
				runs++
				noError(t, tx.Create(&Note{N: 5}).Error)
				if e.free(t, key) {
					t.Errorf("%s, run %d: the key is free", name, runs)
				}
				if runs == 1 {
					return e.deadlock(t, tx)
				}
				return nil
			}))
			if runs != 2 || db.Error != nil {
				t.Errorf("%s: %d runs, the handle has %v", name, runs, db.Error)
			}
		}
		e.wantRows(t, "rows, want one of each second run", 2, "Note", "n = 5")
	})
}

// TestTransactionTellsOfRetries proves that the observer of the pool is told when a
// transaction is run again.
func TestTransactionTellsOfRetries(t *testing.T) {
	eachGuarded(t, nil, func(t *testing.T, e *env) {
		var log bytes.Buffer
		observer := txlock.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		db, err := gorm.Open(lockgorm.Dialector(e.DSN(), txlock.Observe(observer)), e.config())
		noError(t, err)
		closeAfter(t, db)
		key, runs := e.ensured(t), 0
		noError(t, lockgorm.Transaction(db, []txlock.Key{key}, func(*gorm.DB) error {
			if runs++; runs == 1 {
				return txlock.ErrConflict
			}
			return nil
		}))
		if told := fmt.Sprintf("msg=\"transaction retried\" key=%s ", key); strings.Count(log.String(), told) != 1 {
			t.Errorf("the log of %d runs:\n%s", runs, log.String())
		}
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
				if after.N != sees {
					t.Errorf("%v: a second read sees %d, want %d", level, after.N, sees)
				}
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

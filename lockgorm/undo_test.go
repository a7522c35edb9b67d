package lockgorm_test

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
)

var (
	errInner       = errors.New("the inner block fails")
	errNoSavepoint = &driver.MySQLError{Number: 1305, Message: "the savepoint does not exist"}
)

// nested opens pools that differ in what a nested transaction does.
func nested(t *testing.T, e *env) map[string]*gorm.DB {
	return map[string]*gorm.DB{
		"savepoints":          e.open(t),
		"prepared savepoints": e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt = true }),
		"none":                e.open(t, func(cfg *gorm.Config) { cfg.DisableNestedTransaction = true }),
	}
}

// TestWaitForItself writes by the outer db inside of Transaction, and begins another one:
// both would wait for the transaction in which they are called.
func TestWaitForItself(t *testing.T) {
	each(t, []string{"Order"}, func(t *testing.T, e *env) {
		if !e.guarded { // which waits: see txlock's TestWaitOnAPlainPool
			return
		}
		db := used(t, e.open(t))
		id := newID()
		noError(t, db.Create(&Order{ID: id}).Error)
		write := func(db *gorm.DB) error { return db.Model(&Order{ID: id}).Update("n", 1).Error }
		for what, call := range map[string]func() error{
			"a write":     func() error { return write(db) },
			"Transaction": func() error { return lockgorm.Transaction(db, orders.Keys(id), write) },
			"nil keys":    func() error { return lockgorm.Transaction(db, nil, write) },
		} {
			for by, keys := range map[string][]txlock.Key{"keys": orders.Keys(id), "the plugin": nil} {
				err := lockgorm.Transaction(db, keys, func(tx *gorm.DB) error {
					noError(t, write(tx))
					return call()
				})
				var held *txlock.HeldError
				if wantError(t, what, err, txlock.ErrWaitTimeout); !errors.As(err, &held) || !held.Here || !strings.Contains(err.Error(), "would wait for itself") {
					t.Errorf("%s, locked by %s: %v", what, by, err)
				}
			}
		}
		noError(t, write(db))
	})
}

// send sends a statement in a transaction that is not prepared: servers prepare no SAVEPOINT.
func send(t *testing.T, tx *gorm.DB, text string) {
	t.Helper()
	pool, err := lockgorm.SQLTx(tx)
	noError(t, err)
	noError(t, second(pool.ExecContext(tx.Statement.Context, text)))
}

// TestNestedNotUndone has the ROLLBACK TO of a nested transaction fail, and swallows its error: GORM
// would commit what the nested one has done. None of it may stay, and the outcome must be told.
func TestNestedNotUndone(t *testing.T) {
	// loses is what a nested transaction does whose savepoint is gone when it fails.
	loses := func(t *testing.T, end func() error) func(tx *gorm.DB) error {
		return func(tx *gorm.DB) error {
			if err := tx.Create(&Note{N: 7}).Error; err != nil {
				return err
			}
			send(t, tx, "RELEASE SAVEPOINT here")
			return end()
		}
	}
	fails := func() error { return errInner }
	panics := func() error { panic(errInner) }
	// caught calls a nested transaction, and swallows what it fails by.
	caught := func(call func() error) (err error) {
		defer func() {
			p := recover()
			if err, ok := p.(error); p != nil && (!ok || !errors.Is(err, errInner)) {
				panic(p)
			}
		}()
		if err = call(); errors.Is(err, errInner) {
			return nil
		}
		return fmt.Errorf("the nested transaction: %w", err)
	}
	blocks := map[string]func(t *testing.T, tx *gorm.DB) error{
		"released": func(t *testing.T, tx *gorm.DB) error { return tx.Transaction(loses(t, fails)) },
		"rolled back": func(t *testing.T, tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error {
				send(t, tx, "ROLLBACK TO here")
				return errors.Join(tx.Create(&Note{N: 7}).Error, errInner)
			})
		},
		"panic":          func(t *testing.T, tx *gorm.DB) error { return tx.Transaction(loses(t, panics)) },
		"another handle": func(t *testing.T, tx *gorm.DB) error { return tx.WithContext(t.Context()).Transaction(loses(t, fails)) },
		"nested in nested": func(t *testing.T, tx *gorm.DB) error {
			return cmp.Or(tx.Transaction(func(tx *gorm.DB) error {
				return caught(func() error { return tx.Transaction(loses(t, fails)) })
			}), errInner)
		},
		"lockgorm.Transaction": func(t *testing.T, tx *gorm.DB) error { return lockgorm.Transaction(tx, nil, loses(t, fails)) },
	}
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for _, other := range []bool{false, true} {
			db := e.open(t, func(cfg *gorm.Config) { cfg.PrepareStmt, cfg.TranslateError = other, other })
			for name, block := range blocks {
				key := e.ensured(t)
				fn := func(tx *gorm.DB) error {
					send(t, tx, "SAVEPOINT here")
					return caught(func() error { return block(t, tx) })
				}
				for by, run := range outermost {
					if err := run(db, key, fn); !errors.Is(err, errNoSavepoint) || txlock.Retryable(err) {
						t.Errorf("%s, %s: %v, want %v, which is not retried", by, name, err, errNoSavepoint)
					}
				}
				e.wantRows(t, name+": rows that were to be undone were committed", 0, "Note", "n = 7")
			}
		}
	})
}

// TestErrorOfTheHandle proves that a transaction whose handle has an error is rolled back: with it
// GORM's Commit commits, and returns that error.
func TestErrorOfTheHandle(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		for name, fail := range map[string]func(tx *gorm.DB){
			"AddError":  func(tx *gorm.DB) { _ = tx.AddError(errInner) },
			"SavePoint": func(tx *gorm.DB) { _ = tx.SavePoint("a a") },
		} {
			err := lockgorm.Transaction(e.open(t), nil, func(tx *gorm.DB) error {
				noError(t, tx.Create(&Note{N: 1}).Error)
				fail(tx)
				return nil
			})
			wantFailure(t, name, err)
			e.wantRows(t, name, 0, "Note", "n = 1")
		}
	})
}

// TestCommitWithNotUndone proves that a write doesn't commit what a nested transaction before it
// couldn't undo, whether the clause or the method of the scope says that it is the last; and that a
// nested Transaction whose savepoint undoes that fails, and leaves the outer one as it is.
func TestCommitWithNotUndone(t *testing.T) {
	eachGuarded(t, []string{"Note"}, withPlugin(func(t *testing.T, e *env, db *gorm.DB) {
		for _, last := range []func(tx *gorm.DB) *gorm.DB{
			func(tx *gorm.DB) *gorm.DB { return tx.Clauses(lockgorm.CommitWith(1)) },
			func(tx *gorm.DB) *gorm.DB { return tx.WithContext(scopeOf(t, tx).CommitWith(tx.Statement.Context, 1)) },
		} {
			note := &Note{N: 1}
			noError(t, db.Create(note).Error)
			fails := func(tx *gorm.DB) error {
				send(t, tx, "RELEASE SAVEPOINT here")
				return errors.Join(tx.Create(&Note{N: 7}).Error, errInner)
			}
			err := lockgorm.Transaction(db, []txlock.Key{e.ensured(t)}, func(tx *gorm.DB) error {
				send(t, tx, "SAVEPOINT here")
				wantError(t, "the nested transaction", tx.WithContext(t.Context()).Transaction(fails), errInner)
				return last(tx).Model(note).Update("n", 2).Error
			})
			wantError(t, "CommitWith", err, errNoSavepoint)
			e.wantRows(t, "what was to be undone, or the last write, was committed", 0, "Note", "n <> 1")
			noError(t, lockgorm.Transaction(db, nil, func(tx *gorm.DB) error { // what a nested Transaction undoes concerns nobody
				for end, want := range map[error]error{errInner: errInner, nil: errNoSavepoint} {
					wantError(t, "the nested Transaction", lockgorm.Transaction(tx, nil, func(tx *gorm.DB) error {
						send(t, tx, "SAVEPOINT here")
						wantError(t, "the innermost", tx.Transaction(fails), errInner)
						return end
					}), want)
				}
				return last(tx).Model(note).Update("n", 2).Error
			}))
			e.wantRows(t, "the last write was not committed", 1, "Note", "n = 2")
			e.wantRows(t, "what a nested Transaction was to undo was committed", 0, "Note", "n = 7")
			noError(t, db.Model(note).Update("n", 1).Error)
		}
	}))
}

// deadlock makes one statement of tx, which needs no transaction, the victim of a deadlock with
// somebody who has written more, and returns its error. It needs the table of Note.
func (e *env) deadlock(t *testing.T, tx *gorm.DB) error {
	t.Helper()
	table := e.names.tables["Note"]
	rival, err := e.Admin().BeginTx(t.Context(), nil)
	noError(t, err)
	defer func() { _ = rival.Rollback() }()
	var first, last int64
	for i := range 20 {
		result, err := e.Admin().ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")
		noError(t, err)
		last, err = result.LastInsertId()
		noError(t, err)
		if i == 0 {
			first = last
		}
		noError(t, second(rival.ExecContext(t.Context(), "INSERT INTO "+table+" (n) VALUES (0)")))
	}
	noError(t, second(rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", last)))
	waited := e.Waiting(t, testdb.ConnID(t, tx.Statement.ConnPool), func() error {
		return tx.Exec("UPDATE "+table+" SET n = n + 2 WHERE id IN (?, ?) ORDER BY id", first, last).Error
	})
	noError(t, second(rival.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1 WHERE id = ?", first)))
	err = <-waited
	if err == nil {
		t.Error("there was no deadlock")
	}
	return err
}

// drained reads rows to their end.
func drained(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		continue
	}
	return rows.Err()
}

// skipInner leaves out the error by which a test rolls back.
func skipInner(err error) error {
	if errors.Is(err, errInner) {
		return nil
	}
	return err
}

// TestDoomedTransaction ignores a deadlock in db.Transaction, and writes: Transaction must return the error.
func TestDoomedTransaction(t *testing.T) {
	eachGuarded(t, []string{"Order", "Note"}, func(t *testing.T, e *env) {
		db := e.open(t)
		err := db.Transaction(func(tx *gorm.DB) error {
			_ = e.deadlock(t, tx)
			_ = tx.Create(&Order{ID: 1})
			return nil
		})
		wantError(t, "Transaction", err, txlock.ErrTxDoomed)
		err = db.Transaction(func(tx *gorm.DB) error {
			_ = tx.Transaction(func(tx *gorm.DB) error { return e.deadlock(t, tx) })
			return nil
		})
		wantError(t, "Transaction with a nested one", err, txlock.ErrTxDoomed)
		if !txlock.Retryable(err) {
			t.Errorf("not to be run again: %v", err)
		}
		e.wantRows(t, "a row was written behind the deadlock", 0, "Order", "1 = 1")
	})
}

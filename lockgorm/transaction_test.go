package lockgorm_test

import (
	"bytes"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

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
			leasetest.Equal(t, name+": runs of the failing block", runs, 1)
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
			db := leasetest.Got(gorm.Open(dialector, e.config(configure)))(t)
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
			leasetest.Equal(t, name+": runs", runs, 2)
			told := fmt.Sprintf("msg=\"transaction retried\" key=%s ", key)
			leasetest.Equal(t, name+": the observer is told once", strings.Count(log.String(), told) == 1, e.guarded)
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
				leasetest.Equal(t, fmt.Sprintf("%v: a second read", level), after.N, sees)
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
		return second(lockgorm.Once(db, key, fn))
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
			db := leasetest.Got(gorm.Open(mysql.New(mysql.Config{Conn: pool}), e.config()))(t)
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
			if wantError(t, what, err, then); first != want {
				t.Errorf("%s: first %t", what, first)
			}
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
			leasetest.Equal(t, "the value", note, Note{ID: 7})
			leasetest.Equal(t, "it is first", first, i == 0)
		}
		_, first, err := lockgorm.OnceValue(db, onceKey(), func(tx *gorm.DB) (func(), error) { return nil, tx.Create(&Note{ID: 1}).Error })
		wantError(t, "a function", err, txlock.ErrResult)
		leasetest.Equal(t, "a function is first", first, false)
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
			leasetest.Equal(t, "the status of request "+strconv.Itoa(i), w.Code, want)
		}
		n := e.count(t, "Note", "1 = 1")
		testdb.ErrorIf(t, n != 1 || calls != 2 || lockgorm.TxOf(t.Context()) != nil, "%d notes of %d calls", n, calls)
	})
}

// onceKey is a key that no other test has.
func onceKey() txlock.Key { return txlock.Named("once:" + rand.Text()) }

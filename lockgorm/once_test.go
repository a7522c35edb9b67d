package lockgorm_test

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"gorm.io/gorm"

	"github.com/dca00107/lockstep/lockgorm"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/idempotency"
)

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

		nested, undone := onceKey(), onceKey()
		within(t, db, func(tx *gorm.DB) {
			once("a nested fn that fails", tx, nested, broken, false)
			once("nested", tx, nested, nil, true)
			once("nested, again", tx, nested, nil, false)
		})
		wantError(t, "the outer transaction", db.Transaction(func(tx *gorm.DB) error {
			once("in one that is rolled back", tx, undone, nil, true)
			return broken
		}), broken)
		once("after the nested one", db, nested, nil, false)
		once("after the one that was rolled back", db, undone, nil, true)
		e.wantRows(t, "all", 3, "Note", "1 = 1")
		noError(t, db.Error)

		runs := 0
		first, err := lockgorm.Once(db.Session(&gorm.Session{DryRun: true}), onceKey(), func(*gorm.DB) error { runs++; return nil })
		if err != nil || first || runs != 1 {
			t.Errorf("DryRun: %t, %v, %d runs", first, err, runs)
		}
		wantFailure(t, "nil *gorm.DB", second(lockgorm.Once(nil, key, func(*gorm.DB) error { return nil })))
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
			equal(t, "the value", note, Note{ID: 7})
			equal(t, "it is first", first, i == 0)
		}
		_, first, err := lockgorm.OnceValue(db, onceKey(), func(tx *gorm.DB) (func(), error) {
			return nil, tx.Create(&Note{ID: 1}).Error
		})
		wantError(t, "a function", err, txlock.ErrResult)
		equal(t, "a function is first", first, false)
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
			equal(t, "the status of request "+strconv.Itoa(i), w.Code, want)
		}
		if n := e.count(t, "Note", "1 = 1"); n != 1 || calls != 2 || lockgorm.TxOf(t.Context()) != nil {
			t.Errorf("%d notes of %d calls", n, calls)
		}
	})
}

// onceKey is a key that no other test has.
func onceKey() txlock.Key { return txlock.Named("once:" + rand.Text()) }

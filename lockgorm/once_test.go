package lockgorm_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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
		noError(t, db.Transaction(func(tx *gorm.DB) error {
			once("a nested fn that fails", tx, nested, broken, false)
			once("nested", tx, nested, nil, true)
			once("nested, again", tx, nested, nil, false)
			return nil
		}))
		wantError(t, "the outer transaction", db.Transaction(func(tx *gorm.DB) error {
			once("in one that is rolled back", tx, undone, nil, true)
			return broken
		}), broken)
		once("after the nested one", db, nested, nil, false)
		once("after the one that was rolled back", db, undone, nil, true)
		if n := e.count(t, "Note", "1 = 1"); n != 3 || db.Error != nil {
			t.Errorf("%d rows, %v", n, db.Error)
		}

		runs := 0
		first, err := lockgorm.Once(db.Session(&gorm.Session{DryRun: true}), onceKey(), func(*gorm.DB) error { runs++; return nil })
		if err != nil || first || runs != 1 {
			t.Errorf("DryRun: %t, %v, %d runs", first, err, runs)
		}
		_, err = lockgorm.Once(nil, key, func(*gorm.DB) error { return nil })
		if err == nil {
			t.Error("nil *gorm.DB: no error")
		}
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
			if note.ID != 7 || first != (i == 0) || err != nil {
				t.Errorf("%d: %+v, %t, %v", i, note, first, err)
			}
		}
		_, _, err := lockgorm.OnceValue(db, key, func(*gorm.DB) (int, error) { return 1, nil })
		wantError(t, "another type", err, txlock.ErrResult)
		_, first, err := lockgorm.OnceValue(db, onceKey(), func(tx *gorm.DB) (func(), error) {
			return nil, tx.Create(&Note{ID: 1}).Error
		})
		wantError(t, "a function", err, txlock.ErrResult)
		if n := e.count(t, "Note", "1 = 1"); n != 1 || first {
			t.Errorf("%d rows", n)
		}
		if _, _, err := lockgorm.OnceValue[int](db, key, nil); err == nil {
			t.Error("nil function: no error")
		}
		err = db.Transaction(func(tx *gorm.DB) error {
			noError(t, tx.SavePoint("before_once").Error)
			_, _, err := lockgorm.OnceValue(tx, onceKey(), func(tx *gorm.DB) (int, error) { return 1, tx.RollbackTo("before_once").Error })
			wantError(t, "a value of what a savepoint has undone", err, txlock.ErrNotHeld)
			return nil
		})
		if err == nil { // GORM's own savepoint is gone as well
			t.Error("Transaction succeeds")
		}
		noError(t, db.Transaction(func(tx *gorm.DB) error { // which has read before
			noError(t, tx.Find(&[]Note{}).Error)
			late := onceKey()
			for i := range 2 {
				n, first, err := lockgorm.OnceValue(db, late, func(*gorm.DB) (int, error) { return 11, nil })
				if n != 11 || first != (i == 0) || err != nil {
					t.Errorf("%d, %t, %v", n, first, err)
				}
			}
			n, first, err := lockgorm.OnceValue(tx, late, func(*gorm.DB) (int, error) { return 12, nil })
			if n != 11 || first || err != nil {
				t.Errorf("after a read: %d, %t, %v", n, first, err)
			}
			return nil
		}))
	})
}

// TestOnceHandler gives the handler its transaction.
func TestOnceHandler(t *testing.T) {
	each(t, []string{"Note"}, func(t *testing.T, e *env) {
		db, key, status, calls := e.open(t), onceKey().String(), http.StatusInternalServerError, 0
		h := lockgorm.OnceHandler(db, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			if err := lockgorm.TxOf(r.Context()).Create(&Note{ID: int64(calls)}).Error; err != nil {
				idempotency.Fail(r.Context(), err)
			}
			w.WriteHeader(status)
			_, _ = fmt.Fprintf(w, "note %d", calls)
		}), idempotency.KeyRequired(), idempotency.MaxBody(100), idempotency.KeepHeaders(), idempotency.KeepFor(1<<40), idempotency.ConflictAfter(1<<40),
			idempotency.ClientOf(func(*http.Request) string { return "me" }), idempotency.OnError(func(*http.Request, error) {}))
		for i, want := range []string{"500 note 1", "201 note 2", "201 note 2", "422", "400"} {
			body, header := "x", key
			switch i {
			case 1:
				status = http.StatusCreated
			case 3:
				body = "y"
			case 4:
				header = ""
			}
			r, w := httptest.NewRequest("POST", "/", strings.NewReader(body)), httptest.NewRecorder()
			if header != "" {
				r.Header.Set("Idempotency-Key", header)
			}
			h.ServeHTTP(w, r)
			if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want) {
				t.Errorf("%d: %s, want %s", i, got, want)
			}
		}
		if n := e.count(t, "Note", "1 = 1"); n != 1 || lockgorm.TxOf(t.Context()) != nil {
			t.Errorf("%d notes", n)
		}
		w := httptest.NewRecorder()
		lockgorm.OnceHandler(nil, h).ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("without a *gorm.DB: %d", w.Code)
		}
		defer func() {
			if recover() == nil {
				t.Error("Fail without a request doesn't panic")
			}
		}()
		idempotency.Fail(t.Context(), errors.New("broken"))
	})
}

// onceKey is a key that no other test has.
func onceKey() txlock.Key { return txlock.Named("once:" + rand.Text()) }

// errAny stands for any error.
var errAny = errors.New("any error")

package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// wantOnce fails the test unless a call of Once has returned this.
func wantOnce(t *testing.T, what string, first bool, err error, want bool, wantErr error) {
	t.Helper()
	if first != want || !errors.Is(err, wantErr) {
		t.Errorf("%s: %t, %v, want %t, %v", what, first, err, want, wantErr)
	}
}

// TestOnce: fn is called until one call has committed.
func TestOnce(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key, broken := numbers(t, db), uniqueKey(t, "once"), errors.New("fn fails")
		calls := 0
		add := func(then func() error) (bool, error) {
			return locksqlc.Once(t.Context(), pool, key, func(tx *sql.Tx) error {
				calls++
				exec(t, tx, "UPDATE "+table+" SET v = v + 1")
				return then()
			}, txlock.Fingerprint([]byte("one")))
		}
		first, err := add(func() error { return broken })
		wantOnce(t, "fn fails", first, err, false, broken)
		wantPanic(t, "on purpose", func() { _, _ = add(func() error { panic("on purpose") }) })
		idle(t, pool)
		first, err = add(func() error { return nil })
		wantOnce(t, "fn succeeds", first, err, true, nil)
		first, err = add(func() error { return broken })
		wantOnce(t, "again", first, err, false, nil)
		first, err = locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { calls++; return nil }, txlock.Fingerprint([]byte("two")))
		wantOnce(t, "another request", first, err, false, txlock.ErrMismatch)
		idle(t, pool)
		if n := count(t, pool, "SELECT v FROM "+table); n != 1 || calls != 3 {
			t.Errorf("done %d times in %d calls", n, calls)
		}
	})
}

// TestWhoIsNotTheFirstWrites: a server without a binary log may lose what the first has
// committed. So who is told of that commits something, too.
func TestWhoIsNotTheFirstWrites(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		if count(t, db.Admin(), "SELECT @@log_bin") != 0 {
			return
		}
		key := uniqueKey(t, "sealed")
		seals := func() int {
			return count(t, db.Admin(), "SELECT CAST(COALESCE(SUM(done_us), 0) AS SIGNED) FROM lockstep_once WHERE LOCATE('lockstep:seal:', name) = 2")
		}
		for _, want := range []bool{true, false} {
			before := seals()
			first, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return nil })
			wantOnce(t, "Once", first, err, want, nil)
			if !first && seals() == before {
				t.Error("who isn't the first has written nothing")
			}
		}
	})
}

// TestOnceOfAnExpiredKey is the first again for one of many who ask at once.
func TestOnceOfAnExpiredKey(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key := uniqueKey(t, "once")
		db.Exec(t, "INSERT INTO lockstep_once VALUES ('"+key.String()+"', '-', '-', 1, 1)")
		var firsts atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				first, err := locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return nil })
				if err != nil {
					t.Error(err)
				}
				if first {
					firsts.Add(1)
				}
			})
		}
		wg.Wait()
		if n := firsts.Load(); n != 1 {
			t.Errorf("%d are the first", n)
		}
	})
}

// receipt is a result with all that JSON has.
type receipt struct {
	Number int64
	Text   string
	Parts  []string
	hidden int
}

// TestOnceValue: all get what the first has stored.
func TestOnceValue(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "once")
		want := receipt{Number: 1<<62 + 1, Text: "ü\"'\\\x00", Parts: []string{"a", ""}}
		for i := range 3 {
			got, first, err := locksqlc.OnceValue(t.Context(), pool, key, func(tx *sql.Tx) (receipt, error) {
				exec(t, tx, "UPDATE "+table+" SET v = v + 1")
				given := want
				given.hidden = 7
				return given, nil
			})
			wantOnce(t, "OnceValue", first, err, i == 0, nil)
			if got.Number != want.Number || got.Text != want.Text || len(got.Parts) != 2 || got.hidden != 0 {
				t.Errorf("%d: %+v", i, got)
			}
		}
		wantCount(t, pool, 1, "SELECT v FROM "+table)
		_, first, err := locksqlc.OnceValue(t.Context(), pool, key, func(*sql.Tx) (int, error) { return 1, nil })
		wantOnce(t, "another type", first, err, false, txlock.ErrResult)
		says(t, "another type", err, txlock.ErrResult, "locksqlc_test.receipt, not int")
		plain := uniqueKey(t, "once")
		first, err = locksqlc.Once(t.Context(), pool, plain, func(*sql.Tx) error { return nil })
		wantOnce(t, "Once", first, err, true, nil)
		_, first, err = locksqlc.OnceValue(t.Context(), pool, plain, func(*sql.Tx) (int, error) { return 1, nil })
		wantOnce(t, "no value was stored", first, err, false, txlock.ErrResult)
	})
}

// TestOnceIsCancelled while it waits, and leaves nothing.
func TestOnceIsCancelled(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key := uniqueKey(t, "once")
		pool.SetMaxOpenConns(1)
		id := testdb.ConnID(t, pool) // so that the call finds one: to dial for too long is another error
		holder := begin(t, newPool(t, db.Config(), true))
		check(t, second(join(t, holder).Once(t.Context(), key)))
		first := false
		err := cancelled(t, db, id, func(ctx context.Context) (err error) {
			first, err = locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { t.Error("fn is called"); return nil })
			return err
		})
		wantOnce(t, "a call that is cancelled", first, err, false, context.Canceled)
		check(t, holder.Rollback())
		first, err = locksqlc.Once(t.Context(), pool, key, func(*sql.Tx) error { return nil })
		wantOnce(t, "afterwards", first, err, true, nil)
	})
}

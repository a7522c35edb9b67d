package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestTryDo proves that TryDo holds the lock while its function runs, and returns at once
// where somebody else has it.
func TestTryDo(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for _, key := range []txlock.Key{uniqueKey(t, "try"), hashed.Key(7)} {
			other, failed := newPool(t, db.Config(), true), errors.New("failed")
			beside := func(context.Context) error { return errors.New("called beside the holder") }
			err := locksqlc.TryDo(t.Context(), pool, key, func(ctx context.Context) error {
				if isFree(t, db, key) {
					t.Error("the key is not locked")
				}
				if err := locksqlc.TryDo(ctx, other, key, beside); !errors.Is(err, txlock.ErrBusy) {
					t.Errorf("TryDo beside the holder: %v, want ErrBusy", err)
				}
				return errors.Join(ctx.Err(), failed)
			})
			if !errors.Is(err, failed) || errors.Is(err, txlock.ErrLost) {
				t.Errorf("TryDo: %v, want the error of fn", err)
			}
			idle(t, pool)
			idle(t, other)
			wantFree(t, db, key)
			check(t, locksqlc.TryDo(t.Context(), other, key, func(context.Context) error { return nil }))
		}
	})
}

// TestBadTryDo proves what is refused before anything is sent.
func TestBadTryDo(t *testing.T) {
	t.Parallel()
	pool := sql.OpenDB(locksqlc.Connector(nil))
	defer func() { check(t, pool.Close()) }()
	done := func(context.Context) error { return nil }
	for name, err := range map[string]error{
		"no pool":     locksqlc.TryDo(t.Context(), nil, uniqueKey(t, "try"), done),
		"no function": locksqlc.TryDo(t.Context(), pool, uniqueKey(t, "try"), nil),
		"no key":      locksqlc.TryDo(t.Context(), pool, txlock.Key{}, done),
	} {
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestTryDoNoticesKill proves that its function is told when the lock is lost.
func TestTryDoNoticesKill(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key := uniqueKey(t, "try")
		err := locksqlc.TryDo(t.Context(), pool, key, func(ctx context.Context) error {
			db.Kill(t, holderOf(t, db, key))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, txlock.ErrLost) {
			t.Errorf("TryDo: %v, want ErrLost", err)
		}
		idle(t, pool)
		wantFree(t, db, key)
	})
}

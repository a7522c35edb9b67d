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
				wantLocked(t, "TryDo", db, key)
				isError(t, "TryDo beside the holder", locksqlc.TryDo(ctx, other, key, beside), txlock.ErrBusy)
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

// TestTryDoNoticesKill proves that its function is told when the lock is lost.
func TestTryDoNoticesKill(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key := uniqueKey(t, "try")
		err := locksqlc.TryDo(t.Context(), pool, key, func(ctx context.Context) error {
			db.Kill(t, holderOf(t, db, key))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		isError(t, "TryDo", err, txlock.ErrLost)
		idle(t, pool)
		wantFree(t, db, key)
	})
}

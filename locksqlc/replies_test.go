package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestUnknownReplies lets the server answer in a character set that nobody expects, in the
// middle of a transaction. What can't be read grants nothing, and dooms the transaction.
func TestUnknownReplies(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		busy, free := uniqueKey(t, "busy"), uniqueKey(t, "free")
		holder := newPool(t, db.Config(), true)
		check(t, txlock.Ensure(t.Context(), holder, busy, free))
		lock(t, join(t, begin(t, holder)), busy)
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db.Config(), guarded)
			pool.SetMaxOpenConns(1)
			for name, ask := range map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
				"TryLock":  writing["TryLock"],
				"TryRLock": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.TryRLock(ctx, key)) },
				"LockAny":  func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.LockAny(ctx, key)) },
			} {
				tx := begin(t, pool)
				scope := join(t, tx)
				exec(t, tx, "SET character_set_results = utf16")
				err := ask(t.Context(), scope, busy)
				if err == nil {
					t.Errorf("%s of a key that is held, guarded: %t: it is granted", name, guarded)
				}
				wantHeld(t, fmt.Sprintf("%s of a key that is held, guarded: %t", name, guarded), scope, busy, false)
				if errors.Is(err, fault.ErrReply) && (!errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !errors.Is(scope.Verify(t.Context()), txlock.ErrTxDoomed)) {
					t.Errorf("%s, guarded: %t: %v, want ErrTxDoomed, not to be tried again", name, guarded, err)
				}
				if err := tx.Commit(); guarded && errors.Is(scope.Verify(t.Context()), fault.ErrReply) && !errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("%s: Commit: %v, want ErrTxDoomed", name, err)
				}
				resetCharset(t, pool)
			}
			grantsWhatItSays(t, db, pool, free)
		}
	})
}

// grantsWhatItSays asks for a free key by every verb, under that character set. Each either
// fails, or has it locked.
func grantsWhatItSays(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key) {
	t.Helper()
	for name, ask := range map[string]func(ctx context.Context, s *txlock.Scope, key txlock.Key) error{
		"Lock":    writing["Lock"],
		"RLock":   func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return second(s.RLock(ctx, key)) },
		"TryLock": writing["TryLock"],
		"LockAll": writing["LockAll"],
		"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
			version, err := s.Version(ctx, key)
			if err != nil {
				return err
			}
			return s.CompareAndBump(ctx, key, version)
		},
	} {
		tx := begin(t, pool)
		scope := join(t, tx)
		exec(t, tx, "SET character_set_results = utf16")
		err := ask(t.Context(), scope, key)
		if err == nil && isFree(t, db, key) {
			t.Errorf("%s, guarded: %t: another has the key, too", name, scope.Guarded())
		}
		wantHeld(t, fmt.Sprintf("%s, guarded: %t: after %v", name, scope.Guarded(), err), scope, key, err == nil)
		if _, again := scope.TryLock(t.Context(), key); errors.Is(err, fault.ErrReply) && !errors.Is(again, txlock.ErrTxDoomed) {
			t.Errorf("%s, guarded: %t: after %v a lock answers %v", name, scope.Guarded(), err, again)
		}
		_ = tx.Rollback()
		resetCharset(t, pool)
	}
}

// resetCharset makes the pool's connection answer in the usual character set again.
func resetCharset(t *testing.T, pool *sql.DB) {
	t.Helper()
	conn := takeConn(t, pool)
	exec(t, conn, "SET character_set_results = utf8mb4")
	check(t, conn.Close())
}

// TestUnknownReplyOfCommit proves that a last statement whose reply can't be read may have
// committed: nothing is run again.
func TestUnknownReplyOfCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key, runs := newPool(t, db.Config(), true), uniqueKey(t, "commit"), 0
		pool.SetMaxOpenConns(1)
		check(t, txlock.Ensure(t.Context(), pool, key))
		err := locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
			runs++
			return second(tx.ExecContext(t.Context(), "SET character_set_results = utf16"))
		})
		if errors.Is(err, fault.ErrReply) && (!errors.Is(err, txlock.ErrUnknownOutcome) || txlock.Retryable(err)) || runs > 1 {
			t.Errorf("after %d runs: %v, want one run, and ErrUnknownOutcome", runs, err)
		}
		resetCharset(t, pool)
	})
}

package txlock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// questions counts the statements that a session has sent, by the server's own count.
func questions(t *testing.T, tx *sql.Tx) (n int64) {
	t.Helper()
	noError(t, tx.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(new(string), &n))
	return n
}

// TestAssertLocked asserts locks that are held, and not, shared, undone and over, without
// a statement.
func TestAssertLocked(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ctx, key, shared := t.Context(), named(), named()
		s := begin(t, newPool(t, db, true), nil)
		wants(t, "before the lock", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		noError(t, second(s.RLock(ctx, shared)))
		exec(t, s.tx, "SAVEPOINT before_lock")
		s.lock(t, key)
		before := questions(t, s.tx)
		const times = 20
		for range times {
			wants(t, "under the lock", txlock.AssertLocked(ctx, s.tx, key), nil)
			wants(t, "shared by an exclusive one", txlock.AssertRLocked(ctx, s.tx, key), nil)
			wants(t, "shared", txlock.AssertRLocked(ctx, s.tx, shared), nil)
			wants(t, "exclusively by a shared one", txlock.AssertLocked(ctx, s.tx, shared), txlock.ErrNotHeld)
		}
		if sent := questions(t, s.tx) - before; sent >= times {
			t.Errorf("%d assertions have sent %d statements", 4*times, sent)
		}
		wants(t, "of a zero key", txlock.AssertLocked(ctx, s.tx, txlock.Key{}), txlock.ErrInvalidKey)
		wants(t, "of no transaction", txlock.AssertLocked(ctx, nil, key), txlock.ErrNoTransaction)

		rows, err := s.tx.QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2")
		noError(t, err)
		rows.Next()
		wants(t, "while rows are open", txlock.AssertLocked(ctx, s.tx, key), nil)
		noError(t, errors.Join(rows.Err(), rows.Close()))

		exec(t, s.tx, "ROLLBACK TO SAVEPOINT before_lock")
		wants(t, "after a rollback to a savepoint", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		s.lock(t, key)
		wants(t, "locked again", txlock.AssertLocked(ctx, s.tx, key), nil)
		s.commit(t)
		wants(t, "after the commit", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNoTransaction)
		s = begin(t, newPool(t, db, true), nil)
		s.lock(t, key)
		exec(t, s.tx, "COMMIT")
		wants(t, "after a COMMIT as text", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrTxDoomed)
	})
}

// TestAssertLockedOnPlainPools says that nobody knows.
func TestAssertLockedOnPlainPools(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		s := begin(t, newPool(t, db, false), nil)
		s.lock(t, key)
		err := txlock.AssertLocked(t.Context(), s.tx, key)
		if !errors.Is(err, txlock.ErrNotHeld) || !strings.Contains(err.Error(), "not guarded") {
			t.Errorf("AssertLocked on a plain pool: %v", err)
		}
		wants(t, "the transaction after it", s.Verify(t.Context()), nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "AssertLocked under a context that has ended", txlock.AssertLocked(ended, s.tx, key), context.Canceled)
		s.commit(t)
		wants(t, "AssertLocked after the commit", txlock.AssertLocked(t.Context(), s.tx, key), txlock.ErrNoTransaction)
	})
}

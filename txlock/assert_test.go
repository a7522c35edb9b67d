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
	var name string
	if err := tx.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAssertLocked asserts locks that are held, and not, shared, undone and over, without
// a statement.
func TestAssertLocked(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ctx, key, shared := t.Context(), named(), named()
		s := begin(t, impatient(t, db, true), nil)
		wants := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		wants("before the lock", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		if _, err := s.RLock(ctx, shared); err != nil {
			t.Fatal(err)
		}
		if _, err := s.tx.ExecContext(ctx, "SAVEPOINT before_lock"); err != nil {
			t.Fatal(err)
		}
		s.lock(t, key)
		before := questions(t, s.tx)
		const times = 20
		for range times {
			wants("under the lock", txlock.AssertLocked(ctx, s.tx, key), nil)
			wants("shared by an exclusive one", txlock.AssertRLocked(ctx, s.tx, key), nil)
			wants("shared", txlock.AssertRLocked(ctx, s.tx, shared), nil)
			wants("exclusively by a shared one", txlock.AssertLocked(ctx, s.tx, shared), txlock.ErrNotHeld)
		}
		if sent := questions(t, s.tx) - before; sent >= times {
			t.Errorf("%d assertions have sent %d statements", 4*times, sent)
		}
		wants("of a zero key", txlock.AssertLocked(ctx, s.tx, txlock.Key{}), txlock.ErrInvalidKey)
		wants("of no transaction", txlock.AssertLocked(ctx, nil, key), txlock.ErrNoTransaction)

		rows, err := s.tx.QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2")
		if err != nil {
			t.Fatal(err)
		}
		rows.Next()
		wants("while rows are open", txlock.AssertLocked(ctx, s.tx, key), nil)
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}

		if _, err := s.tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT before_lock"); err != nil {
			t.Fatal(err)
		}
		wants("after a rollback to a savepoint", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNotHeld)
		s.lock(t, key)
		wants("locked again", txlock.AssertLocked(ctx, s.tx, key), nil)
		s.commit(t)
		wants("after the commit", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrNoTransaction)
		s = begin(t, impatient(t, db, true), nil)
		s.lock(t, key)
		send(t, s.tx, "COMMIT")
		wants("after a COMMIT as text", txlock.AssertLocked(ctx, s.tx, key), txlock.ErrTxDoomed)
	})
}

// TestAssertLockedOnPlainPools says that nobody knows.
func TestAssertLockedOnPlainPools(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		key := named()
		s := begin(t, impatient(t, db, false), nil)
		s.lock(t, key)
		err := txlock.AssertLocked(t.Context(), s.tx, key)
		if !errors.Is(err, txlock.ErrNotHeld) || !strings.Contains(err.Error(), "not guarded") {
			t.Errorf("AssertLocked on a plain pool: %v", err)
		}
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("the transaction after it: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := txlock.AssertLocked(ended, s.tx, key); !errors.Is(err, context.Canceled) {
			t.Errorf("AssertLocked under a context that has ended: %v", err)
		}
		s.commit(t)
		if err := txlock.AssertLocked(t.Context(), s.tx, key); !errors.Is(err, txlock.ErrNoTransaction) {
			t.Errorf("AssertLocked after the commit: %v", err)
		}
	})
}

package locktest_test

import (
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestAfterCommit proves that the pool in memory calls functions after the COMMIT as that of a
// server does: in order, not after a rollback or for an attempt that is retried, and not after a
// COMMIT without an answer.
func TestAfterCommit(t *testing.T) {
	t.Parallel()
	k := locktest.Open(t, nil)
	var called []string
	run := func(fn func(scope *txlock.Scope) error) error {
		return locksqlc.Run(t.Context(), k.DB(), nil, func(tx *sql.Tx) error {
			scope, err := txlock.Join(t.Context(), tx)
			must(t, err)
			for _, name := range []string{"first", "second"} {
				must(t, scope.AfterCommit(func() { called = append(called, name) }))
			}
			return fn(scope)
		})
	}
	wanted := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(called, want) {
			t.Errorf("%s: %q were called, want %q", what, called, want)
		}
		called = nil
	}
	lock := func(scope *txlock.Scope) error { _, err := scope.Lock(t.Context(), orders.Key(1)); return err }
	must(t, run(lock))
	wanted("committed", "first", "second")
	k.FailLock(orders.Key(1), locktest.Deadlock)
	must(t, run(lock))
	wanted("retried", "first", "second")
	broken := errors.New("broken")
	wants(t, "Run", run(func(*txlock.Scope) error { return broken }), broken)
	wanted("rolled back")
	k.FailStatement("COMMIT", locktest.LostConnection)
	wants(t, "Run", run(lock), txlock.ErrUnknownOutcome)
	wanted("not answered")
}

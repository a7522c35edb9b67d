package txlock_test

import (
	"errors"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestSharedKeys demands that only calls which take several keys take a marked one.
func TestSharedKeys(t *testing.T) {
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			pool := newPool(t, db, true)
			key := named()
			marked := txlock.Shared(key)
			if marked == key || txlock.Shared(marked) != marked || marked.String() != key.String() {
				t.Errorf("marked: %#v of %#v", marked, key)
			}
			s := begin(t, pool, nil)
			wants(t, "Validate", marked.Validate(), txlock.ErrInvalidKey)
			wants(t, "Lock", second(s.Lock(t.Context(), marked)), txlock.ErrInvalidKey)
			wants(t, "TryLock", second(s.TryLock(t.Context(), marked)), txlock.ErrInvalidKey)
			wants(t, "RLock", second(s.RLock(t.Context(), marked)), txlock.ErrInvalidKey)
			wants(t, "LockAny", second(s.LockAny(t.Context(), key, marked)), txlock.ErrInvalidKey)
			wants(t, "Once", second(s.Once(t.Context(), marked)), txlock.ErrInvalidKey)
			wants(t, "Version", second(s.Version(t.Context(), marked)), txlock.ErrInvalidKey)
			wants(t, "Ensure", txlock.Ensure(t.Context(), pool, marked), txlock.ErrInvalidKey)
			wants(t, "LockAll of a marked zero key", second(s.LockAll(t.Context(), txlock.Shared(txlock.Key{}))), txlock.ErrInvalidKey)
			segments := txlock.Segments(marked, 3)
			grants, err := s.LockAll(t.Context(), append(segments, key)...)
			wants(t, "LockAll of shared segments", err, nil)
			for i, grant := range grants {
				if grant.Shared() != (i < 3) {
					t.Errorf("grant %d is %+v", i, grant)
				}
			}
			wants(t, "Commit", s.tx.Commit(), nil)
		})
	}
}

// TestUpgradeAfterTheEnd proves that who asks for an exclusive lock, and has held a shared one in a
// transaction that a statement has ended, is told of the end, and not of an upgrade.
func TestUpgradeAfterTheEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			for _, end := range []string{"COMMIT", "ROLLBACK"} {
				s, key := begin(t, newPool(t, db, guarded), nil), named()
				wants(t, "RLock", second(s.RLock(t.Context(), key)), nil)
				_ = second(s.tx.ExecContext(t.Context(), end)) // a guarded pool says what it does
				for name, err := range map[string]error{"Lock": second(s.Lock(t.Context(), key)), "LockAll": second(s.LockAll(t.Context(), named(), key))} {
					if !errors.Is(err, txlock.ErrTxDoomed) || errors.Is(err, txlock.ErrUpgrade) {
						t.Errorf("%s after %s (guarded=%t): %v", name, end, guarded, err)
					}
				}
			}
		}
	})
}

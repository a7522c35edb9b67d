package txlock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestMissingPrivileges proves that a user who may only read is told what to grant, and
// that the transaction goes on.
func TestMissingPrivileges(t *testing.T) {
	txlock.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := ungranted(t, engine)
		for _, table := range []string{"locks", "centers", "leases"} {
			for _, host := range []string{"%", "localhost"} {
				db.Exec(t, fmt.Sprintf("GRANT SELECT ON lockstep_%s TO '%s'@'%s'", table, db.Config().User, host))
			}
		}
		for _, guarded := range []bool{false, true} {
			pool := newPool(t, db, guarded)
			denied := func(what, table string, err error) {
				t.Helper()
				wants(t, what, err, txlock.ErrPrivilege)
				if err != nil && (!strings.Contains(err.Error(), " ON "+table+" TO '"+db.Config().User+"'@'") || !strings.Contains(err.Error(), "GRANT SELECT, INSERT, UPDATE")) {
					t.Errorf("%s doesn't name the cure: %v", what, err)
				}
			}
			s := begin(t, pool, nil)
			limited := s.WaitAtMost(time.Second)
			denied("Lock", "lockstep_locks", second(s.Lock(t.Context(), named())))
			denied("Lock of a hashed key", "lockstep_centers", second(s.Lock(t.Context(), hashed())))
			denied("LockAll", "lockstep_locks", second(s.LockAll(t.Context(), named(), named())))
			denied("RLock", "lockstep_locks", second(s.RLock(t.Context(), named())))
			denied("TryLock", "lockstep_locks", second(s.TryLock(t.Context(), named())))
			denied("WaitAtMost", "lockstep_locks", second(limited.Lock(t.Context(), named())))
			denied("CompareAndBump", "lockstep_locks", s.CompareAndBump(t.Context(), named(), 0))
			denied("Once", "lockstep_once", second(s.Once(t.Context(), named())))
			wants(t, "Verify", s.Verify(t.Context()), nil)
			s.commit(t)
			denied("Ensure", "lockstep_locks", txlock.Ensure(t.Context(), pool, named()))
			db.Exec(t, "REPLACE INTO lockstep_locks VALUES ('long ago', 1, '-', 0, 1)")
			denied("Clean", "lockstep_locks", second(txlock.Purge(t.Context(), pool, time.Hour)))

			leases, err := lease.NewManager(pool)
			noError(t, err)
			denied("Acquire", "lockstep_leases", second(leases.Acquire(t.Context(), named())))
			wants(t, "Close", leases.Close(context.WithoutCancel(t.Context())), nil)
		}
	})
}

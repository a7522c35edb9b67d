package locksqlc_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestOptimisticWithoutItsEnd drops the procedure that would compare the version and
// commit, after the one that has read the version: the transaction ends by statements, once.
func TestOptimisticWithoutItsEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		for _, name := range []string{"lockstep_compare_1", "lockstep_raise_1"} {
			db := testdb.Shared(t, db.Engine()).OpenNamed(t)
			table, key, runs := numbers(t, db), uniqueKey(t, name), 0
			pool := newPool(t, db.Config(), true)
			check(t, locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error {
				if runs++; runs == 1 {
					db.DropProcedures(t, name)
				}
				return second(tx.ExecContext(t.Context(), "UPDATE "+table+" SET v = v + 1"))
			}))
			version, err := txlock.ReadVersion(t.Context(), pool, key)
			check(t, err)
			if n := count(t, db.Admin(), "SELECT v FROM "+table); runs != 1 || n != 1 || version == 0 {
				t.Errorf("without %s: %d runs, %d updates, version %d", name, runs, n, version)
			}
		}
	})
}

// TestTripsOfABusyKey counts the round trips of a try that finds the key locked, which are
// one, and of a bounded wait for it, which are three: in a transaction that begins with it.
func TestTripsOfABusyKey(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !hasProcedures(db.Engine()) {
			return
		}
		trips, counting := testdb.CountTrips(t)
		key, pool := uniqueKey(t, "busy"), newPool(t, db.Config(), true)
		check(t, txlock.Ensure(t.Context(), pool, key))
		holder := begin(t, pool)
		held := lock(t, join(t, holder), key)

		conn := takeConn(t, newPool(t, db.Config(counting), true))
		id, tx := testdb.ConnID(t, conn), begin(t, conn)
		scope, before := join(t, tx), trips.Count()
		isError(t, "TryLock of a key that is held", second(scope.TryLock(t.Context(), key)), txlock.ErrBusy)
		if n := trips.Count() - before; n != 1 {
			t.Errorf("a try took %d round trips, want 1", n)
		}
		check(t, errors.Join(scope.Verify(t.Context()), tx.Rollback()))

		tx = begin(t, conn)
		scope, before = join(t, tx), trips.Count()
		granted := db.Waiting(t, id, func() error { return second(scope.WaitAtMost(time.Minute).Lock(t.Context(), key)) })
		check(t, errors.Join(holder.Commit(), <-granted))
		if grant, _ := scope.Held(key); trips.Count()-before != 3 || grant.Token() <= held.Token() {
			t.Errorf("a wait took %d round trips, want 3, and its token is %d after %d", trips.Count()-before, grant.Token(), held.Token())
		}
		check(t, tx.Commit())
	})
}

package lease_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// sessions counts those of the application's user on the server.
func sessions(t testing.TB, db *testdb.DB) int64 {
	t.Helper()
	return number(t, db, "SELECT COUNT(*) FROM "+db.Engine().Processes()+" WHERE user = ?", db.Config().User)
}

// leaveNothing closes the managers and their pools, after which the server has no
// session of theirs.
func leaveNothing(t *testing.T, db *testdb.DB, managers []*lease.Manager, pools []*sql.DB) {
	t.Helper()
	for i, m := range managers {
		wantsNone(t, "Close", m.Close(t.Context()))
		equal(t, "connections in use at the end", testdb.InUse(pools[i]), 0)
		_ = pools[i].Close() // which complains of connections that were broken
	}
	if !testdb.Await(time.Minute, func() bool { return sessions(t, db) == 0 }) {
		t.Errorf("%d sessions are left", sessions(t, db))
	}
}

// TestServerRestart proves that a killed server that comes back costs a long lease
// nothing: it is held on and renewed. One whose time was over meanwhile is lost, and
// its next token is higher. No session is left in the end.
func TestServerRestart(t *testing.T) {
	onDedicated(t, func(t *testing.T, server *testdb.Server) {
		db := server.OpenLeases(t)
		pools := []*sql.DB{newPool(t, db, true), newPool(t, db, false)}
		m := newManager(t, pools[0], lease.TTL(time.Hour), lease.RenewEvery(100*time.Millisecond))
		other := newManager(t, pools[1])
		long, short := acquire(t, m, named()), acquire(t, m, named(), lease.TTL(2*time.Second))
		must(t, server.Kill())
		<-short.Done()
		wants(t, "Err of the short lease", short.Err(), txlock.ErrLost)
		wantsNone(t, "the long lease while the server is down", long.Err())
		must(t, server.Restart(t.Context()))
		renewed(t, db, long)
		wants(t, "TryAcquire of the long lease", second(other.TryAcquire(t.Context(), long.Key())), txlock.ErrBusy)
		for _, l := range []*lease.Lease{long, short} {
			if l == long {
				release(t, l)
			} else {
				wants(t, "Release of the short lease", l.Release(t.Context()), txlock.ErrNotHeld)
			}
			next := acquire(t, other, l.Key())
			higher(t, next, l)
			release(t, next)
		}
		leaveNothing(t, db, []*lease.Manager{m, other}, pools)
	})
}

package lease_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
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

// killOne kills one of the application's sessions, if there is any, and returns how
// many it has killed.
func killOne(t *testing.T, db *testdb.DB) int64 {
	rows, err := db.Admin().Query("SELECT id FROM "+db.Engine().Processes()+" WHERE user = ?", db.Config().User)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		wantsNone(t, "Scan", rows.Scan(&id))
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return 0
	}
	// It may have gone by itself meanwhile.
	if _, err := db.Admin().Exec(fmt.Sprintf("KILL CONNECTION %d", ids[rand.IntN(len(ids))])); err != nil {
		return 0
	}
	return 1
}

// TestTokensOutliveRows proves that a token never goes back where its row was
// removed, by a person or the cleanup, whose holder is told; and that the cleanup
// leaves rows whose token is ahead of the clock. It has a database of its own: its
// cleanup removes what other tests have released a second ago.
func TestTokensOutliveRows(t *testing.T) {
	onServers(t, func(t *testing.T, shared *testdb.DB) {
		db := shared.Server().OpenLeases(t)
		pool := newPool(t, db, true)
		m, other := newManager(t, pool, lease.PurgeEvery(0, time.Second)), newManager(t, pool)
		key := named()
		var last uint64
		rises := func(l *lease.Lease) {
			t.Helper()
			if l.Token() <= last {
				t.Errorf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
		}
		remove := func() { exec(t, db, "DELETE FROM lockstep_leases WHERE name = ?", key.String()) }
		for range 5 {
			l := acquire(t, m, key)
			rises(l)
			remove()
			next := acquire(t, other, key)
			rises(next)
			wants(t, "Renew without the row", l.Renew(t.Context()), txlock.ErrLost)
			wants(t, "Release without the row", l.Release(t.Context()), txlock.ErrNotHeld)
			wantsNone(t, "Renew of the next holder", next.Renew(t.Context()))
			release(t, next)
			remove()
		}
		rises(acquire(t, m, key))
		must(t, second(m.Purge(t.Context())))
		wants(t, "TryAcquire of a held lease after Purge", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		must(t, m.ForceRelease(t.Context(), key))
		present := func() bool {
			return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()) == 1
		}
		if !testdb.Await(time.Minute, func() bool { // until it was idle for the retention
			must(t, second(m.Purge(t.Context())))
			return !present()
		}) {
			t.Error("the cleanup doesn't remove an idle row")
		}
		l := acquire(t, other, key)
		rises(l)
		release(t, l)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 0, token = token + 3600000000 WHERE name = ?", key.String())
		last += uint64(time.Hour.Microseconds())
		must(t, second(m.Purge(t.Context())))
		if !present() {
			t.Error("the cleanup has removed a row whose token is ahead of the clock")
		}
		l = acquire(t, other, key)
		rises(l)
		release(t, l)
	})
}

// TestPoolOfOne proves that a pool of a single connection is enough: for acquire,
// renewal and release, and, of a key that was leased before, for AcquireTx and Guard in a
// transaction that has the connection.
func TestPoolOfOne(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(1)
		m := newManager(t, pool, oftenRenewed...)
		ctx := limited(t, soon)
		l := acquireIn(ctx, t, m, named())
		renewed(t, db, l)
		key := keyOf(t, m, true)
		tx, err := pool.BeginTx(ctx, nil)
		must(t, err)
		inTx := mustLease(t)(m.AcquireTx(ctx, tx, key))
		must(t, l.Guard(ctx, tx))
		must(t, tx.Commit())
		renewed(t, db, l)
		renewed(t, db, inTx)
		for _, l := range []*lease.Lease{l, inTx} {
			wantsNone(t, "Err", l.Err())
			wantsNone(t, "Release", l.Release(ctx))
		}
	})
}

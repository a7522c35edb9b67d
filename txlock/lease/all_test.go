package lease_test

import (
	"database/sql"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestAcquireAllOnServers proves that many goroutines of several managers, which name the
// same keys in any order and guard a transaction with all of them, all end, and that none
// of their updates is lost.
func TestAcquireAllOnServers(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		table := db.CreateTable(t, "counts", "id INT PRIMARY KEY, n INT NOT NULL")
		keys := []txlock.Key{named(), named(), named()}
		for id := range keys {
			exec(t, db, "INSERT INTO "+table+" VALUES (?, 0)", id)
		}
		managers := []*lease.Manager{newManager(t, pool), newManager(t, newPool(t, db, poolKind(pool)))}
		// Each reads, and writes what it has read plus one: only the leases keep the others out.
		work := func(l *lease.Leases, ids []int) error {
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			for _, id := range ids {
				var n int
				if err := tx.QueryRowContext(t.Context(), "SELECT n FROM "+table+" WHERE id = ?", id).Scan(&n); err != nil {
					return err
				}
				if _, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = ? WHERE id = ?", n+1, id); err != nil {
					return err
				}
			}
			if err := l.Guard(t.Context(), tx); err != nil {
				return err
			}
			return tx.Commit()
		}
		var all sync.WaitGroup
		const rounds = 6
		for n := range 6 {
			m := managers[n%2]
			all.Go(func() {
				for range rounds {
					ids := rand.Perm(len(keys))[:2]
					l, err := m.AcquireAll(t.Context(), []txlock.Key{keys[ids[0]], keys[ids[1]]})
					if err == nil {
						err = errors.Join(work(l, ids), l.Release(t.Context()))
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if n := number(t, db, "SELECT SUM(n) FROM "+table); n != 2*6*rounds {
			t.Errorf("%d updates, want %d", n, 2*6*rounds)
		}
	})
}

// TestLeasesGuardOnServers proves that a transaction that guards several leases can't be
// committed when one of them is lost, and keeps others from all of them until its end.
func TestLeasesGuardOnServers(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool, lease.TTL(time.Hour)), newManager(t, newPool(t, db, false))
		keys := []txlock.Key{named(), named()}
		all, err := m.AcquireAll(t.Context(), keys)
		must(t, err)
		tx := begin(t, pool, sql.LevelDefault)
		wantsNone(t, "Guard", all.Guard(t.Context(), tx))
		for _, key := range keys {
			wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		}
		wantsNone(t, "Commit", tx.Commit())
		last := all.All()[1].Key()
		wantsNone(t, "ForceRelease", other.ForceRelease(t.Context(), last))
		release(t, acquire(t, other, last))
		tx = begin(t, pool, sql.LevelDefault)
		wants(t, "Guard", all.Guard(t.Context(), tx), txlock.ErrLost)
		wantsNone(t, "Rollback", tx.Rollback())
		wants(t, "Release", all.Release(t.Context()), txlock.ErrNotHeld)
		for _, key := range keys {
			release(t, acquire(t, other, key))
		}
	})
}

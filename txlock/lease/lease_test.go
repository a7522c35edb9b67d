package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func TestAcquireExcludes(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		one, other := newManager(t, pool), newManager(t, pool)
		key := named()
		l := acquire(t, one, key)
		for _, m := range []*lease.Manager{one, other} {
			wants(t, "TryAcquire of a held lease", second(m.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		}
		wantsNone(t, "Err", l.Err())
		release(t, l)
		wants(t, "Err after the release", l.Err(), txlock.ErrNotHeld)
		wantsNone(t, "second Release", l.Release(t.Context()))
		next, err := other.TryAcquire(t.Context(), key)
		must(t, err)
		higher(t, next, l)
		release(t, next)
	})
}

// oftenRenewed is a lease that no busy machine lets expire, and whose renewals come soon.
var oftenRenewed = []lease.ManagerOption{lease.TTL(time.Minute), lease.RenewEvery(50 * time.Millisecond)}

// renewed returns when the rows say that a lease of a key was renewed.
func renewed(t *testing.T, db *testdb.DB, l *lease.Lease) {
	t.Helper()
	last := func() int64 {
		return number(t, db, "SELECT MAX(expires_us) FROM lockstep_leases WHERE name = ?", l.Key().String())
	}
	before := last()
	if !testdb.Await(soon, func() bool { return last() > before }) {
		t.Errorf("the lease of %v is not renewed", l.Key())
	}
}

func TestReentry(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		err := m.Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			return m.Do(ctx, key, func(ctx context.Context, again *lease.Lease) error {
				entered(t, again, l)
				elsewhere, err := other.TryAcquire(ctx, key)
				if err != nil {
					return err
				}
				entered(t, elsewhere, l)
				wants(t, "another owner", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
				return elsewhere.Release(ctx)
			})
		})
		must(t, err)
		release(t, acquire(t, other, key))
	})
}

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

// TestFreeLeaseHasNoLimit proves that what is free is granted however small the limit
// of the wait is, also with a manager that has sent nothing yet, and a key without a row.
func TestFreeLeaseHasNoLimit(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		waits := maps.Clone(waitsWithoutLimit)
		waits["Acquire fairly"] = func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
			return acquired(m.Acquire(ctx, key, append(options, lease.Fair())...))
		}
		waits["of an owner who has it"] = func(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) error {
			ctx = lease.WithOwner(ctx, "owner of "+key.String())
			defer release(t, acquireIn(ctx, t, m, key, options...))
			return acquired(newManager(t, pool).Acquire(ctx, key, options...))
		}
		for name, wait := range waits {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for range 5 {
					m, key := newManager(t, pool), named()
					for range 3 { // without a row, and with one
						must(t, wait(t.Context(), m, key, lease.WaitAtMost(1)))
					}
				}
			})
		}
	})
}

// TestLimitSaysWhatWasSeen proves that the error of a limit names what was in the way.
func TestLimitSaysWhatWasSeen(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, other, limit := db.manager(), db.manager(), lease.WaitAtMost(time.Second)
		shared, permits := txlock.Named("shared"), semaphore(t, m, txlock.Named("permits"), 1)
		acquireIn(lease.WithOwner(t.Context(), "somebody"), t, m, job)
		reader := share(t, m, shared)
		permit(t, permits)
		for _, c := range []struct {
			err  error
			says string
		}{
			{second(other.Acquire(t.Context(), job, limit)), `after 1s owner "somebody" (`},
			{second(other.AcquireShared(t.Context(), job, limit)), `after 1s owner "somebody" (`},
			{second(other.Acquire(t.Context(), shared, limit)), "readers had it"},
			{second(permits.Acquire(t.Context(), limit)), "no permit was free"},
		} {
			wants(t, "the limit", c.err, txlock.ErrWaitTimeout)
			if c.err != nil && !strings.Contains(c.err.Error(), c.says) {
				t.Errorf("%v, want %s", c.err, c.says)
			}
		}
		must(t, reader.Renew(t.Context()))
	})
}

package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
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

func TestAcquireWaits(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		for name, m := range map[string]*lease.Manager{"same manager": nil, "another": newManager(t, pool)} {
			t.Run(name, func(t *testing.T) {
				first := newManager(t, pool)
				if m == nil {
					m = first
				}
				key := named()
				l := acquire(t, first, key)
				wants(t, "WaitAtMost", second(m.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))), txlock.ErrWaitTimeout)
				ctx := limited(t, 30*time.Millisecond)
				_, err := m.Acquire(ctx, key)
				wants(t, "deadline", err, context.DeadlineExceeded)
				got := make(chan *lease.Lease)
				go func() {
					next, err := m.Acquire(t.Context(), key)
					wantsNone(t, "Acquire", err)
					got <- next
				}()
				time.Sleep(20 * time.Millisecond)
				release(t, l)
				next := <-got
				higher(t, next, l)
				release(t, next)
			})
		}
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

func TestRenewalKeepsIt(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool, oftenRenewed...), newManager(t, pool)
		key := named()
		l := acquire(t, m, key)
		for range 3 {
			renewed(t, db, l)
			if _, err := other.TryAcquire(t.Context(), key); !errors.Is(err, txlock.ErrBusy) {
				t.Fatalf("TryAcquire: %v", err)
			}
			must(t, l.Err())
		}
		exec(t, db, "UPDATE lockstep_leases SET token = token + 1 WHERE name = ?", key.String())
		<-l.Done()
		wants(t, "Err of a lease taken away", l.Err(), txlock.ErrLost)
		wants(t, "its Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
	})
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

func TestGuard(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		key := named()
		l := acquire(t, m, key)
		tx := begin(t, pool, sql.LevelDefault)
		must(t, l.Guard(t.Context(), tx))
		must(t, l.Guard(t.Context(), tx))
		wants(t, "TryAcquire of a guarded lease", second(m.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		must(t, tx.Commit())
		exec(t, db, "UPDATE lockstep_leases SET token = token + 1 WHERE name = ?", key.String())
		tx = begin(t, pool, sql.LevelDefault)
		wants(t, "Guard of a lease taken away", l.Guard(t.Context(), tx), txlock.ErrLost)
		wantsNone(t, "Rollback", tx.Rollback())
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	})
}

func TestAcquireTx(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool, oftenRenewed...), newManager(t, pool)
		for _, commit := range []bool{true, false} {
			key := named()
			tx := begin(t, pool, sql.LevelDefault)
			l := acquireTx(t, m, tx, key)
			wants(t, "TryAcquire before the commit", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
			if !commit {
				must(t, tx.Rollback())
				<-l.Done()
				wants(t, "Err after the rollback", l.Err(), txlock.ErrLost)
				release(t, acquire(t, other, key))
				wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
				continue
			}
			must(t, tx.Commit())
			renewed(t, db, l)
			wantsNone(t, "Err", l.Err())
			wants(t, "TryAcquire after the commit", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
			release(t, l)
		}
	})
}

func TestInspect(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, _ *sql.DB) {
		db = testdb.Shared(t, db.Engine()).OpenLeases(t) // with no cleanup but this
		m := newManager(t, newPool(t, db, strings.HasSuffix(t.Name(), "guarded")))
		key := named()
		info, err := m.Inspect(t.Context(), key)
		if err != nil || info.Held {
			t.Errorf("Inspect before: %+v, %v", info, err)
		}
		l := acquire(t, m, key, lease.TTL(time.Minute))
		info, err = m.Inspect(t.Context(), key)
		if err != nil || !info.Held || info.Owner != l.Owner() || info.Token != l.Token() || info.TTL != time.Minute || info.Holders != 1 || info.Remaining < 50*time.Second {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
		all, err := m.List(t.Context())
		must(t, err)
		found := false
		for _, i := range all {
			found = found || i.Key == key && i.Held
		}
		if !found {
			t.Errorf("List of %d has not %v", len(all), key)
		}
		must(t, m.ForceRelease(t.Context(), key))
		wants(t, "ForceRelease again", m.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
		next := acquire(t, m, key)
		higher(t, next, l)
		release(t, next)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 0, token = token - 5000000 WHERE name = ?", key.String())
		n, err := m.Purge(t.Context())
		if err != nil || n == 0 {
			t.Errorf("Purge: %d, %v", n, err)
		}
		if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()); n != 0 {
			t.Error("the row was not removed")
		}
	})
}

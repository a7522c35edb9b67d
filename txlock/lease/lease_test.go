package lease_test

import (
	"context"
	"database/sql"
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

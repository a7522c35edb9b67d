package lease_test

import (
	"context"
	"database/sql"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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

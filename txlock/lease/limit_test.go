package lease_test

import (
	"context"
	"database/sql"
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
		for name, how := range map[string]struct {
			option  lease.ManagerOption
			acquire func(m *lease.Manager, key txlock.Key) (*lease.Lease, error)
		}{
			"exclusive": {lease.WaitAtMost(1), func(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return m.Acquire(t.Context(), key)
			}},
			"fair": {lease.Fair(), func(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return m.Acquire(t.Context(), key, lease.WaitAtMost(1))
			}},
			"shared": {lease.WaitAtMost(1), func(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				return m.AcquireShared(t.Context(), key)
			}},
			"permit": {lease.WaitAtMost(1), func(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				s, err := m.Semaphore(key, 3)
				if err != nil {
					return nil, err
				}
				return s.Acquire(t.Context())
			}},
			"of an owner who has it": {lease.WaitAtMost(1), func(m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
				ctx := lease.WithOwner(t.Context(), "owner of "+key.String())
				first, err := m.Acquire(ctx, key)
				if err != nil {
					return nil, err
				}
				defer release(t, first)
				return newManager(t, pool).Acquire(ctx, key, lease.WaitAtMost(1))
			}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for range 5 {
					m, key := newManager(t, pool, how.option), named()
					for range 3 { // without a row, and with one
						l, err := how.acquire(m, key)
						must(t, err)
						release(t, l)
					}
				}
			})
		}
	})
}

// TestLimitSaysWhatWasSeen proves that the error of a limit names what was in the way.
func TestLimitSaysWhatWasSeen(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		atMost := unhurried(t, other, 500*time.Millisecond)
		limit := lease.WaitAtMost(atMost)
		says := func(t *testing.T, err error, what ...string) {
			t.Helper()
			wants(t, "the limit", err, txlock.ErrWaitTimeout)
			for _, w := range what {
				if err != nil && !strings.Contains(err.Error(), w) {
					t.Errorf("%v, want %s", err, w)
				}
			}
		}
		t.Run("a holder", func(t *testing.T) {
			t.Parallel()
			key := named()
			l, err := m.Acquire(lease.WithOwner(t.Context(), "somebody"), key)
			must(t, err)
			defer release(t, l)
			_, err = other.Acquire(t.Context(), key, limit)
			says(t, err, `owner "somebody" (`, atMost.String())
			_, err = other.AcquireShared(t.Context(), key, limit)
			says(t, err, `owner "somebody" (`)
		})
		t.Run("readers", func(t *testing.T) {
			t.Parallel()
			key := named()
			l := share(t, m, key)
			defer release(t, l)
			_, err := other.Acquire(t.Context(), key, limit)
			says(t, err, "readers had it")
			if _, err := l.Key(), l.Renew(t.Context()); err != nil {
				t.Error(err)
			}
		})
		t.Run("permits", func(t *testing.T) {
			t.Parallel()
			s := semaphore(t, m, named(), 1)
			if err := s.Do(t.Context(), func(_ context.Context, _ *lease.Lease) error {
				_, err := s.Acquire(t.Context(), limit)
				says(t, err, "no permit was free")
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	})
}

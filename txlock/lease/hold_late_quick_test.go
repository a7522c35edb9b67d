package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestHoldAtLeastAnsweredLate proves of a release whose first attempt is not answered before
// the TTL is over, that it says the key is kept if that attempt has kept it, and not if it
// came too late, when others may have had the key.
func TestHoldAtLeastAnsweredLate(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		const ttl = 2 * time.Second
		for _, owner := range []string{"me", strings.Repeat("o", 255)} {
			l, err := m.Acquire(lease.WithOwner(t.Context(), owner), job, lease.TTL(ttl), lease.HoldAtLeast(time.Hour))
			must(t, err)
			wire.fault("Keep", times(1, func(ctx context.Context, op string, at store.Row, call func() error) error {
				return errors.Join(answersLate(ttl+time.Second)(ctx, op, at, call), mysql.ErrInvalidConn)
			}))
			release(t, l)
			all, err := m.List(t.Context())
			must(t, err)
			if len(all) != 1 || !strings.HasPrefix(all[0].Owner, store.Released) {
				t.Errorf("released: %+v", all)
			}
			must(t, m.ForceRelease(t.Context(), job))
		}
		for _, taken := range []bool{true, false} {
			l := acquire(t, m, job, lease.TTL(ttl), lease.HoldAtLeast(time.Hour))
			wire.fault("Keep", times(1, func(context.Context, string, store.Row, func() error) error {
				time.Sleep(ttl + time.Second)
				if taken {
					release(t, acquire(t, db.manager(), job))
				}
				return mysql.ErrInvalidConn
			}))
			wants(t, "Release that came too late", l.Release(t.Context()), txlock.ErrNotHeld)
			nothingHeld(t, m)
		}
	})
}

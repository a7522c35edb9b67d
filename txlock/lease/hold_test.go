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

// TestHoldAtLeastOnServers proves by the rows of each server that a release keeps the lease
// until exactly the time after its grant, by the server's clock, and by one statement.
func TestHoldAtLeastOnServers(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool, lease.TTL(time.Hour)), newManager(t, newPool(t, db, false))
		kept := func(key txlock.Key) (us int64) {
			return number(t, db, "SELECT CAST(IF(holders = '', 0, expires_us - CAST(token AS SIGNED)) AS SIGNED) FROM lockstep_leases WHERE slot < 2 AND token > 0 AND name = ?", key.String())
		}
		ctx := lease.WithOwner(t.Context(), strings.Repeat("o", 255))
		for _, d := range []time.Duration{10 * time.Minute, 5 * time.Hour} {
			key := named()
			l := acquireIn(ctx, t, m, key, lease.HoldAtLeast(d))
			release(t, l)
			if us := kept(key); us != d.Microseconds() {
				t.Errorf("kept for %d us, want %v", us, d)
			}
			for _, m := range []*lease.Manager{m, other} {
				for _, ctx := range []context.Context{ctx, t.Context()} {
					wants(t, "TryAcquire", second(m.TryAcquire(ctx, key)), txlock.ErrBusy)
				}
			}
			if us := kept(key); us != d.Microseconds() { // a refusal may shorten what is too far ahead
				t.Errorf("kept for %d us after a refusal, want %v", us, d)
			}
			info, err := other.Inspect(t.Context(), key)
			if err != nil || !info.Held || info.Remaining <= 0 || info.Remaining > d || !strings.HasPrefix(info.Owner, "released: ooo") {
				t.Errorf("Inspect: %+v, %v", info, err)
			}
			wantsNone(t, "ForceRelease", other.ForceRelease(t.Context(), key))
			release(t, acquire(t, m, key))
		}
		for name, moved := range map[string]struct {
			by   time.Duration
			want func(us int64) bool
		}{
			"whose time is over": {-2 * time.Hour, func(us int64) bool { return us == 0 }},
			"of a clock that went back": {2 * time.Hour, func(us int64) bool {
				return us >= -time.Hour.Microseconds() && us < (time.Minute-time.Hour).Microseconds() // an hour from the release
			}},
		} {
			key := named()
			l := acquire(t, m, key, lease.HoldAtLeast(time.Hour))
			exec(t, db, "UPDATE lockstep_leases SET token = token + ? WHERE name = ?", moved.by.Microseconds(), key.String())
			release(t, l)
			if us := kept(key); !moved.want(us) {
				t.Errorf("a lease %s is kept until %d us after its token", name, us)
			}
		}
		key := named()
		first, second := acquire(t, m, key, lease.HoldAtLeast(time.Hour)), other
		again, err := second.Acquire(lease.WithOwner(t.Context(), first.Owner()), key)
		must(t, err)
		release(t, first) // the last one counts
		wantsNone(t, "Renew", again.Renew(t.Context()))
		release(t, again)
		release(t, acquire(t, m, key))
		l := acquire(t, m, key, lease.HoldAtLeast(time.Hour))
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
		wants(t, "Release of what has expired", l.Release(t.Context()), txlock.ErrNotHeld)
		release(t, acquire(t, m, key))
	})
}

// TestHoldAtLeastOfPermitsOnServers proves it of permits.
func TestHoldAtLeastOfPermitsOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true))
		key := named()
		s := semaphore(t, m, key, 2)
		for range 2 {
			must(t, s.Do(t.Context(), func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(time.Hour)))
		}
		wants(t, "TryAcquire", second(s.TryAcquire(t.Context())), txlock.ErrBusy)
		info, err := m.Inspect(t.Context(), key)
		if all := info.Others; err != nil || len(all) != 2 || all[1].Kind != lease.Permit || all[1].Remaining <= 0 || all[1].TTL != time.Hour {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
	})
}

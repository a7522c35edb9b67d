package lease_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// makeEntryRows makes the rows of keys that were shared before, or of semaphores of one
// permit, by few statements.
func makeEntryRows(t testing.TB, db *testdb.DB, keys []txlock.Key, permits bool) {
	t.Helper()
	const batch = 500
	for from := 0; from < len(keys); from += batch {
		var values []string
		var names []any
		for _, key := range keys[from:min(from+batch, len(keys))] {
			if permits {
				values, names = append(values, "(?, 0, '-', '', 0, 0, 0, -1, 0)", "(?, 1, '-', '', 0, 0, 0, 0, 0)"), append(names, key.String(), key.String())
			} else {
				values, names = append(values, "(?, 0, '-', '', 0, 0, 0, 1, 0)"), append(names, key.String())
			}
		}
		exec(t, db, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES "+strings.Join(values, ", "), names...)
	}
}

// takeMixed takes n leases side by side: readers, two of each key, and permits in equal parts.
func takeMixed(t testing.TB, db *testdb.DB, m *lease.Manager, n int, options ...lease.AcquireOption) []*lease.Lease {
	t.Helper()
	keys := make([]txlock.Key, n)
	var shared []txlock.Key
	for i := range keys {
		if keys[i] = named(); i < n/2 && i%2 == 0 {
			shared = append(shared, keys[i])
		} else if i < n/2 {
			keys[i] = keys[i-1]
		}
	}
	makeEntryRows(t, db, shared, false)
	makeEntryRows(t, db, keys[n/2:], true)
	held := make([]*lease.Lease, n)
	var group sync.WaitGroup
	const workers = 8
	for w := range workers {
		group.Go(func() {
			for i := w; i < n; i += workers {
				take := m.AcquireShared
				if i >= n/2 {
					take = func(ctx context.Context, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
						return permitOf(ctx, m, key, options...)
					}
				}
				var err error
				if held[i], err = take(context.Background(), keys[i], options...); err != nil {
					t.Errorf("lease %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return held
}

// lostOf counts those that are not held any more.
func lostOf(held []*lease.Lease) (n int, why error) {
	for _, l := range held {
		if err := l.Err(); err != nil {
			n, why = n+1, err
		}
	}
	return n, why
}

// TestManyKeysAreRenewedTogether proves that readers and permits of hundreds of keys, and
// of thousands with LOCKSTEP_LONG=1, starve no renewal, neither their own nor that of an
// exclusive lease with a shorter TTL; and that a round of all takes few statements.
// See TestMixedKeysAreRenewedTogether.
func TestManyKeysAreRenewedTogether(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for name, text := range map[string]bool{"prepared": false, "interpolated": true} {
			run(name, func(t *testing.T) {
				const ttl, every = 30 * time.Second, time.Second
				leases := testdb.Long(200, 3000)
				tap := new(wiretap)
				pool := newPool(t, db, !text, tap.install, func(c *mysql.Config) { c.InterpolateParams = text })
				m := newManager(t, pool, lease.TTL(ttl), lease.RenewEvery(every))
				held := takeMixed(t, db, m, leases)
				soonest := unhurried(t, m, 4*time.Second)
				urgent := acquire(t, m, named(), lease.TTL(soonest))
				before, begun := tap.count(), time.Now()
				lasts(soonest*5/4, func() bool { return leastLeft(held) > ttl-ttl/100-time.Since(begun) })
				if left, passed := leastLeft(held), time.Since(begun); left < ttl-ttl/100-passed {
					t.Errorf("%v are left of one after %v: not all were renewed", left, passed)
				}
				held = append(held, urgent)
				if n, why := lostOf(held); n > 0 {
					t.Errorf("%d of %d are lost: %v", n, len(held), why)
				}
				sent := tap.count() - before
				// A round takes a few batches of two statements, and the urgent one 2 of its own. Where
				// the server is slow, batches fail, are read again, and the rounds drift apart; but
				// none becomes a lease by itself.
				renewals := leases * int(time.Since(begun)/every)
				if most := renewals / 20; sent > most {
					t.Errorf("%d statements in %v, want at most %d: %.500q", sent, time.Since(begun), most, tap.last(3))
				}
				t.Logf("%d statements in %v", sent, time.Since(begun))
				release(t, urgent)
				releaseMany(t, held[:leases])
			})
		}
	})
}

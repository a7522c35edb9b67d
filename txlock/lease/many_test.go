package lease_test

import (
	"context"
	"database/sql"
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

// TestManyGuardedLeases proves that a transaction that guards many leases past their
// renewals makes the manager open no more connections than one that guards few: one waits
// for all of them. The manager's other leases are renewed meanwhile, and all of the
// guarded ones when the transaction has ended, long before their time is over.
func TestManyGuardedLeases(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for kind, guarded := range map[string]bool{"guarded": true, "plain": false} {
			const ttl, leases, most = 5 * soon, 60, 3
			tap := new(wiretap)
			pool, programs := newPool(t, db, guarded, tap.install), newPool(t, db, guarded)
			pool.SetMaxIdleConns(1)
			m := newManager(t, pool, lease.TTL(ttl), lease.RenewEvery(50*time.Millisecond))
			held, other := make([]*lease.Lease, leases), acquire(t, m, named())
			for i := range held {
				held[i] = acquire(t, m, named())
			}
			waitUntil(t, "the connections of before are closed", func() bool { return sessions(t, db) <= 2 })
			waiting := make(chan struct{}, leases)
			tap.hook(func(statement string, _ <-chan struct{}) error {
				if strings.Contains(statement, "name: LockLease ") {
					select {
					case waiting <- struct{}{}:
					default:
					}
				}
				return nil
			})
			tx := begin(t, programs, sql.LevelDefault)
			before := sessions(t, db)
			for _, l := range held {
				guard(t, l, tx)
			}
			within(t, kind+": a wait for a row", waiting)
			seen := int64(0)
			for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(10 * time.Millisecond) {
				seen = max(seen, sessions(t, db))
			}
			t.Logf("%s: %d sessions before, %d with %d guarded leases", kind, before, seen, leases)
			if seen > before+most {
				t.Errorf("%s: %d sessions with %d guarded leases, %d before", kind, seen, leases, before)
			}
			from := leastLeft(held)
			waitUntil(t, kind+": the other one is renewed", func() bool { return other.Remaining() > from+time.Second })
			commit(t, tx)
			ended := time.Now()
			waitUntil(t, kind+": all are renewed", func() bool { return leastLeft(held) > from+time.Second })
			t.Logf("%s: renewed after %v", kind, time.Since(ended))
			releaseMany(t, append(held, other))
			leaveNothing(t, db, []*lease.Manager{m, newManager(t, programs)}, []*sql.DB{pool, programs})
		}
	})
}

// TestWaitsLeaveSmallPools proves that a manager that waits for a row leaves the program
// its plain pool of few connections: its statements go through while a transaction of
// another pool guards the leases.
func TestWaitsLeaveSmallPools(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, size := range []int{1, 2, 3, 4} {
			pool, others := newPool(t, db, false), newPool(t, db, false)
			pool.SetMaxOpenConns(size)
			m := newManager(t, pool, lease.TTL(5*soon), lease.RenewEvery(50*time.Millisecond))
			held := make([]*lease.Lease, 5)
			for i := range held {
				held[i] = acquire(t, m, named())
			}
			tx := begin(t, others, sql.LevelDefault)
			for _, l := range held {
				guard(t, l, tx)
			}
			for begun := time.Now(); time.Since(begun) < 500*time.Millisecond; time.Sleep(10 * time.Millisecond) {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				if _, err := pool.ExecContext(ctx, "DO 1"); err != nil {
					t.Errorf("a pool of %d: a statement after %v: %v", size, time.Since(begun), err)
				}
				cancel()
			}
			from := leastLeft(held)
			commit(t, tx)
			waitUntil(t, "all are renewed", func() bool { return leastLeft(held) > from+500*time.Millisecond })
			releaseMany(t, held)
		}
	})
}

// TestLabelsOfAllSizes hands a lease on in a fair queue whose waiters have labels of all
// sizes: what InnoDB keeps for those who wait must not grow with the hand-overs, as it does
// where the queue row changes its size.
func TestLabelsOfAllSizes(t *testing.T) {
	t.Parallel()
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Shared(t, engine).Open(t)
		const waiters = 6
		key, granted := named(), make(chan *lease.Lease)
		held := acquire(t, newManager(t, newPool(t, db, true)), key)
		for i := range waiters {
			m := newManager(t, newPool(t, db, true))
			go func() {
				l, err := m.Acquire(t.Context(), key, lease.Fair(), lease.WithLabel(strings.Repeat("n", 1+40*i)))
				if err != nil {
					t.Error(err)
				}
				granted <- l
			}()
			// The first has the queue row, and looks again and again.
			if !testdb.Await(time.Minute, func() bool { waiting, _ := db.RowLocks(t); return len(waiting) == i }) {
				t.Fatalf("not %d wait", i)
			}
		}
		most := func() (n int) {
			waiting, _ := db.RowLocks(t)
			for _, id := range waiting {
				n = max(n, db.LockStructs(t, id))
			}
			return n
		}
		before := most()
		for i := range waiters {
			if n := most(); before == 0 || n > before {
				t.Errorf("who waits has %d structures of locks, and %d after %d holders", before, n, i)
			}
			release(t, held)
			if held = <-granted; held == nil {
				t.FailNow()
			}
		}
		release(t, held)
	})
}

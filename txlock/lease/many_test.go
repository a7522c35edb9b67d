package lease_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
			held, other := several(leases, func(int) *lease.Lease { return acquire(t, m, named()) }), acquire(t, m, named())
			waitUntil(t, "the connections of before are closed", func() bool { return sessions(t, db) <= 2 })
			waiting := make(chan struct{}, leases)
			tap.before("name: LockLease ", func(string) {
				select {
				case waiting <- struct{}{}:
				default:
				}
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

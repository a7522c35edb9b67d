package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
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

// TestWaitsLeaveSmallPools proves that a manager that waits for a row leaves the program
// its plain pool of few connections: its statements go through while a transaction of
// another pool guards the leases.
func TestWaitsLeaveSmallPools(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, size := range []int{1, 2, 3, 4} {
			pool, others := newPool(t, db, false), newPool(t, db, false)
			pool.SetMaxOpenConns(size)
			m := newManager(t, pool, lease.TTL(5*soon), lease.RenewEvery(50*time.Millisecond))
			held := several(5, func(int) *lease.Lease { return acquire(t, m, named()) })
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

// gathering is how many keys there are calls for at once.
const gathering = 48

// TestBatchAtRandom proves that many calls at once of several processes, some of which
// give up, while connections are killed, never make two holders nor a token that falls, and
// that all is free in the end.
func TestBatchAtRandom(t *testing.T) {
	lasting := testdb.Long(2*time.Second, 30*time.Second)
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		keys, holders, tokens := manyNamed(gathering), make([]atomic.Int32, gathering), make([]atomic.Uint64, gathering)
		makeRows(t, db, keys)
		var managers []*lease.Manager
		var pools []*sql.DB
		tap := new(wiretap)
		acquires, releases := tap.counter("name: AcquireMany "), tap.counter("name: ReleaseMany ")
		together := func() int64 { return acquires.Load() + releases.Load() }
		for range 2 {
			pools = append(pools, newPool(t, db, true, tap.install))
			pools[len(pools)-1].SetMaxOpenConns(25)
			managers = append(managers, newManager(t, pools[len(pools)-1], lease.TTL(time.Hour)))
		}
		var over atomic.Bool
		var kills, grants atomic.Int64
		var work sync.WaitGroup
		for i := range 60 {
			work.Go(func() {
				for !over.Load() {
					at := rand.IntN(len(keys))
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(2000))*time.Millisecond)
					l, err := managers[i%2].TryAcquire(ctx, keys[at])
					cancel()
					if err != nil {
						continue
					}
					equal(t, "holders", holders[at].Add(1), 1)
					if last := tokens[at].Swap(l.Token()); last >= l.Token() {
						t.Errorf("token %d after %d", l.Token(), last)
					}
					grants.Add(1)
					holders[at].Add(-1)
					if err := l.Release(context.Background()); err != nil && !errors.Is(err, lease.ErrGuarded) && !errors.Is(err, context.DeadlineExceeded) { // it goes on
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		work.Go(func() {
			for !over.Load() {
				time.Sleep(rand.N(200 * time.Millisecond))
				kills.Add(killOne(t, db))
			}
		})
		enough := func() bool { return kills.Load() >= 10 && grants.Load() >= 50 && together() >= 4 }
		lasts(lasting, enough)
		over.Store(true)
		work.Wait()
		said := fmt.Sprintf("%d kills, %d grants, %d statements for several", kills.Load(), grants.Load(), together())
		if t.Log(said); !enough() {
			t.Errorf("too few to prove anything: %s", said)
		}
		pools = append(pools, newPool(t, db, false)) // without connections that are being killed
		managers = append(managers, newManager(t, pools[2]))
		for _, key := range keys {
			free(t, managers[2], key)
		}
		leaveNothing(t, db, managers, pools)
	})
}

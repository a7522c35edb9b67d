package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// useUp takes what is left of a pool, until the end that it returns.
func useUp(t testing.TB, pool *sql.DB) (end func()) {
	t.Helper()
	var taken []*sql.Conn
	for most := pool.Stats().MaxOpenConnections; pool.Stats().InUse < most; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		conn, err := pool.Conn(ctx)
		cancel()
		switch {
		case err == nil:
			taken = append(taken, conn)
		case !errors.Is(err, context.DeadlineExceeded):
			t.Fatal(err)
		}
	}
	return func() {
		for _, conn := range taken {
			wants(t, "Close", conn.Close(), nil)
		}
	}
}

// TestUsedUpPoolLosesNothing proves that a pool whose connections are all in use, from right after the
// grant, loses no lease, whichever way it was acquired: it is renewed. The manager is not new when it
// acquires in a transaction: see AcquireTx.
func TestUsedUpPoolLosesNothing(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		takes := func(m *lease.Manager, pool *sql.DB) (*lease.Lease, error) {
			for {
				tx := begin(t, pool, sql.LevelDefault)
				l, err := m.AcquireTx(t.Context(), tx, named())
				if err == nil {
					return l, tx.Commit()
				}
				if err = errors.Join(err, tx.Rollback()); !txlock.Retryable(err) {
					return nil, err
				}
			}
		}
		for size, guarded := range map[int]bool{1: true, 2: false, 4: false} {
			pool := newPool(t, db, guarded)
			pool.SetMaxOpenConns(size)
			m := newManager(t, pool, lease.RenewEvery(500*time.Millisecond))
			key := named()
			release(t, share(t, newManager(t, newPool(t, db, false)), key)) // which marks the key
			release(t, acquire(t, m, named()))
			for how, take := range map[string]func() (*lease.Lease, error){
				"Acquire":       func() (*lease.Lease, error) { return m.Acquire(t.Context(), named()) },
				"AcquireShared": func() (*lease.Lease, error) { return m.AcquireShared(t.Context(), key) },
				"AcquireTx":     func() (*lease.Lease, error) { return takes(m, pool) },
			} {
				l := got(take())(t)
				end := useUp(t, pool)
				for range 2 {
					waitUntil(t, how+": it is renewed", renewedFromNow(l))
				}
				end()
				release(t, l)
			}
		}
	})
}

// TestRefusedCallLeavesTheConnection proves that a call which is refused doesn't give the connection
// for renewals back that an AcquireTx has just reserved.
func TestRefusedCallLeavesTheConnection(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		tap := new(wiretap)
		pool := newPool(t, db, false, tap.install(t))
		pool.SetMaxOpenConns(3)
		m := newManager(t, pool)
		theirs := acquire(t, newManager(t, newPool(t, db, false)), named())
		release(t, acquire(t, m, named()))
		tx := begin(t, pool, sql.LevelDefault)
		var looked atomic.Bool
		tap.before("name: LookLease ", func(string) {
			if !looked.CompareAndSwap(false, true) {
				return
			}
			// The transaction has a connection, this look another, and the manager the third.
			wants(t, "TryAcquire", testdb.Err(m.TryAcquire(t.Context(), theirs.Key())), txlock.ErrBusy)
			if conn, err := pool.Conn(limited(t, 100*time.Millisecond)); err == nil {
				t.Error("the connection for renewals was given back")
				_ = conn.Close() // it has failed already
			}
		})
		l := acquireTx(t, m, tx, named())
		testdb.ErrorIf(t, !looked.Load(), "AcquireTx has not looked")
		commit(t, tx)
		release(t, l, theirs)
	})
}

// TestSmallPoolsDoNotHang proves that the connection that a manager keeps of a plain pool
// is there for what the manager sends: a lease can be acquired, re-entered, listed and
// released within a transaction that has the other.
func TestSmallPoolsDoNotHang(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(2)
		m := newManager(t, pool)
		before := acquire(t, m, named())
		for range 5 {
			tx := begin(t, pool, sql.LevelDefault)
			quickly(t, "a lease in a transaction", func() {
				ctx := limited(t, soon)
				l := got(m.Acquire(ctx, named()))(t)
				wants(t, "List", testdb.Err(m.List(ctx)), nil)
				wants(t, "Renew", l.Renew(ctx), nil)
				guard(t, l, tx)
				wants(t, "Release", l.Release(ctx), lease.ErrGuarded)
			})
			rollback(t, tx)
			if t.Failed() {
				return
			}
		}
		release(t, before)
	})
}

// TestConnectionIsGivenBack proves that a manager keeps a connection while it holds
// leases, of a guarded pool one more and of a plain one of the pool's, and none when it
// holds nothing or only waits; and that the server has no session of it after Close.
func TestConnectionIsGivenBack(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		for kind, guarded := range map[string]bool{"guarded": true, "plain": false} {
			pool, others := newPool(t, db, guarded), newPool(t, db, guarded)
			pool.SetMaxOpenConns(4)
			var observer recorder
			m := newManager(t, pool, lease.RenewEvery(50*time.Millisecond), lease.Observe(observer.observe))
			other := newManager(t, others)
			theirs := acquire(t, other, named())
			waiting, stop := context.WithCancel(t.Context())
			l := acquire(t, m, named())
			waited := later(func() error { return testdb.Err(m.Acquire(waiting, theirs.Key())) })
			observer.waitFor(t, "renewed")
			own := 0
			if !guarded {
				own = 1
			}
			all := func() int64 { return int64(pool.Stats().OpenConnections + others.Stats().OpenConnections) }
			waitUntil(t, kind+": the manager keeps its connection, and no more", func() bool { return pool.Stats().InUse == own })
			waitUntil(t, kind+": it is one more of a guarded pool", func() bool { return sessions(t, db)-all() >= int64(1-own) })
			release(t, l)
			waitUntil(t, kind+": it is released", func() bool { return pool.Stats().InUse == 0 })
			stop()
			wants(t, "Acquire that waits", within(t, "the end of the wait", waited), context.Canceled)
			release(t, theirs)
			for _, m := range []*lease.Manager{m, other} {
				wants(t, "Close", m.Close(t.Context()), nil)
			}
			wants(t, "Join", errors.Join(pool.Close(), others.Close()), nil)
			waitUntil(t, kind+": no session is left", func() bool { return sessions(t, db) == 0 })
		}
	})
}

// TestRenewalsStayOnTheServer proves that a pool whose connector leads to another server,
// with tables of its own, loses no lease: the manager notices and renews on a connection
// of the program's.
func TestRenewalsStayOnTheServer(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		const ttl, every = 30 * time.Second, 200 * time.Millisecond
		there := testdb.Dedicated(t, db.Engine())
		twin := db.At(t, there)
		account := db.Config()
		setup := testdb.Got(sql.Open("mysql", there.Config().FormatDSN()))(t)
		defer setup.Close()
		for _, statement := range []string{
			"CREATE DATABASE `" + db.Name() + "`",
			"CREATE USER '" + account.User + "'@'%' IDENTIFIED BY '" + account.Passwd + "'",
			"GRANT ALL ON `" + db.Name() + "`.* TO '" + account.User + "'@'%'",
		} {
			must(t, testdb.Err(setup.ExecContext(t.Context(), statement)))
		}
		must(t, schema.Install(t.Context(), twin.Admin()))
		var elsewhere atomic.Bool
		var led atomic.Int64
		pool := newPool(t, db, true, func(c *mysql.Config) {
			c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				if elsewhere.Load() {
					led.Add(1)
					address = there.Config().Addr
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}
		})
		pool.SetMaxOpenConns(1)
		m := newManager(t, pool, lease.TTL(ttl), lease.RenewEvery(every))
		release(t, acquire(t, m, named()))
		elsewhere.Store(true)
		l := acquire(t, m, named())
		waitUntil(t, "the manager was led elsewhere", func() bool { return led.Load() >= 3 })
		begun, left := time.Now(), l.Remaining()
		waitUntil(t, "it is renewed", func() bool { return l.Remaining()+time.Since(begun) > left+every/2 || !l.Valid() })
		must(t, l.Err())
		release(t, l)
	})
}

// sessions counts those of the application's user on the server.
func sessions(t testing.TB, db *testdb.DB) int64 {
	t.Helper()
	return db.Number(t, "SELECT COUNT(*) FROM "+db.Engine().Processes()+" WHERE user = ?", db.Config().User)
}

// leaveNothing closes the managers and their pools, after which the server has no
// session of theirs.
func leaveNothing(t *testing.T, db *testdb.DB, managers []*lease.Manager, pools []*sql.DB) {
	t.Helper()
	for i, m := range managers {
		wants(t, "Close", m.Close(t.Context()), nil)
		testdb.Equal(t, "connections in use at the end", testdb.InUse(pools[i]), 0)
		_ = pools[i].Close() // which complains of connections that were broken
	}
	testdb.ErrorIf(t, !testdb.Await(time.Minute, func() bool { return sessions(t, db) == 0 }), "%d sessions are left", sessions(t, db))
}

// TestServerRestart proves that a killed server that comes back costs a long lease
// nothing: it is held on and renewed. One whose time was over meanwhile is lost, and
// its next token is higher. No session is left in the end.
func TestServerRestart(t *testing.T) {
	onDedicated(t, func(t *testing.T, server *testdb.Server) {
		db := server.OpenLeases(t)
		pools := []*sql.DB{newPool(t, db, true), newPool(t, db, false)}
		m := newManager(t, pools[0], lease.TTL(time.Hour), lease.RenewEvery(100*time.Millisecond))
		other := newManager(t, pools[1])
		long, short := acquire(t, m, named()), acquire(t, m, named(), lease.TTL(2*time.Second))
		must(t, server.Kill())
		<-short.Done()
		wants(t, "Err of the short lease", short.Err(), txlock.ErrLost)
		wants(t, "the long lease while the server is down", long.Err(), nil)
		must(t, server.Restart(t.Context()))
		renewed(t, db, long)
		wants(t, "TryAcquire of the long lease", testdb.Err(other.TryAcquire(t.Context(), long.Key())), txlock.ErrBusy)
		for _, l := range []*lease.Lease{long, short} {
			if l == long {
				release(t, l)
			} else {
				wants(t, "Release of the short lease", l.Release(t.Context()), txlock.ErrNotHeld)
			}
			next := acquire(t, other, l.Key())
			higher(t, next, l)
			release(t, next)
		}
		leaveNothing(t, db, []*lease.Manager{m, other}, pools)
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
			pool, programs := newPool(t, db, guarded, tap.install(t)), newPool(t, db, guarded)
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
			testdb.ErrorIf(t, seen > before+most, "%s: %d sessions with %d guarded leases, %d before", kind, seen, leases, before)
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
				testdb.ErrorIf(t, err != nil, "%v", err)
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
			n := most()
			testdb.ErrorIf(t, before == 0 || n > before, "who waits has %d structures of locks, and %d after %d holders", before, n, i)
			release(t, held)
			if held = <-granted; held == nil {
				t.FailNow()
			}
		}
		release(t, held)
	})
}

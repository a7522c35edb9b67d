package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
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
			wantsNone(t, "Close", conn.Close())
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
			for how, take := range map[string]func() (*lease.Lease, error){
				"Acquire":       func() (*lease.Lease, error) { return m.Acquire(t.Context(), named()) },
				"AcquireShared": func() (*lease.Lease, error) { return m.AcquireShared(t.Context(), key) },
				"AcquireTx":     func() (*lease.Lease, error) { return takes(m, pool) },
			} {
				l := mustLease(t)(take())
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
		pool := newPool(t, db, false, tap.install)
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
			wants(t, "TryAcquire", second(m.TryAcquire(t.Context(), theirs.Key())), txlock.ErrBusy)
			if conn, err := pool.Conn(limited(t, 100*time.Millisecond)); err == nil {
				t.Error("the connection for renewals was given back")
				_ = conn.Close() // it has failed already
			}
		})
		l := acquireTx(t, m, tx, named())
		if !looked.Load() {
			t.Error("AcquireTx has not looked")
		}
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
				l, err := m.Acquire(ctx, named())
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				wantsNone(t, "List", second(m.List(ctx)))
				wantsNone(t, "Renew", l.Renew(ctx))
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
			waited := make(chan error, 1)
			l := acquire(t, m, named())
			go func() {
				_, err := m.Acquire(waiting, theirs.Key())
				waited <- err
			}()
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
				wantsNone(t, "Close", m.Close(t.Context()))
			}
			wantsNone(t, "Join", errors.Join(pool.Close(), others.Close()))
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
		setup, err := sql.Open("mysql", there.Config().FormatDSN())
		must(t, err)
		defer setup.Close()
		for _, statement := range []string{
			"CREATE DATABASE `" + db.Name() + "`",
			"CREATE USER '" + account.User + "'@'%' IDENTIFIED BY '" + account.Passwd + "'",
			"GRANT ALL ON `" + db.Name() + "`.* TO '" + account.User + "'@'%'",
		} {
			must(t, second(setup.ExecContext(t.Context(), statement)))
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

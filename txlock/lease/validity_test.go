package lease_test

import (
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// outlived returns for how much longer the handle counts than its row.
func outlived(t testing.TB, db *testdb.DB, l *lease.Lease) time.Duration {
	t.Helper()
	begun := time.Now()
	left := l.Remaining()
	row := number(t, db, "SELECT CAST(MAX(expires_us) - UNIX_TIMESTAMP() * 1000000 - MICROSECOND(NOW(6)) AS SIGNED) FROM lockstep_leases WHERE name = ? AND CHAR_LENGTH(holders) > 0", l.Key().String())
	return left - time.Duration(row)*time.Microsecond - time.Since(begun)
}

// TestHandleEndsBeforeItsRow proves that a handle counts from before its request was
// sent, not from the reply, and for at most 99 % of its TTL, so that the server
// lets nobody else in before it is over, however slow the network: after the grant, after
// Renew, and after the manager's renewals.
func TestHandleEndsBeforeItsRow(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run, wait := sideBySide(t)
		defer wait()
		for kind, guarded := range map[string]bool{"guarded": true, "plain": false} {
			run(kind, func(t *testing.T) {
				const ttl, delay = 20 * time.Second, 400 * time.Millisecond
				var network atomic.Int64
				var observer recorder
				m := newManager(t, newPool(t, db, guarded, detour(func(sent bool) {
					if !sent {
						time.Sleep(time.Duration(network.Load()))
					}
				})), lease.TTL(ttl), lease.RenewEvery(time.Second), lease.Observe(observer.observe))
				release(t, acquire(t, m, named())) // the clock is read, the statements are prepared
				exclusive, shared, permits := named(), named(), named()
				makeRows(t, db, []txlock.Key{exclusive})
				makeEntryRows(t, db, []txlock.Key{shared}, false)
				makeEntryRows(t, db, []txlock.Key{permits}, true)
				s := semaphore(t, m, permits, 1)
				network.Store(int64(delay))
				var held []*lease.Lease
				check := func(when string, l *lease.Lease) {
					t.Helper()
					if left := l.Remaining(); left > ttl*99/100 {
						t.Errorf("%s: %v are left of %v: nothing is deducted for clocks that run apart", when, left, ttl)
					}
					if d := outlived(t, db, l); d > 0 {
						t.Errorf("%s: the handle outlives its row by %v", when, d)
					}
				}
				for how, take := range map[string]func() (*lease.Lease, error){
					"Acquire":       func() (*lease.Lease, error) { return m.Acquire(t.Context(), exclusive) },
					"AcquireShared": func() (*lease.Lease, error) { return m.AcquireShared(t.Context(), shared) },
					"a permit":      func() (*lease.Lease, error) { return s.Acquire(t.Context()) },
				} {
					l, err := take()
					if err != nil {
						t.Fatalf("%s: %v", how, err)
					}
					check(how, l)
					held = append(held, l)
				}
				observer.waitFor(t, "renewed")
				for _, l := range held {
					check("renewed in the background", l)
					must(t, l.Renew(t.Context()))
					check("Renew", l)
				}
				network.Store(0)
				releaseMany(t, held)
			})
		}
	})
}

// TestCleanLooksAgainUnderTheLock proves that a lease that is acquired between the look
// for idle rows and the lock of its row keeps its row, and is nobody else's.
func TestCleanLooksAgainUnderTheLock(t *testing.T) {
	onOwnDatabase(t, func(t *testing.T, db *testdb.DB) {
		tap := new(wiretap)
		cleaner := newManager(t, newPool(t, db, true, tap.install), lease.PurgeEvery(0, time.Second))
		m, other := newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, true))
		keys := []txlock.Key{named(), named(), named()}
		makeRows(t, db, keys)
		var once sync.Once
		held := make([]*lease.Lease, len(keys))
		tap.before("name: IdleLease ", func(string) { once.Do(func() { acquireMany(t, m, keys, held) }) })
		must(t, second(cleaner.Purge(t.Context())))
		for i, l := range held {
			if l == nil {
				t.Fatal("it has not looked again: this test can't tell")
			}
			wants(t, "TryAcquire of a lease that is held", second(other.TryAcquire(t.Context(), keys[i])), txlock.ErrBusy)
			wantsNone(t, "Renew", l.Renew(t.Context()))
		}
		releaseMany(t, held)
	})
}

// TestAcquireTxBesideReaderOnPoolOfOne proves that AcquireTx of a key that was leased shared
// finds a reader where its transaction has the pool's only connection, and is refused where the
// manager has none of its own to look for it.
func TestAcquireTxBesideReaderOnPoolOfOne(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			t.Run(level.String(), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, db, guarded)
				pool.SetMaxOpenConns(1)
				m, other := newManager(t, pool), newManager(t, newPool(t, db, guarded))
				release(t, acquire(t, m, named())) // so it knows a guarded pool
				key := named()
				reader := share(t, other, key)
				tx := begin(t, pool, level)
				_, err := m.AcquireTx(t.Context(), tx, key)
				if !guarded {
					wants(t, "AcquireTx beside a reader", err, lease.ErrNoConnection)
					rollback(t, tx)
					release(t, reader)
					return
				}
				wants(t, "AcquireTx beside a reader", err, txlock.ErrBusy)
				rollback(t, tx)
				wantsNone(t, "Renew of the reader", reader.Renew(t.Context()))
				release(t, reader)
				tx = begin(t, pool, level)
				l := acquireTx(t, m, tx, key)
				commit(t, tx)
				release(t, l)
			})
		}
	})
}

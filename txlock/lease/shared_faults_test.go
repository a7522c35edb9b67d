package lease_test

// Faults that once let two in, kept readers out or lost them.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestReadersOfNoServer proves that who reaches no server is not told to do without readers,
// which is for a cluster with several primaries.
func TestReadersOfNoServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	pool, err := sql.Open("mysql", fmt.Sprintf("somebody@tcp(%s)/", listener.Addr()))
	must(t, err)
	defer func() { _ = pool.Close() }()
	m, err := lease.NewManager(pool)
	must(t, err)
	defer func() { _ = m.Close(t.Context()) }()
	for call, take := range map[string]func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){
		"AcquireShared": m.AcquireShared, "TryAcquireShared": m.TryAcquireShared,
	} {
		_, err := take(t.Context(), txlock.Named("reports"))
		if err == nil || errors.Is(err, schema.ErrMultiPrimary) || strings.Contains(err.Error(), "exclusively") {
			t.Errorf("%s says %v", call, err)
		}
	}
}

// TestReadersOfOneOwnerAtOnce proves that goroutines of one owner that become readers
// at the same time don't lose each other's lease.
func TestReadersOfOneOwnerAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m := newManager(t, newPool(t, db, true))
		lost, granted := 0, 0
		for range 20 {
			key := named()
			release(t, share(t, m, key))
			ctx := lease.WithOwner(t.Context(), "owner of "+key.String())
			leases := make([]*lease.Lease, 4)
			var calls sync.WaitGroup
			for i := range leases {
				calls.Go(func() { leases[i], _ = m.TryAcquireShared(ctx, key) })
			}
			calls.Wait()
			for _, l := range leases {
				if l == nil {
					continue
				}
				granted++
				if l.Err() != nil {
					lost++
				}
			}
			for _, l := range leases {
				if l != nil {
					_ = l.Release(t.Context())
				}
			}
		}
		if lost != 0 {
			t.Errorf("%d of %d readers are lost", lost, granted)
		}
	})
}

// TestDowngradeUnderTries proves that Downgrade of a lease that is held succeeds,
// although others try to take it.
func TestDowngradeUnderTries(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m, other := newManager(t, newPool(t, db, true)), newManager(t, newPool(t, db, true))
		failed := 0
		for i := range 60 {
			key := named()
			if i%2 == 0 {
				release(t, share(t, m, key))
			}
			w := acquire(t, m, key)
			ctx, cancel := context.WithCancel(t.Context())
			var tries sync.WaitGroup
			for range 3 {
				tries.Go(func() {
					for ctx.Err() == nil {
						if l, err := other.TryAcquire(ctx, key); err == nil {
							_ = l.Release(context.Background())
						}
					}
				})
			}
			time.Sleep(2 * time.Millisecond)
			if r, err := w.Downgrade(t.Context()); err != nil {
				failed++
				_ = w.Release(t.Context())
			} else {
				_ = r.Release(t.Context())
			}
			cancel()
			tries.Wait()
		}
		if failed > 0 {
			t.Errorf("%d of 60 failed", failed)
		}
	})
}

// TestRefusedAcquireTxLeavesReadersAlone proves that readers are renewed and released
// while a transaction is open whose AcquireTx was refused because of them.
func TestRefusedAcquireTxLeavesReadersAlone(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, other := newManager(t, newPool(t, db, true), oftenRenewed...), newManager(t, pool)
		key := named()
		r := share(t, m, key)
		tx := begin(t, pool, sql.LevelDefault)
		_, err := other.AcquireTx(t.Context(), tx, key)
		wants(t, "AcquireTx", err, txlock.ErrBusy)
		if l, err := m.TryAcquireShared(t.Context(), key); err != nil {
			t.Errorf("another reader: %v", err)
		} else {
			_ = l.Release(t.Context())
		}
		renewed(t, db, r)
		wantsNone(t, "the reader", r.Err())
		wantsNone(t, "Release", r.Release(t.Context()))
		_ = tx.Rollback()
	})
}

// TestAcquireTxAfterReadersCommit proves that a transaction that has read before a
// reader committed under its guard is refused the lease.
func TestAcquireTxAfterReadersCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, other := newManager(t, pool), newManager(t, newPool(t, db, true))
		key := named()
		release(t, share(t, m, key))
		table := db.CreateTable(t, "stale", "id INT PRIMARY KEY, n INT")
		exec(t, db, "INSERT INTO "+table+" VALUES (1, 0)")
		old := begin(t, pool, sql.LevelDefault)
		var n int
		must(t, old.QueryRow("SELECT n FROM "+table).Scan(&n))
		r := share(t, other, key)
		tx := begin(t, pool, sql.LevelDefault)
		if _, err := tx.Exec("UPDATE " + table + " SET n = 1"); err != nil {
			t.Fatal(err)
		}
		must(t, r.Guard(t.Context(), tx))
		must(t, tx.Commit())
		release(t, r)
		l, err := m.AcquireTx(t.Context(), old, key)
		wants(t, "AcquireTx", err, txlock.ErrStaleSnapshot)
		_ = old.Rollback()
		if l != nil {
			_ = l.Release(t.Context())
		}
	})
}

// TestFreePermitsAreTakenAtOnce proves that goroutines of one manager don't wait for
// each other where all of them can be granted.
func TestFreePermitsAreTakenAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		pool.SetMaxIdleConns(40)
		m := newManager(t, pool)
		permits, key := named(), named()
		s := semaphore(t, m, permits, 32)
		release(t, permit(t, s))
		release(t, share(t, m, key))
		ctx := limited(t, 3*time.Minute)
		for name, take := range map[string]func() (*lease.Lease, error){
			"permits": func() (*lease.Lease, error) { return s.Acquire(ctx) },
			"readers": func() (*lease.Lease, error) { return m.AcquireShared(ctx, key) },
		} {
			for range 2 {
				start := time.Now()
				var calls sync.WaitGroup
				held := make([]*lease.Lease, 32)
				for i := range held {
					calls.Go(func() {
						var err error
						if held[i], err = take(); err != nil {
							t.Errorf("one of 32 free %s: %v", name, err)
						}
					})
				}
				calls.Wait()
				if t.Failed() {
					tellRows(t, db, permits, key)
					return
				}
				took := time.Since(start)
				start = time.Now()
				for _, l := range held {
					release(t, l)
				}
				t.Logf("32 %s took %v; released one by one in %v", name, took, time.Since(start))
				if took > max(3*time.Second, 50*time.Since(start)) { // 32 pauses of a Poll are 8 seconds
					t.Errorf("32 free %s took %v", name, took)
				}
			}
		}
	})
}

// tellRows logs the rows of two keys, and the transactions of the server.
func tellRows(t *testing.T, db *testdb.DB, a, b txlock.Key) {
	t.Helper()
	for _, query := range []string{
		"SELECT CONCAT_WS(' ', name, slot, owner, holders, token, ttl_us, expires_us - UNIX_TIMESTAMP(NOW(6)) * 1000000, used_for, conn_id) FROM lockstep_leases WHERE name IN ('" + a.String() + "', '" + b.String() + "') ORDER BY name, slot",
		"SELECT CONCAT_WS(' ', trx_id, trx_state, trx_started, trx_mysql_thread_id, COALESCE(trx_query, '-'), trx_rows_locked) FROM information_schema.innodb_trx",
		"SELECT CONCAT_WS(' ', id, db, command, time, COALESCE(info, '-')) FROM information_schema.processlist",
	} {
		rows, err := db.Admin().QueryContext(context.WithoutCancel(t.Context()), query)
		if err != nil {
			t.Log(err)
			continue
		}
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Log(err)
			}
			t.Log(text)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Log(err)
		}
	}
}

// TestPermitsBesideAcquireTx proves that a transaction whose AcquireTx of a semaphore's
// key was refused keeps nobody from a permit.
func TestPermitsBesideAcquireTx(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m := newManager(t, pool)
		key := named()
		s := semaphore(t, m, key, 2)
		release(t, permit(t, s))
		tx := begin(t, pool, sql.LevelDefault)
		wants(t, "AcquireTx of a semaphore", second(m.AcquireTx(t.Context(), tx, key)), txlock.ErrInvalidKey)
		ctx := limited(t, 20*time.Second)
		start := time.Now()
		l, err := s.TryAcquire(ctx)
		t.Logf("TryAcquire: %v after %v", err, time.Since(start))
		if err != nil {
			t.Errorf("TryAcquire: %v", err)
		} else {
			release(t, l)
		}
		_ = tx.Rollback()
	})
}

var _ *sql.DB

// TestPermitWithoutARow proves that who waits for a permit takes one whose row is gone: Clean
// removes rows of permits that nobody has.
func TestPermitWithoutARow(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const permits = 3
		m, key := newManager(t, newPool(t, db, true)), named()
		s := semaphore(t, m, key, permits)
		var held []*lease.Lease
		for range permits {
			held = append(held, permit(t, s))
		}
		waiting, err := newManager(t, newPool(t, db, true)).Semaphore(key, permits)
		must(t, err)
		got := make(chan error, 1)
		go func() {
			l, err := waiting.Acquire(t.Context())
			if err == nil {
				err = l.Release(t.Context())
			}
			got <- err
		}()
		time.Sleep(100 * time.Millisecond)                                                      // who has not looked yet proves less, and is granted, too
		exec(t, db, "DELETE FROM lockstep_leases WHERE name = '"+key.String()+"' AND slot = 3") // as if released elsewhere, and cleaned
		wants(t, "Acquire", within(t, "the grant", got), nil)
		for _, l := range held[:permits-1] {
			release(t, l)
		}
		_ = held[permits-1].Release(t.Context()) // which is lost
	})
}

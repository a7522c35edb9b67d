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

// TestAcquireTxAfterReadersCommit proves that a transaction that has read before a
// reader committed under its guard is refused the lease.
func TestAcquireTxAfterReadersCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, other := newManager(t, pool), newManager(t, newPool(t, db, true))
		key, table := named(), counter(t, db)
		release(t, share(t, m, key))
		old, change := begin(t, pool, sql.LevelDefault), begin(t, pool, sql.LevelDefault)
		reads(t, old, table)
		r := share(t, other, key)
		add(t, change, table)
		guard(t, r, change)
		commit(t, change)
		release(t, r)
		wants(t, "AcquireTx", second(m.AcquireTx(t.Context(), old, key)), txlock.ErrStaleSnapshot)
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

// TestPermitsBesideAcquireTx proves that a transaction whose AcquireTx of a semaphore's
// key was refused keeps nobody from a permit.
func TestPermitsBesideAcquireTx(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db, true)
		m, key := newManager(t, pool), named()
		s := semaphore(t, m, key, 2)
		release(t, permit(t, s))
		tx := begin(t, pool, sql.LevelDefault)
		wants(t, "AcquireTx of a semaphore", second(m.AcquireTx(t.Context(), tx, key)), txlock.ErrInvalidKey)
		l, err := s.TryAcquire(limited(t, 20*time.Second))
		must(t, err)
		release(t, l)
	})
}

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
		waiting := semaphore(t, newManager(t, newPool(t, db, true)), key, permits)
		got := later(func() error { return acquired(waiting.Acquire(t.Context())) })
		time.Sleep(100 * time.Millisecond)                                                      // who has not looked yet proves less, and is granted, too
		exec(t, db, "DELETE FROM lockstep_leases WHERE name = '"+key.String()+"' AND slot = 3") // as if released elsewhere, and cleaned
		wants(t, "Acquire", within(t, "the grant", got), nil)
		for _, l := range held[:permits-1] {
			release(t, l)
		}
		_ = held[permits-1].Release(t.Context()) // which is lost
	})
}

package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Readers read together, and keep a writer out until the last has gone.
func TestSharedExcludesWriters(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		one, other := newManager(t, pool), newManager(t, pool)
		key := named()
		first := share(t, one, key)
		next, err := other.TryAcquireShared(t.Context(), key)
		must(t, err)
		third, err := one.TryAcquireShared(t.Context(), key)
		must(t, err)
		if !first.Shared() || first.Token() == third.Token() && first.Owner() == third.Owner() {
			t.Errorf("readers %v and %v", first, third)
		}
		_, err = other.TryAcquire(t.Context(), key)
		if wants(t, "TryAcquire beside readers", err, txlock.ErrBusy); t.Failed() {
			return // nobody would release that
		}
		_, err = one.Acquire(t.Context(), key, lease.WaitAtMost(50*time.Millisecond))
		wants(t, "Acquire beside readers", err, txlock.ErrWaitTimeout)
		waiting := fairAcquire(t, other, key)
		release(t, first)
		release(t, next)
		wantsNone(t, "Renew", third.Renew(t.Context()))
		release(t, third)
		writer := waiting.lease(t)
		wants(t, "TryAcquireShared beside a writer", second(one.TryAcquireShared(t.Context(), key)), txlock.ErrBusy)
		reader, err := writer.Downgrade(t.Context())
		must(t, err)
		wants(t, "Err of the writer", writer.Err(), txlock.ErrNotHeld)
		wants(t, "TryAcquire after the downgrade", second(one.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		beside, err := one.TryAcquireShared(t.Context(), key)
		must(t, err)
		working, cancel := beside.Context(t.Context())
		defer cancel()
		wants(t, "upgrade", second(one.TryAcquire(working, key)), txlock.ErrUpgrade)
		again, err := one.TryAcquireShared(working, key)
		if err != nil || again.Token() != beside.Token() {
			t.Errorf("second AcquireShared of an owner: %v, %v", again, err)
		}
		release(t, again)
		release(t, beside)
		release(t, reader)
		release(t, acquire(t, one, key))
	})
}

// A semaphore of n has n holders at most, and no more than that number.
func TestSemaphore(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		s := semaphore(t, m, key, 3)
		same := semaphore(t, other, key, 3)
		var permits []*lease.Lease
		for _, s := range []*lease.Semaphore{s, same, s} {
			l, err := s.TryAcquire(t.Context())
			must(t, err)
			permits = append(permits, l)
		}
		wants(t, "a fourth", second(same.TryAcquire(t.Context())), txlock.ErrBusy)
		wrong := semaphore(t, other, key, 4)
		_, err := wrong.TryAcquire(t.Context())
		wants(t, "another number", err, txlock.ErrInvalidOption)
		t.Log(err)
		wants(t, "Acquire of a semaphore", second(m.TryAcquire(t.Context(), key)), txlock.ErrInvalidKey)
		wants(t, "AcquireShared of a semaphore", second(m.TryAcquireShared(t.Context(), key)), txlock.ErrInvalidKey)
		for _, l := range permits {
			wantsNone(t, "Renew", l.Renew(t.Context()))
		}
		bigger, err := s.Resize(t.Context(), 4)
		must(t, err)
		wants(t, "the old number", second(same.TryAcquire(t.Context())), txlock.ErrInvalidOption)
		l, err := wrong.TryAcquire(t.Context())
		must(t, err)
		permits = append(permits, l)
		_, err = bigger.TryAcquire(t.Context())
		wants(t, "a fifth", err, txlock.ErrBusy)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var smaller *lease.Semaphore
		resized := make(chan struct{})
		go func() {
			defer close(resized)
			smaller, err = bigger.Resize(ctx, 1)
		}()
		waitUntil(t, "the number is 1", func() bool {
			return number(t, db, "SELECT used_for FROM lockstep_leases WHERE name = ? AND slot = 0", key.String()) == -1
		})
		testdb.InUse(pool) // until Resize has read the answer too
		cancel()
		<-resized
		wants(t, "Resize under what is held", err, context.Canceled)
		if smaller == nil {
			t.Fatal("no semaphore of the new number")
		}
		for _, l := range permits {
			release(t, l)
		}
		one, err := smaller.TryAcquire(t.Context())
		must(t, err)
		wants(t, "a second of one", second(smaller.TryAcquire(t.Context())), txlock.ErrBusy)
		release(t, one)
	})
}

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

// TestTryBesideGuardOfDeadReader proves that TryAcquire doesn't wait for the end of a
// transaction that a reader guards whose time is over.
func TestTryBesideGuardOfDeadReader(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		reader := share(t, m, key, lease.TTL(unhurried(t, m, 2*time.Second)))
		tx := begin(t, pool, sql.LevelDefault)
		must(t, reader.Guard(t.Context(), tx))
		const over = "SELECT expires_us <= UNIX_TIMESTAMP() * 1000000 FROM lockstep_leases WHERE name = ? AND slot > 0"
		waitUntil(t, "its time is over", func() bool { return number(t, db, over, key.String()) == 1 })
		ctx := limited(t, 30*time.Second)
		wants(t, "TryAcquire", second(other.TryAcquire(ctx, key, lease.TTL(10*time.Minute))), txlock.ErrBusy)
		wantsNone(t, "Rollback", tx.Rollback())
		release(t, acquire(t, other, key))
		wants(t, "Release of the reader", reader.Release(t.Context()), txlock.ErrNotHeld)
	})
}

// readAndWrite acquires a lease for an owner twice and downgrades one of the two.
func readAndWrite(ctx context.Context, t *testing.T, m *lease.Manager, key txlock.Key) (reader, writer *lease.Lease) {
	t.Helper()
	first, writer := acquireIn(ctx, t, m, key), acquireIn(ctx, t, m, key)
	reader, err := first.Downgrade(ctx)
	must(t, err)
	return reader, writer
}

// TestDowngradeGivenUp proves that Downgrade ends with its context where a transaction
// guards what the owner reads by already, and that all is held as before.
func TestDowngradeGivenUp(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool, lease.TTL(time.Hour))
		key, ctx := named(), lease.WithOwner(t.Context(), "ann")
		reader, writer := readAndWrite(ctx, t, m, key)
		tx := begin(t, pool, sql.LevelDefault)
		must(t, reader.Guard(t.Context(), tx))
		limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		wants(t, "Downgrade", second(writer.Downgrade(limited)), context.DeadlineExceeded)
		wantsNone(t, "the writer, the reader, and the transaction that it guards", errors.Join(writer.Err(), reader.Err(), tx.Commit()))
		lasts(0, func() bool { // what it was granted is released in the background
			_, readers := heldRows(t, db, key)
			return readers == 1
		})
		if entry, readers := heldRows(t, db, key); entry != 1 || readers != 1 {
			t.Errorf("entry row %d, readers %d after it", entry, readers)
		}
		release(t, reader)
		release(t, writer)
	})
}

// holders is how many goroutines want the lease in these measurements, over so many
// managers.
const holders, sharers = 32, 4

// TestReadersReadTogether proves that 32 readers of one key hold it all at once, over few
// managers and over one for each: nobody ends before all of them have begun.
func TestReadersReadTogether(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, n := range []int{sharers, holders} {
			key := named()
			var reading atomic.Int64
			all := make(chan struct{})
			var work sync.WaitGroup
			for range n {
				m := newManager(t, newPool(t, db, true))
				for range holders / n {
					work.Go(func() {
						err := m.DoShared(t.Context(), key, func(ctx context.Context, _ *lease.Lease) error {
							if reading.Add(1) == holders {
								close(all)
							}
							select {
							case <-all:
								return nil
							case <-ctx.Done():
							case <-time.After(time.Minute):
							}
							return fmt.Errorf("%d of %d read at once", reading.Load(), holders)
						})
						if err != nil {
							t.Errorf("%d managers: DoShared: %v", n, err)
						}
					})
				}
			}
			work.Wait()
		}
	})
}

// TestDowngradeOfLost proves that a writer who has lost its lease without knowing has
// nothing after Downgrade: another may have come between.
func TestDowngradeOfLost(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool, lease.TTL(time.Hour))
		key := named()
		writer := acquire(t, m, key)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
		reader, err := writer.Downgrade(t.Context())
		wants(t, "Downgrade", err, txlock.ErrNotHeld)
		if reader != nil {
			t.Error("there is a reader beside the error")
		}
		if entry, readers := heldRows(t, db, key); entry+readers != 0 {
			t.Errorf("entry row %d, readers %d after it", entry, readers)
		}
	})
}

// TestDowngradeAfterLoss proves that an owner whose reader's row is gone reads again
// after Downgrade, at once, and is told that the first is lost.
func TestDowngradeAfterLoss(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool, lease.TTL(time.Hour))
		key, ctx := named(), lease.WithOwner(t.Context(), "ann")
		lost, writer := readAndWrite(ctx, t, m, key)
		exec(t, db, "DELETE FROM lockstep_leases WHERE name = ? AND slot > 0", key.String())
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		reader, err := writer.Downgrade(ctx)
		must(t, err)
		wants(t, "the reader whose row is gone", lost.Err(), txlock.ErrLost)
		wants(t, "its Release", lost.Release(ctx), txlock.ErrNotHeld)
		if entry, readers := heldRows(t, db, key); entry != 0 || readers != 1 {
			t.Errorf("entry row %d, readers %d after it", entry, readers)
		}
		release(t, reader)
	})
}

// TestPermitGrantedAgain proves that the handle of a permit that its owner has lost and
// was granted again says so.
func TestPermitGrantedAgain(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		s := semaphore(t, newManager(t, pool, lease.TTL(time.Hour)), named(), 1)
		ctx := lease.WithOwner(t.Context(), "ann")
		before, err := s.Acquire(ctx)
		must(t, err)
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ? AND slot = 1", before.Key().String())
		again, err := s.Acquire(ctx)
		must(t, err)
		wants(t, "Err of the one before", before.Err(), txlock.ErrLost)
		wantsNone(t, "Err of the new one", again.Err())
		wants(t, "Release of the one before", before.Release(t.Context()), txlock.ErrNotHeld)
		release(t, again)
	})
}

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

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
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

// TestPermitWithoutARow proves that who waits for a permit takes one whose row is gone: Clean
// removes rows of permits that nobody has.
func TestPermitWithoutARow(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const permits = 3
		m, key := newManager(t, newPool(t, db, true)), named()
		s := semaphore(t, m, key, permits)
		held := several(permits, func(int) *lease.Lease { return permit(t, s) })
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

// readAndWrite acquires a lease for an owner twice and downgrades one of the two.
func readAndWrite(ctx context.Context, t *testing.T, m *lease.Manager, key txlock.Key) (reader, writer *lease.Lease) {
	t.Helper()
	first, writer := acquireIn(ctx, t, m, key), acquireIn(ctx, t, m, key)
	return mustLease(t)(first.Downgrade(ctx)), writer
}

// TestDowngradeBesideAQueue proves that who waits in the queue of Fair keeps no writer from becoming a
// reader.
func TestDowngradeBesideAQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		other := db.manager(lease.Fair())
		writer := acquire(t, db.manager(lease.Fair()), job)
		waits := later(func() error {
			l, err := other.Acquire(t.Context(), job)
			if err == nil {
				err = l.Release(t.Context())
			}
			return err
		})
		db.after(time.Second)
		reader, err := writer.Downgrade(t.Context())
		wantsNone(t, "Downgrade", err)
		release(t, reader)
		wantsNone(t, "Acquire of who waited", <-waits)
	})
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
		release(t, reader, writer)
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
		reader := mustLease(t)(writer.Downgrade(ctx))
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
		before := mustLease(t)(s.Acquire(ctx))
		exec(t, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ? AND slot = 1", before.Key().String())
		again := mustLease(t)(s.Acquire(ctx))
		wants(t, "Err of the one before", before.Err(), txlock.ErrLost)
		wantsNone(t, "Err of the new one", again.Err())
		wants(t, "Release of the one before", before.Release(t.Context()), txlock.ErrNotHeld)
		release(t, again)
	})
}

// share is acquire for a reader.
func share(t testing.TB, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	return mustLease(t)(m.AcquireShared(t.Context(), key, options...))
}

// heldRows counts the rows of a key that are held: the entry row, and above it readers or
// permits, those whose time is over too.
func heldRows(t testing.TB, db *testdb.DB, key txlock.Key) (entry, above int64) {
	t.Helper()
	return number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot = 0 AND holders <> ''", key.String()),
		number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot > 0 AND holders <> ''", key.String())
}

// mortal is a manager that can die. What it holds is never released.
func mortal(t testing.TB, db *testdb.DB, options ...lease.ManagerOption) (m *lease.Manager, die func()) {
	t.Helper()
	var network leasetest.Network
	m, err := lease.NewManager(newPool(t, db, true, func(c *mysql.Config) { c.DialFunc = network.Dial }), options...)
	must(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = m.Close(ended) // it can't give anything back
	})
	return m, network.Cut
}

// TestDowngrade proves that no other writer comes between a writer and the reader that
// it becomes, although several wait, and that readers come in at once.
func TestDowngrade(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		var inside, overlaps, turns atomic.Int32
		var waiting sync.WaitGroup
		const rounds = 10
		writer := acquire(t, m, key)
		for range 2 {
			waiting.Go(func() {
				for range rounds / 2 {
					l, err := other.Acquire(t.Context(), key)
					if err != nil {
						t.Errorf("Acquire of a waiting writer: %v", err)
						return
					}
					if inside.Load() != 0 {
						overlaps.Add(1)
					}
					turns.Add(1)
					release(t, l)
				}
			})
		}
		for i := range rounds {
			if i > 0 {
				writer = acquire(t, m, key)
			}
			inside.Add(1)
			before := turns.Load()
			token := writer.Token()
			var reader *lease.Lease
			waitUntil(t, "the writer is a reader", func() (done bool) {
				var err error
				reader, err = writer.Downgrade(t.Context())
				if err == nil {
					return true
				}
				// Somebody had the row locked for a moment: the lease is as before.
				wants(t, "Downgrade", err, txlock.ErrBusy)
				must(t, writer.Err())
				return false
			})
			if !reader.Shared() || reader.Err() != nil || reader.Owner() != writer.Owner() {
				t.Errorf("the reader: shared %t, %v, owner %q, that of the writer %q", reader.Shared(), reader.Err(), reader.Owner(), writer.Owner())
			}
			wants(t, "Err of the writer", writer.Err(), txlock.ErrNotHeld)
			wants(t, "Downgrade of a reader", second(reader.Downgrade(t.Context())), txlock.ErrInvalidOption)
			if turns.Load() != before {
				t.Errorf("%d writers after token %d came before its reader had ended", turns.Load()-before, token)
			}
			inside.Add(-1)
			release(t, reader)
		}
		waiting.Wait()
		equal(t, "writers beside the reader", overlaps.Load(), 0)
		wants(t, "Downgrade of what was released", second(writer.Downgrade(t.Context())), txlock.ErrNotHeld)
	})
}

// TestNoReadersOnClusters proves that shared leases are refused on a server of a
// multi-primary cluster, before anything is written, and that the others are not. It
// needs no cluster: a MariaDB whose wsrep_on is ON without a provider works as a single
// server.
func TestNoReadersOnClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).OpenLeases(t)
		m := newManager(t, newPool(t, db, true))
		key := named()
		for call, take := range map[string]func() (*lease.Lease, error){
			"AcquireShared":    func() (*lease.Lease, error) { return m.AcquireShared(t.Context(), key) },
			"TryAcquireShared": func() (*lease.Lease, error) { return m.TryAcquireShared(t.Context(), key) },
		} {
			_, err := take()
			wants(t, call, err, schema.ErrMultiPrimary)
			says(t, err, "acquire the lease exclusively instead")
		}
		equal(t, "rows written", number(t, db, "SELECT COUNT(*) FROM lockstep_leases"), 0)
		l := acquire(t, m, key)
		wants(t, "Downgrade", second(l.Downgrade(t.Context())), schema.ErrMultiPrimary)
		wantsNone(t, "after Downgrade", l.Err())
		release(t, l)
	}
}

package lease_test

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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

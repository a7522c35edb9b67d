package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// operation is something that is done with a lease. It begins with what is not
// counted and returns what is.
type operation struct {
	name  string
	ready func(ctx context.Context, tb testing.TB, db *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error
	want  int64
}

var operations = []operation{
	{"acquire", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		return func() error { return acquireUntilEnd(ctx, tb, m, key) }
	}, 1},
	{"release", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, m, key)
		return func() error { return l.Release(ctx) }
	}, 1},
	{"try to acquire what is held", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		holds(tb, other, key)
		return func() error {
			_, err := m.TryAcquire(ctx, key)
			wants(tb, "TryAcquire", err, txlock.ErrBusy)
			return nil
		}
	}, 2}, // the second reads who holds it
	{"take over what has expired", func(ctx context.Context, tb testing.TB, db *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, other, key)
		tb.Cleanup(func() {
			wants(tb, "Release of what was taken over", l.Release(context.Background()), txlock.ErrNotHeld)
		})
		exec(tb, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
		return func() error { return acquireUntilEnd(ctx, tb, m, key) }
	}, 1},
	{"re-enter", func(_ context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := holds(tb, m, key)
		ctx := lease.WithOwner(context.Background(), l.Owner())
		return func() error {
			again, err := m.Acquire(ctx, key)
			if err != nil {
				return err
			}
			return again.Release(ctx)
		}
	}, 0},
	{"release the first of two", func(_ context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, m, key)
		again, err := m.Acquire(lease.WithOwner(context.Background(), l.Owner()), key)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { release(tb, again) })
		return func() error { return l.Release(context.Background()) }
	}, 0},
	{"Do", func(ctx context.Context, _ testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		return func() error { return m.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil }) }
	}, 2},
	{"Do inside of Do", func(ctx context.Context, _ testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		return func() error {
			return m.Do(ctx, key, func(ctx context.Context, _ *lease.Lease) error {
				return m.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil })
			})
		}
	}, 2},
	{"Renew", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := holds(tb, m, key)
		return func() error { return l.Renew(ctx) }
	}, 1},
	{"Ask", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		holds(tb, other, key)
		return func() error { return m.RequestRelease(ctx, key, "why") }
	}, 2},
	{"Renew when asked", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		l := holds(tb, m, key)
		if err := other.RequestRelease(ctx, key, "why"); err != nil {
			tb.Fatal(err)
		}
		return func() error { return l.Renew(ctx) }
	}, 2},
	{"Renew when told", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		l := holds(tb, m, key)
		if err := errors.Join(other.RequestRelease(ctx, key, "why"), l.Renew(ctx)); err != nil {
			tb.Fatal(err)
		}
		return func() error { return l.Renew(ctx) }
	}, 1},
	{"Err and Done", func(_ context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := holds(tb, m, key)
		return func() error {
			_ = l.Done()
			return l.Err()
		}
	}, 0},
}

// holds is acquire of a lease that is released at the end of the test.
func holds(tb testing.TB, m *lease.Manager, key txlock.Key) *lease.Lease {
	l := acquire(tb, m, key)
	tb.Cleanup(func() { release(tb, l) })
	return l
}

// acquireUntilEnd acquires a lease that is released at the end of the test.
func acquireUntilEnd(ctx context.Context, tb testing.TB, m *lease.Manager, key txlock.Key) error {
	l, err := m.Acquire(ctx, key)
	if err == nil {
		tb.Cleanup(func() { release(tb, l) })
	}
	return err
}

// TestStatementsPerOperation proves what each operation costs: the statements that
// the server counts for the one connection of the pool, after those that come once
// for a manager and once for a key. Over a guarded pool, Renew sends its first on the connection
// for renewals.
func TestStatementsPerOperation(t *testing.T) {
	onKinds(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		pool := newPool(t, db, guarded)
		pool.SetMaxOpenConns(1)
		others := newPool(t, db, false)
		for _, o := range slices.Concat(operations, moreOperations) {
			m, other := newManager(t, pool), newManager(t, others)
			key := named()
			warmUp(t, m, key)
			run := o.ready(t.Context(), t, db, m, other, key)
			before := sentSoFar(t, pool)
			if err := run(); err != nil {
				t.Fatalf("%s: %v", o.name, err)
			}
			want := o.want
			if guarded && strings.HasPrefix(o.name, "Renew") {
				want--
			}
			if n := sentSoFar(t, pool) - before - 1; n != want { // the question is one
				t.Errorf("%s: %d statements, want %d", o.name, n, want)
			}
		}
	})
}

// TestStatementsOfAGuard proves what a guarded transaction costs on a guarded pool,
// besides its own statements: one where the guard is the first, and one more where
// the snapshot may be older than the lease.
func TestStatementsOfAGuard(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		conn, err := newPool(t, db, true).Conn(t.Context())
		must(t, err)
		defer conn.Close()
		l := acquire(t, newManager(t, newPool(t, db, true)), named())
		defer release(t, l)
		// A question inside of the transaction would itself be its first statement.
		sent := func(level sql.IsolationLevel, read, guard bool) int64 {
			before := sentSoFar(t, conn)
			tx, err := conn.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			must(t, err)
			defer func() { _ = tx.Rollback() }() // after a failure: closing the connection waits for it
			if read {
				var n int
				must(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lockstep_locks").Scan(&n))
			}
			if guard {
				must(t, l.Guard(t.Context(), tx))
			}
			must(t, tx.Commit())
			return sentSoFar(t, conn) - before
		}
		sent(sql.LevelRepeatableRead, false, true) // the first one of a pool also asks for a cluster
		for name, test := range map[string]struct {
			level sql.IsolationLevel
			read  bool
			want  int64
		}{
			"first":                           {sql.LevelRepeatableRead, false, 1},
			"after a read":                    {sql.LevelRepeatableRead, true, 2},
			"after a read at READ COMMITTED":  {sql.LevelReadCommitted, true, 1},
			"without a read, READ COMMITTED":  {sql.LevelReadCommitted, false, 1},
			"after a read at the default one": {sql.LevelDefault, true, 2},
		} {
			want := test.want
			switch { // an empty transaction sends nothing, so BEGIN and COMMIT are the guard's
			case !test.read && db.Engine() == testdb.MariaDB:
				want++ // COMMIT: BEGIN shares the text of the guard
			case !test.read:
				want += 3 // the level, BEGIN and COMMIT
			}
			if n := sent(test.level, test.read, true) - sent(test.level, test.read, false); n != want {
				t.Errorf("%s: %d statements, want %d", name, n, want)
			}
		}
	})
}

// TestFirstLeaseOfAKey proves that a key that was never leased takes three statements
// more, once, and on MySQL two for the limit of the wait for its row.
func TestFirstLeaseOfAKey(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		pool.SetMaxOpenConns(1)
		m, key := newManager(t, pool), named()
		warmUp(t, m, named())
		first := int64(1 + 3 + 1)
		if db.Engine() == testdb.MySQL {
			first += 2
		}
		for i, want := range []int64{first, 2, 2} {
			before := sentSoFar(t, pool)
			release(t, acquire(t, m, key))
			if n := sentSoFar(t, pool) - before - 1; n != want {
				t.Errorf("acquire and release number %d: %d statements, want %d", i+1, n, want)
			}
		}
	})
}

// warmUp makes the row of the key, and has the manager read the clock and prepare
// its statements.
func warmUp(tb testing.TB, m *lease.Manager, key txlock.Key) {
	tb.Helper()
	for range 2 {
		release(tb, acquire(tb, m, key))
	}
}

// sentSoFar is how many statements the server has executed for a connection.
func sentSoFar(tb testing.TB, q testdb.Queryer) (n int64) {
	tb.Helper()
	var name string
	if err := q.QueryRowContext(context.Background(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// BenchmarkLeaseReentry is an Acquire that re-enters, and its Release.
func BenchmarkLeaseReentry(b *testing.B) {
	for _, engine := range testdb.Engines() {
		b.Run(string(engine), func(b *testing.B) {
			m, key := newManager(b, benchPool(b, testdb.Open(b, engine))), named()
			l := acquire(b, m, key)
			defer release(b, l)
			ctx := lease.WithOwner(b.Context(), l.Owner())
			b.ReportAllocs()
			for b.Loop() {
				again, err := m.Acquire(ctx, key)
				if err != nil {
					b.Fatal(err)
				}
				release(b, again)
			}
		})
	}
}

// benchPool is a pool that sends a text statement in one round trip.
func benchPool(b *testing.B, db *testdb.DB) *sql.DB {
	b.Helper()
	return newPool(b, db, true, func(c *mysql.Config) { c.InterpolateParams = true })
}

// moreOperations are those of HoldAtLeast, TryDo, AcquireAll, shared leases and permits.
var moreOperations = []operation{
	{"release a lease that stays held", func(ctx context.Context, tb testing.TB, db *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		if l, err := m.Acquire(ctx, key, lease.HoldAtLeast(time.Hour)); err != nil {
			tb.Fatal(err)
		} else {
			release(tb, l) // which prepares the statement
		}
		exec(tb, db, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
		l := acquire(tb, m, key, lease.HoldAtLeast(time.Hour))
		return func() error { return l.Release(ctx) }
	}, 2}, // what the row says decides for how long
	{"AcquireAll of three keys, and Release", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		keys := []txlock.Key{key, txlock.Named(key.String() + "/b"), txlock.Named(key.String() + "/a")}
		for _, key := range keys {
			warmUp(tb, m, key)
		}
		return func() error {
			all, err := m.AcquireAll(ctx, keys)
			if err != nil {
				return err
			}
			return all.Release(ctx)
		}
	}, 6},
	{"TryDo", func(ctx context.Context, _ testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		return func() error { return m.TryDo(ctx, key, func(context.Context, *lease.Lease) error { return nil }) }
	}, 2},
	{"DoShared", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		must(tb, m.DoShared(ctx, key, noWork)) // which marks the key
		return func() error { return m.DoShared(ctx, key, noWork) }
	}, 2},
	{"Renew of a reader", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := share(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
		return func() error { return l.Renew(ctx) }
	}, 1},
	{"Do of a key that has been shared", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		must(tb, m.DoShared(ctx, key, noWork))
		must(tb, m.Do(ctx, key, noWork))
		return func() error { return m.Do(ctx, key, noWork) }
	}, 3}, // one sees that nobody reads
	{"Do of a permit", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		s := semaphore(tb, m, txlock.Named(key.String()+"/permits"), 2)
		must(tb, s.Do(ctx, noWork))
		return func() error { return s.Do(ctx, noWork) }
	}, 3}, // one sees which is free
}

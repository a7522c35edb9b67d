package lease_test

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
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
		l := acquire(tb, other, key)
		tb.Cleanup(func() { release(tb, l) })
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
		l := acquire(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
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
		l := acquire(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
		return func() error { return l.Renew(ctx) }
	}, 1},
	{"Ask", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, other, key)
		tb.Cleanup(func() { release(tb, l) })
		return func() error { return m.RequestRelease(ctx, key, "why") }
	}, 2},
	{"Renew when asked", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
		if err := other.RequestRelease(ctx, key, "why"); err != nil {
			tb.Fatal(err)
		}
		return func() error { return l.Renew(ctx) }
	}, 2},
	{"Renew when told", func(ctx context.Context, tb testing.TB, _ *testdb.DB, m, other *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
		if err := errors.Join(other.RequestRelease(ctx, key, "why"), l.Renew(ctx)); err != nil {
			tb.Fatal(err)
		}
		return func() error { return l.Renew(ctx) }
	}, 1},
	{"Err and Done", func(_ context.Context, tb testing.TB, _ *testdb.DB, m, _ *lease.Manager, key txlock.Key) func() error {
		l := acquire(tb, m, key)
		tb.Cleanup(func() { release(tb, l) })
		return func() error {
			_ = l.Done()
			return l.Err()
		}
	}, 0},
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
// for a manager and once for a key.
func TestStatementsPerOperation(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
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
			if n := sentSoFar(t, pool) - before - 1; n != o.want { // the question is one
				t.Errorf("%s: %d statements, want %d", o.name, n, o.want)
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

// TestTakeOverOfAnExpiredLease proves that a waiter has the lease of a dead holder
// within 50 ms and its back-off of the expiry, and never before it. The token is the
// server's clock at the grant.
func TestTakeOverOfAnExpiredLease(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		for name, most := range map[string]time.Duration{"default": 250 * time.Millisecond, "short": 20 * time.Millisecond} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m := newManager(t, pool, lease.Poll(5*time.Millisecond, most))
				// The back-off is jittered by a half.
				bound := 50*time.Millisecond + most*3/2
				const few, many = 5, 40
				best := time.Duration(math.MaxInt64)
				for i := 0; i < few || i < many && best > bound; i++ {
					d := takeOver(t, db, m, 300*time.Millisecond)
					if d < 0 {
						t.Errorf("granted %v before the expiry", -d)
					}
					best = min(best, d)
				}
				// The best, for a machine that is busy: a waiter that doesn't know the expiry
				// is as late every time.
				if best > bound {
					t.Errorf("granted %v after the expiry at best, not within %v", best, bound)
				}
			})
		}
	})
}

// takeOver waits for the lease of a holder that has died, with so much left, and
// returns how long after its expiry it was granted, by the server's clock.
func takeOver(tb testing.TB, db *testdb.DB, m *lease.Manager, left time.Duration) time.Duration {
	tb.Helper()
	key := named()
	warmUp(tb, m, key)
	exec(tb, db, `UPDATE lockstep_leases SET owner = 'dead', holders = ';0000000000000000000000', ttl_us = ?,
		expires_us = UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) + ? WHERE name = ?`,
		left.Microseconds(), left.Microseconds(), key.String())
	expiry := number(tb, db, "SELECT expires_us FROM lockstep_leases WHERE name = ?", key.String())
	l := acquire(tb, m, key)
	defer release(tb, l)
	return time.Duration(int64(l.Token())-expiry) * time.Microsecond
}

// BenchmarkLeaseTakeOver reports how long after its expiry the lease of a dead holder
// is granted to a waiter.
func BenchmarkLeaseTakeOver(b *testing.B) {
	for _, engine := range testdb.Engines() {
		b.Run(string(engine), func(b *testing.B) {
			db := testdb.Open(b, engine)
			m := newManager(b, newPool(b, db, true))
			var late []time.Duration
			for b.Loop() {
				late = append(late, takeOver(b, db, m, 200*time.Millisecond))
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "median-ms")
			b.ReportMetric(float64(late[len(late)-1].Microseconds())/1000, "worst-ms")
		})
	}
}

// BenchmarkLeaseStatements prints what TestStatementsPerOperation proves.
func BenchmarkLeaseStatements(b *testing.B) {
	for _, engine := range testdb.Engines() {
		for _, o := range slices.Concat(operations, moreOperations) {
			b.Run(fmt.Sprintf("%s/%s", engine, o.name), func(b *testing.B) {
				db := testdb.Open(b, engine)
				pool := newPool(b, db, true)
				pool.SetMaxOpenConns(1)
				m, other, key := newManager(b, pool), newManager(b, newPool(b, db, false)), named()
				warmUp(b, m, key)
				n := int64(-1)
				for b.Loop() {
					if n >= 0 {
						continue // once is enough: it is exact
					}
					run := o.ready(b.Context(), b, db, m, other, key)
					before := sentSoFar(b, pool)
					if err := run(); err != nil {
						b.Fatal(err)
					}
					n = sentSoFar(b, pool) - before - 1
				}
				b.ReportMetric(float64(n), "statements")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkLeaseAcquireRelease compares Acquire and Release with two statements that
// are sent without the manager: its own two, prepared and not, and the two UPDATEs of
// a lease without re-entry, fencing and the rest, prepared and not.
func BenchmarkLeaseAcquireRelease(b *testing.B) {
	for _, engine := range testdb.Engines() {
		db := testdb.Open(b, engine)
		table := db.CreateTable(b, "peer", "name VARBINARY(255) PRIMARY KEY, owner VARBINARY(255), expires_us BIGINT NOT NULL")
		for _, c := range []struct {
			name     string
			prepared bool
			pair     func(b *testing.B, db *testdb.DB, send sender) func()
		}{
			{"same-prepared", true, samePair},
			{"same-text", false, samePair},
			{"updates-prepared", true, updatesOf(table)},
			{"updates-text", false, updatesOf(table)},
		} {
			b.Run(fmt.Sprintf("%s/%s", engine, c.name), func(b *testing.B) {
				m, key := newManager(b, benchPool(b, db)), named()
				bare := c.pair(b, db, newSender(b, benchPool(b, db), c.prepared))
				pairs(b, bare, func() {
					l, err := m.Acquire(b.Context(), key)
					if err == nil {
						err = l.Release(b.Context())
					}
					if err != nil {
						b.Fatal(err)
					}
				})
			})
		}
	}
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

// pairs runs two ways of doing the same in turn and reports the medians and their
// ratio, which a machine that is busy elsewhere slows down alike.
func pairs(b *testing.B, bare, ours func()) {
	b.Helper()
	timed := func(run func()) time.Duration {
		began := time.Now()
		run()
		return time.Since(began)
	}
	for range 20 { // warm up
		bare()
		ours()
	}
	var bareTimes, ourTimes []time.Duration
	for b.Loop() {
		if len(bareTimes)%2 == 0 {
			bareTimes, ourTimes = append(bareTimes, timed(bare)), append(ourTimes, timed(ours))
		} else {
			ourTimes, bareTimes = append(ourTimes, timed(ours)), append(bareTimes, timed(bare))
		}
	}
	slices.Sort(bareTimes)
	slices.Sort(ourTimes)
	bareMedian, ourMedian := bareTimes[len(bareTimes)/2], ourTimes[len(ourTimes)/2]
	b.ReportMetric(float64(bareMedian.Microseconds()), "bare-us")
	b.ReportMetric(float64(ourMedian.Microseconds()), "lockstep-us")
	b.ReportMetric(float64(ourMedian)/float64(bareMedian), "ratio")
}

// sender sends a statement and returns its result.
type sender func(query string, args ...any) sql.Result

// newSender sends by the pool, each statement prepared once or as text.
func newSender(b *testing.B, pool *sql.DB, prepared bool) sender {
	b.Helper()
	stmts := make(map[string]*sql.Stmt)
	b.Cleanup(func() {
		for _, stmt := range stmts {
			if err := stmt.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return func(query string, args ...any) sql.Result {
		var result sql.Result
		var err error
		if prepared {
			stmt := stmts[query]
			if stmt == nil {
				if stmt, err = pool.PrepareContext(b.Context(), query); err != nil {
					b.Fatal(err)
				}
				stmts[query] = stmt
			}
			result, err = stmt.ExecContext(b.Context(), args...)
		} else {
			result, err = pool.ExecContext(b.Context(), query, args...)
		}
		if err != nil {
			b.Fatal(err)
		}
		return result
	}
}

// samePair sends the statements of the manager.
func samePair(b *testing.B, db *testdb.DB, send sender) func() {
	key := named()
	exec(b, db, "INSERT INTO lockstep_leases VALUES (?, 0, '-', '', 0, 0, 0, 0, 0, 0, '', 0, '', 0)", key.String())
	var through gen.DBTX = sending{send: send}
	q, nowait := gen.New(), db.Engine() == testdb.MariaDB
	name, owner, ttl := []byte(key.String()), []byte("web-3/4711/01234567-89ab-cdef-0123-456789abcdef"), (30 * time.Second).Microseconds()
	one := func(r sql.Result, err error) {
		if err != nil {
			b.Fatal(err)
		}
		if n, err := r.RowsAffected(); n == 0 || err != nil {
			b.Fatalf("%d rows, %v", n, err)
		}
	}
	return func() {
		id := uuid.New()
		hold, notAfter := ";"+base64.RawURLEncoding.EncodeToString(id[:]), time.Now().Add(time.Hour).UnixMicro()
		var freed int64
		var err error
		if nowait {
			one(q.AcquireNoWait(b.Context(), through, gen.AcquireNoWaitParams{Owner: owner, Label: []byte("note"), Hold: hold, TtlUs: ttl, Name: name, NotAfterUs: notAfter}))
			freed, err = q.ReleaseNoWait(b.Context(), through, gen.ReleaseNoWaitParams{Hold: hold, Name: name})
		} else {
			one(q.AcquireLease(b.Context(), through, gen.AcquireLeaseParams{Owner: owner, Label: []byte("note"), Hold: hold, TtlUs: ttl, Name: name, NotAfterUs: notAfter}))
			freed, err = q.ReleaseLease(b.Context(), through, gen.ReleaseLeaseParams{Hold: hold, Name: name})
		}
		if freed == 0 || err != nil {
			b.Fatalf("%d released, %v", freed, err)
		}
	}
}

// sending sends the statements of package gen by a sender.
type sending struct {
	gen.DBTX
	send sender
}

func (s sending) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	if query == gen.AcquireNoWait || query == gen.ReleaseNoWait {
		query = rawsql.For(rawsql.NoWait) + query
	}
	return s.send(query, args...), nil
}

// updatesOf sends the two UPDATEs of a lease as other programs have it.
func updatesOf(table string) func(b *testing.B, db *testdb.DB, send sender) func() {
	return func(b *testing.B, db *testdb.DB, send sender) func() {
		key := named()
		exec(b, db, "INSERT INTO "+table+" VALUES (?, NULL, 0)", key.String())
		const us = "UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6))"
		acquire := "UPDATE " + table + " SET owner = ?, expires_us = " + us + " + ? WHERE name = ? AND (owner IS NULL OR expires_us <= " + us + ")"
		release := "UPDATE " + table + " SET owner = NULL WHERE name = ? AND owner = ?"
		name, ttl := []byte(key.String()), (30 * time.Second).Microseconds()
		return func() {
			owner := []byte(uuid.NewString())
			for _, result := range []sql.Result{send(acquire, owner, ttl, name), send(release, name, owner)} {
				if n, err := result.RowsAffected(); err != nil || n != 1 {
					b.Fatalf("%d rows, %v", n, err)
				}
			}
		}
	}
}

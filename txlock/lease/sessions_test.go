package lease_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// lives makes the calls of a manager whose statements stay prepared, and some that are sent as text.
func lives(t *testing.T, m, other *lease.Manager) {
	t.Helper()
	ctx, key := lease.WithOwner(t.Context(), "';--\\\"`\x00\xff?"), txlock.Named("?'\"\\ é;--"+named().String())
	l := acquireIn(ctx, t, m, key)
	wants(t, "TryAcquire of a lease that is held", testdb.Err(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
	again := acquireIn(ctx, t, other, key) // by a statement
	must(t, l.Renew(t.Context()))
	info := inspect(t, other, key)
	testdb.ErrorIf(t, info.Owner != l.Owner() || !info.Held || info.Token != l.Token(), "Inspect: %+v", info)
	release(t, again, l)
	release(t, share(t, other, key))
	must(t, semaphore(t, m, named(), 2).Do(t.Context(), noWork))
	must(t, testdb.Err(m.List(t.Context())))
}

// locks makes calls of a transaction, and of a fair queue.
func locks(t *testing.T, pool *sql.DB, m *lease.Manager) {
	t.Helper()
	tx := begin(t, pool, sql.LevelDefault)
	scope := testdb.Got(txlock.Join(t.Context(), tx))(t)
	for _, key := range []txlock.Key{txlock.Named("';?" + rand.Text()), txlock.NewFamily[string]("unprepared"+rand.Text(), txlock.Hashed(), txlock.Exact()).Key("';?")} {
		must(t, testdb.Err(scope.Version(t.Context(), key)))
		must(t, testdb.Err(scope.LockAll(t.Context(), key, named())))
	}
	l := acquireTx(t, m, tx, named())
	commit(t, tx)
	tx = begin(t, pool, sql.LevelDefault)
	guard(t, l, tx)
	commit(t, tx)
	next := fairAcquireUnder(t.Context(), m, l.Key(), lease.Fair())
	waitUntil(t, "somebody waits", func() bool { return len(inspect(t, m, l.Key()).Others) > 0 })
	release(t, l)
	release(t, next.lease(t))
}

// TestPreparedStatements proves that a manager keeps few statements prepared: two for a
// connection, whatever it is used for besides acquiring and releasing leases. It proves that
// leases are acquired, renewed, listed and released on a server that prepares nothing more,
// because others have used up max_prepared_stmt_count, that renewals go on, and that
// transactions lock.
func TestPreparedStatements(t *testing.T) {
	onDedicated(t, func(t *testing.T, server *testdb.Server) {
		t.Run("few", func(t *testing.T) { fewPrepared(t, server.OpenLeases(t)) })
		db := server.Open(t)
		for _, guarded := range []bool{true, false} { // one after the other: there is one setting
			t.Run(fmt.Sprintf("no room, guarded %v", guarded), func(t *testing.T) { noRoom(t, db, guarded) })
		}
	})
}

// fewPrepared counts what stays prepared. Nothing else prepares anything on the server.
func fewPrepared(t *testing.T, db *testdb.DB) {
	count := func() int64 {
		var name string
		var n int64
		must(t, db.Admin().QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").Scan(&name, &n))
		return n
	}
	const connections = 10
	pool := newPool(t, db, true)
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	m := newManager(t, pool, lease.RenewEvery(100*time.Millisecond))
	before := count()
	keys := manyNamed(100)
	held := make([]*lease.Lease, len(keys))
	acquireMany(t, m, keys, held)
	must(t, testdb.Err(m.List(t.Context())))
	releaseMany(t, held)
	n := count() - before
	t.Logf("%d on %d connections", n, connections)
	testdb.ErrorIf(t, n > 2*connections, "%d statements are prepared on %d connections", n, connections)
}

// noRoom uses up what the server prepares.
func noRoom(t *testing.T, db *testdb.DB, guarded bool) {
	pool := newPool(t, db, guarded)
	before, other := newManager(t, pool, oftenRenewed...), newManager(t, newPool(t, db, guarded))
	lives(t, before, other) // with what stays prepared
	kept := acquire(t, before, named())
	db.Exec(t, "SET GLOBAL max_prepared_stmt_count = 0")
	_, err := pool.ExecContext(t.Context(), "DO ?", 1)
	server := new(mysql.MySQLError)
	testdb.FatalIf(t, !errors.As(err, &server) || server.Number != 1461, "the server prepares statements: %v", err)
	lives(t, before, other)
	lives(t, newManager(t, pool), newManager(t, newPool(t, db, guarded)))
	locks(t, pool, other)
	for range 2 {
		waitUntil(t, "it is renewed", renewedFromNow(kept))
	}
	wants(t, "the lease that was renewed", kept.Err(), nil)
	release(t, kept)
	db.Exec(t, "SET GLOBAL max_prepared_stmt_count = 16382")
}

// TestSelectLimit proves that on sessions whose SELECTs show one row (sql_select_limit) all
// readers are found: by a writer in a transaction, by Inspect, List and those who look for
// transactions that stand still, and who is asked is told. Neither does schema.Check mind.
func TestSelectLimit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool := newPool(t, db, guarded, func(cfg *mysql.Config) { cfg.Params = map[string]string{"sql_select_limit": "1"} })
			wants(t, "schema.Check", schema.Check(t.Context(), pool), nil)
			m, key := newManager(t, pool, lease.RenewEvery(100*time.Millisecond)), named()
			readers := several(3, func(int) *lease.Lease { return share(t, m, key) })
			for _, l := range readers {
				tx := begin(t, pool, sql.LevelDefault)
				wants(t, "AcquireTx of reader "+l.Owner(), testdb.Err(m.AcquireTx(lease.WithOwner(t.Context(), l.Owner()), tx, key)), txlock.ErrUpgrade)
				rollback(t, tx)
				tx = begin(t, pool, sql.LevelDefault)
				guard(t, l, tx)
				commit(t, tx)
			}
			testdb.Equal(t, "readers by Inspect", len(inspect(t, m, key).Others), len(readers))
			listed := slices.DeleteFunc(list(t, m), func(i lease.Info) bool { return i.Key != key })
			testdb.Equal(t, "readers by List", len(listed), len(readers))
			written, err := gen.New().LeaseTransactions(t.Context(), pool, []byte(key.String()))
			testdb.ErrorIf(t, err != nil || len(written) != len(readers), "LeaseTransactions: %d readers, %v", len(written), err)
			must(t, m.RequestRelease(t.Context(), key, "now"))
			for _, l := range readers {
				within(t, "the request", l.ReleaseRequested())
				isAsked(t, l, "now")
				release(t, l)
			}
		}
	})
}

// operation is something that is done with a lease. It begins with what is not
// counted and returns what is.
type operation struct {
	name  string
	ready func(o trial) func() error
	want  int64
}

// trial is where an operation is done, by a manager beside another.
type trial struct {
	testing.TB
	db       *testdb.DB
	m, other *lease.Manager
	key      txlock.Key
}

// holds is acquire of a lease that is released at the end of the test.
func (o trial) holds(m *lease.Manager) *lease.Lease {
	l := acquire(o, m, o.key)
	o.Cleanup(func() { release(o, l) })
	return l
}

// acquires acquires a lease that is released at the end of the test.
func (o trial) acquires() error {
	o.holds(o.m)
	return nil
}

func (o trial) renews() func() error {
	l := o.holds(o.m)
	return func() error { return l.Renew(o.Context()) }
}

// does calls what calls a function.
func (o trial) does(do func(context.Context, txlock.Key, func(context.Context, *lease.Lease) error, ...lease.AcquireOption) error) func() error {
	return func() error { return do(o.Context(), o.key, noWork) }
}

var operations = []operation{
	{"acquire", func(o trial) func() error { return o.acquires }, 1},
	{"release", func(o trial) func() error {
		l := acquire(o, o.m, o.key)
		return func() error { return l.Release(o.Context()) }
	}, 1},
	{"try to acquire what is held", func(o trial) func() error {
		o.holds(o.other)
		return func() error {
			wants(o, "TryAcquire", testdb.Err(o.m.TryAcquire(o.Context(), o.key)), txlock.ErrBusy)
			return nil
		}
	}, 2}, // the second reads who holds it
	{"take over what has expired", func(o trial) func() error {
		l := acquire(o, o.other, o.key)
		o.Cleanup(func() { wants(o, "Release of what was taken over", l.Release(context.Background()), txlock.ErrNotHeld) })
		o.db.Exec(o, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", o.key.String())
		return o.acquires
	}, 1},
	{"re-enter", func(o trial) func() error {
		ctx := lease.WithOwner(context.Background(), o.holds(o.m).Owner())
		return func() error { return acquired(o.m.Acquire(ctx, o.key)) }
	}, 0},
	{"Do", func(o trial) func() error { return o.does(o.m.Do) }, 2},
	{"Renew", trial.renews, 1},
	{"Ask", func(o trial) func() error {
		o.holds(o.other)
		return func() error { return o.m.RequestRelease(o.Context(), o.key, "why") }
	}, 2},
	{"Renew when asked", func(o trial) func() error {
		renew := o.renews()
		must(o, o.other.RequestRelease(o.Context(), o.key, "why"))
		return renew
	}, 2},
	{"Renew when told", func(o trial) func() error {
		renew := o.renews()
		must(o, errors.Join(o.other.RequestRelease(o.Context(), o.key, "why"), renew()))
		return renew
	}, 1},
	{"release a lease that stays held", func(o trial) func() error {
		release(o, acquire(o, o.m, o.key, lease.HoldAtLeast(time.Hour))) // which prepares the statement
		o.db.Exec(o, "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", o.key.String())
		l := acquire(o, o.m, o.key, lease.HoldAtLeast(time.Hour))
		return func() error { return l.Release(o.Context()) }
	}, 2}, // what the row says decides for how long
	{"AcquireAll of three keys, and Release", func(o trial) func() error {
		keys := []txlock.Key{o.key, txlock.Named(o.key.String() + "/b"), txlock.Named(o.key.String() + "/a")}
		for _, key := range keys {
			warmUp(o, o.m, key)
		}
		return func() error { return acquiredAll(o.m.AcquireAll(o.Context(), keys)) }
	}, 6},
	{"DoShared", func(o trial) func() error {
		must(o, o.m.DoShared(o.Context(), o.key, noWork)) // which marks the key
		return o.does(o.m.DoShared)
	}, 2},
	{"Do of a key that has been shared", func(o trial) func() error {
		must(o, o.m.DoShared(o.Context(), o.key, noWork))
		must(o, o.m.Do(o.Context(), o.key, noWork))
		return o.does(o.m.Do)
	}, 3}, // one sees that nobody reads
	{"Do of a permit", func(o trial) func() error {
		s := semaphore(o, o.m, txlock.Named(o.key.String()+"/permits"), 2)
		must(o, s.Do(o.Context(), noWork))
		return func() error { return s.Do(o.Context(), noWork) }
	}, 3}, // one sees which is free
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
		for _, o := range operations {
			m, other := newManager(t, pool), newManager(t, others)
			key := named()
			warmUp(t, m, key)
			run := o.ready(trial{t, db, m, other, key})
			before := sentSoFar(t, pool)
			err := run()
			testdb.FatalIf(t, err != nil, "%s: %v", o.name, err)
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
		conn := testdb.Got(newPool(t, db, true).Conn(t.Context()))(t)
		defer conn.Close()
		l := acquire(t, newManager(t, newPool(t, db, true)), named())
		defer release(t, l)
		// A question inside of the transaction would itself be its first statement.
		sent := func(level sql.IsolationLevel, read, guard bool) int64 {
			before := sentSoFar(t, conn)
			tx := testdb.Got(conn.BeginTx(t.Context(), &sql.TxOptions{Isolation: level}))(t)
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
			testdb.Equal(t, name+": statements", sent(test.level, test.read, true)-sent(test.level, test.read, false), want)
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
			n := sentSoFar(t, pool) - before - 1
			testdb.ErrorIf(t, n != want, "acquire and release number %d: %d statements, want %d", i+1, n, want)
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

// TestTokensOutliveRows proves that a token never goes back where its row was
// removed, by a person or the cleanup, whose holder is told; and that the cleanup
// leaves rows whose token is ahead of the clock. It has a database of its own: its
// cleanup removes what other tests have released a second ago.
func TestTokensOutliveRows(t *testing.T) {
	onServers(t, func(t *testing.T, shared *testdb.DB) {
		db := shared.Server().OpenLeases(t)
		pool := newPool(t, db, true)
		m, other := newManager(t, pool, lease.PurgeEvery(0, time.Second)), newManager(t, pool)
		key := named()
		var last uint64
		rises := func(l *lease.Lease) {
			t.Helper()
			testdb.ErrorIf(t, l.Token() <= last, "token %d after %d", l.Token(), last)
			last = l.Token()
		}
		remove := func() { db.Exec(t, "DELETE FROM lockstep_leases WHERE name = ?", key.String()) }
		for range 3 {
			l := acquire(t, m, key)
			rises(l)
			remove()
			next := acquire(t, other, key)
			rises(next)
			wants(t, "Renew without the row", l.Renew(t.Context()), txlock.ErrLost)
			wants(t, "Release without the row", l.Release(t.Context()), txlock.ErrNotHeld)
			wants(t, "Renew of the next holder", next.Renew(t.Context()), nil)
			release(t, next)
			remove()
		}
		rises(acquire(t, m, key))
		must(t, testdb.Err(m.Purge(t.Context())))
		wants(t, "TryAcquire of a held lease after Purge", testdb.Err(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
		must(t, m.ForceRelease(t.Context(), key))
		present := func() bool {
			return db.Number(t, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ?", key.String()) == 1
		}
		if !testdb.Await(time.Minute, func() bool { // until it was idle for the retention
			must(t, testdb.Err(m.Purge(t.Context())))
			return !present()
		}) {
			t.Error("the cleanup doesn't remove an idle row")
		}
		l := acquire(t, other, key)
		rises(l)
		release(t, l)
		db.Exec(t, "UPDATE lockstep_leases SET expires_us = 0, token = token + 3600000000 WHERE name = ?", key.String())
		last += uint64(time.Hour.Microseconds())
		must(t, testdb.Err(m.Purge(t.Context())))
		testdb.ErrorIf(t, !present(), "the cleanup has removed a row whose token is ahead of the clock")
		l = acquire(t, other, key)
		rises(l)
		release(t, l)
	})
}

// TestUnknownVariable: where the data source name sets a variable that the server doesn't know,
// those who ask for a lease or its holders are told so.
func TestUnknownVariable(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t, func(cfg *mysql.Config) { cfg.Params = map[string]string{"max_statement_tim": "1"} })
		m := testdb.Got(lease.NewManager(pool))(t)
		for what, err := range map[string]error{
			"Acquire": testdb.Err(m.Acquire(t.Context(), named())),
			"Holders": testdb.Err(txlock.Holders(t.Context(), pool, named())),
		} {
			wants(t, what, err, schema.ErrSession)
			testdb.Fails(t, what, err, "max_statement_tim'", "the data source name sets: remove it")
		}
		must(t, m.Close(t.Context()))
	})
}

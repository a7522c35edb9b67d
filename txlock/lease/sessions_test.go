package lease_test

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// lives makes the calls of a manager outside of transactions, each at least once.
func lives(t *testing.T, m, other *lease.Manager) {
	t.Helper()
	ctx := lease.WithOwner(t.Context(), "';--\\\"`\x00\xff?")
	key := txlock.Named("?'\"\\ é;--" + named().String())
	l := acquireIn(ctx, t, m, key)
	wants(t, "TryAcquire of a lease that is held", second(other.TryAcquire(t.Context(), key)), txlock.ErrBusy)
	again := acquireIn(ctx, t, other, key) // by a statement
	must(t, l.Renew(t.Context()))
	must(t, inner.RaiseToken(t.Context(), l, l.Token()+5))
	if info := inspect(t, other, key); info.Owner != l.Owner() || !info.Held || info.Token != l.Token() {
		t.Errorf("Inspect: %+v", info)
	}
	if all := list(t, m); !slices.ContainsFunc(all, func(i lease.Info) bool { return i.Key == key }) {
		t.Errorf("%d leases are listed, but not that which is held", len(all))
	}
	release(t, again)
	reader := mustLease(t)(l.Downgrade(t.Context()))
	release(t, share(t, other, key), reader)
	s := semaphore(t, m, named(), 2)
	must(t, s.Do(t.Context(), noWork))
	must(t, second(s.Resize(t.Context(), 3)))
	forced := acquire(t, m, named())
	must(t, other.ForceRelease(t.Context(), forced.Key()))
	wants(t, "Release after that", forced.Release(t.Context()), txlock.ErrNotHeld)
	must(t, second(m.Purge(t.Context())))
	must(t, second(inner.BeginEpoch(t.Context(), m, time.Hour)))
}

// locks makes the calls of a transaction, and of a fair queue.
func locks(t *testing.T, pool *sql.DB, m *lease.Manager) {
	t.Helper()
	hashed := txlock.NewFamily[string]("unprepared"+rand.Text(), txlock.Hashed(), txlock.Exact())
	for range 2 { // keys without a row, and with one
		tx := begin(t, pool, sql.LevelDefault)
		scope, err := txlock.Join(t.Context(), tx)
		must(t, err)
		for _, key := range []txlock.Key{txlock.Named("';?" + rand.Text()), hashed.Key("';?")} {
			version, err := scope.Version(t.Context(), key)
			must(t, err)
			must(t, scope.CompareAndBump(t.Context(), key, version))
		}
		must(t, second(scope.TryLock(t.Context(), named())))
		must(t, second(scope.RLock(t.Context(), named())))
		must(t, second(scope.WaitAtMost(time.Minute).Lock(t.Context(), named())))
		must(t, second(scope.LockAll(t.Context(), named(), named(), hashed.Key("a"), hashed.Key("b"))))
		commit(t, tx)
	}
	tx := begin(t, pool, sql.LevelDefault)
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
	must(t, second(m.List(t.Context())))
	releaseMany(t, held)
	n := count() - before
	t.Logf("%d on %d connections", n, connections)
	if n > 2*connections {
		t.Errorf("%d statements are prepared on %d connections", n, connections)
	}
}

// noRoom uses up what the server prepares.
func noRoom(t *testing.T, db *testdb.DB, guarded bool) {
	pool := newPool(t, db, guarded)
	before, other := newManager(t, pool, oftenRenewed...), newManager(t, newPool(t, db, guarded))
	lives(t, before, other) // with what stays prepared
	kept := acquire(t, before, named())
	db.Exec(t, "SET GLOBAL max_prepared_stmt_count = 0")
	_, err := pool.ExecContext(t.Context(), "DO ?", 1)
	if server := new(mysql.MySQLError); !errors.As(err, &server) || server.Number != 1461 {
		t.Fatalf("the server prepares statements: %v", err)
	}
	lives(t, before, other)
	lives(t, newManager(t, pool), newManager(t, newPool(t, db, guarded)))
	locks(t, pool, other)
	for range 2 {
		waitUntil(t, "it is renewed", renewedFromNow(kept))
	}
	wantsNone(t, "the lease that was renewed", kept.Err())
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
			var readers []*lease.Lease
			for _, owner := range []string{"one", "two", "three"} {
				l := mustLease(t)(m.AcquireShared(lease.WithOwner(t.Context(), owner), key))
				readers = append(readers, l)
			}
			for _, l := range readers {
				tx := begin(t, pool, sql.LevelDefault)
				wants(t, "AcquireTx of reader "+l.Owner(), second(m.AcquireTx(lease.WithOwner(t.Context(), l.Owner()), tx, key)), txlock.ErrUpgrade)
				wants(t, "Rollback", tx.Rollback(), nil)
			}
			equal(t, "readers by Inspect", len(inspect(t, m, key).Others), len(readers))
			listed := slices.DeleteFunc(list(t, m), func(i lease.Info) bool { return i.Key != key })
			equal(t, "readers by List", len(listed), len(readers))
			for _, l := range readers {
				tx := begin(t, pool, sql.LevelDefault)
				wants(t, "Guard", l.Guard(t.Context(), tx), nil)
				wants(t, "Commit", tx.Commit(), nil)
			}
			written, err := gen.New().LeaseTransactions(t.Context(), pool, []byte(key.String()))
			if err != nil || len(written) != len(readers) {
				t.Errorf("LeaseTransactions: %d readers, %v", len(written), err)
			}
			wants(t, "Ask", m.RequestRelease(t.Context(), key, "now"), nil)
			for _, l := range readers {
				awaitAsked(t, l, "now")
				release(t, l)
			}
		}
	})
}

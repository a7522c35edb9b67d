package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// What the tests of the guarded pool share. They compare guarded pools with plain ones,
// of the administrator if they need DDL.

// onServers runs a test on every server.
func onServers(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, testdb.Open(t, engine))
		})
	}
}

// newPool opens a pool. When the test ends, all connections must have been returned to
// it.
func newPool(tb testing.TB, cfg *mysql.Config, guarded bool) *sql.DB {
	tb.Helper()
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	db := sql.OpenDB(connector)
	tb.Cleanup(func() {
		if n := testdb.InUse(db); n != 0 {
			tb.Errorf("%d connections are in use at the end (guarded: %t)", n, guarded)
		}
		if err := db.Close(); err != nil {
			tb.Errorf("close the pool: %v", err)
		}
	})
	return db
}

// sides calls f with both kinds of pool, by name.
func sides(t *testing.T, f func(t *testing.T, guarded bool)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) { t.Parallel(); f(t, false) })
	t.Run("guarded", func(t *testing.T) { t.Parallel(); f(t, true) })
}

// executor is a pool, a connection or a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func exec(tb testing.TB, on executor, query string, args ...any) {
	tb.Helper()
	if _, err := on.ExecContext(tb.Context(), query, args...); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

// begin begins a transaction. It is rolled back at the end of the test at the latest.
func begin(tb testing.TB, db *sql.DB) *sql.Tx {
	tb.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(tb.Context()), nil) // so that the end of the test's context doesn't roll it back
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// takeConn takes a connection from the pool. It is returned at the end of the test at the
// latest.
func takeConn(tb testing.TB, db *sql.DB) *sql.Conn {
	tb.Helper()
	conn, err := db.Conn(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

func count(tb testing.TB, on testdb.Queryer, query string) int {
	tb.Helper()
	var n int
	if err := on.QueryRowContext(tb.Context(), query).Scan(&n); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return n
}

func join(tb testing.TB, tx *sql.Tx) *txlock.Scope {
	tb.Helper()
	scope, err := locksqlc.Join(tb.Context(), tx)
	if err != nil {
		tb.Fatal(err)
	}
	return scope
}

func lock(tb testing.TB, scope *txlock.Scope, key txlock.Key) txlock.Grant {
	tb.Helper()
	grant, err := scope.Lock(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return grant
}

// isFree reports whether another transaction gets the lock at once, and releases it. If the
// lock must be free, use wantFree.
func isFree(tb testing.TB, db *testdb.DB, key txlock.Key) bool {
	tb.Helper()
	tx := begin(tb, newPool(tb, db.Config(), true))
	defer func() { _ = tx.Rollback() }()
	_, err := join(tb, tx).TryLock(tb.Context(), key)
	if err != nil && !errors.Is(err, txlock.ErrBusy) {
		tb.Fatal(err)
	}
	return err == nil
}

// wantFree fails the test unless another transaction gets the locks. It waits with a
// limit instead of trying: if the row of a key was never committed, another test may hold
// the gap that it goes into, and a try would be refused. Somebody who still held the lock
// itself would hold it longer than the limit.
func wantFree(tb testing.TB, db *testdb.DB, keys ...txlock.Key) {
	tb.Helper()
	for _, key := range keys {
		tx := begin(tb, newPool(tb, db.Config(), true))
		if _, err := join(tb, tx).WaitAtMost(30*time.Second).Lock(tb.Context(), key); err != nil {
			tb.Errorf("%v is still locked: %v", key, err)
		}
		_ = tx.Rollback()
	}
}

// uniqueKey is a key of this test alone.
func uniqueKey(tb testing.TB, name string) txlock.Key {
	tb.Helper()
	return txlock.Named(name + "/" + rand.Text())
}

// number returns the number of a server's error, 0 for any other.
func number(err error) uint16 {
	if server := new(mysql.MySQLError); errors.As(err, &server) {
		return server.Number
	}
	return 0
}

// wantDoomed fails the test unless the error says that the transaction is over, and why.
func wantDoomed(tb testing.TB, what string, err error, why uint16) {
	tb.Helper()
	if !errors.Is(err, txlock.ErrTxDoomed) || number(err) != why {
		tb.Errorf("%s: %v (number %d), want ErrTxDoomed for the reason %d", what, err, number(err), why)
	}
}

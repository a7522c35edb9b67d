package locksuite_test

import (
	"crypto/rand"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var exec, count, check, wants = testdb.Exec, testdb.Count, testdb.Must, testdb.Wants

// poolOf opens a pool of the application's user.
func poolOf(tb testing.TB, db *testdb.DB, guarded bool, set ...func(*mysql.Config)) *sql.DB {
	tb.Helper()
	if !guarded {
		return db.Connect(tb, set...)
	}
	pool := testdb.Got(locksqlc.Open(db.DSN(set...)))(tb)
	tb.Cleanup(func() { _ = pool.Close() })
	return pool
}

func interpolating(c *mysql.Config) { c.InterpolateParams = true }

// guarded opens a guarded pool that interpolates.
func guarded(tb testing.TB, db *testdb.DB) *sql.DB {
	tb.Helper()
	return poolOf(tb, db, true, interpolating)
}

// connection takes one from the pool, and returns its number, too.
func connection(tb testing.TB, pool *sql.DB) (conn *sql.Conn, id int64) {
	tb.Helper()
	conn = testdb.Taken(tb, pool)
	return conn, testdb.ConnID(tb, conn)
}

// begin begins a transaction and joins it; it is rolled back at the end.
func begin(tb testing.TB, on testdb.Beginner, level sql.IsolationLevel) (*sql.Tx, *txlock.Scope) {
	tb.Helper()
	tx := testdb.Begin(tb, on, &sql.TxOptions{Isolation: level})
	return tx, testdb.Got(locksqlc.Join(tb.Context(), tx))(tb)
}

func lock(tb testing.TB, scope *txlock.Scope, key txlock.Key) txlock.Grant {
	tb.Helper()
	return testdb.Got(scope.Lock(tb.Context(), key))(tb)
}

// locked locks a key in a transaction that it was tried to join.
func locked(tb testing.TB, key txlock.Key) func(s *txlock.Scope, err error) error {
	return func(s *txlock.Scope, err error) error {
		if err == nil {
			_, err = s.Lock(tb.Context(), key)
		}
		return err
	}
}

// unused is a name that no other test has.
func unused() txlock.Key { return txlock.Named("test:" + rand.Text()) }

func nothing(*sql.Tx) error { return nil }

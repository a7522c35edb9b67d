package locksqlc_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// What the tests of the guarded pool share. They compare guarded pools with plain ones, of the administrator if they need DDL.

// onSides runs a test on every server, for guarded pools and for plain ones.
func onSides(t *testing.T, test func(t *testing.T, db *testdb.DB, guarded bool)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) { sides(t, func(t *testing.T, guarded bool) { test(t, db, guarded) }) })
}

// newPool opens a pool, guarded or plain.
func newPool(tb testing.TB, cfg *mysql.Config, guarded bool) *sql.DB {
	tb.Helper()
	return openPool(tb, cfg, func(base driver.Connector) driver.Connector {
		if guarded {
			return locksqlc.Connector(base)
		}
		return base
	})
}

// openPool opens a pool on what wrap makes of the driver's connector. When the test ends, all connections must have been returned to it.
func openPool(tb testing.TB, cfg *mysql.Config, wrap func(base driver.Connector) driver.Connector) *sql.DB {
	tb.Helper()
	cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
	connector := testdb.Got(mysql.NewConnector(cfg))(tb)
	db := sql.OpenDB(wrap(connector))
	tb.Cleanup(func() {
		testdb.Equal(tb, "connections in use at the end", testdb.InUse(db), 0)
		check(tb, db.Close())
	})
	return db
}

// single lets a pool have one connection.
func single(pool *sql.DB) *sql.DB {
	pool.SetMaxOpenConns(1)
	return pool
}

// interpolating has the driver write arguments into the texts.
func interpolating(cfg *mysql.Config) { cfg.InterpolateParams = true }

// severalTexts lets a text have several statements.
func severalTexts(cfg *mysql.Config) { cfg.MultiStatements = true }

// sides calls f with both kinds of pool, by name.
func sides(t *testing.T, f func(t *testing.T, guarded bool)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) { t.Parallel(); f(t, false) })
	t.Run("guarded", func(t *testing.T) { t.Parallel(); f(t, true) })
}

// check ends the test if there is an error, and isError fails it unless the error is the wanted one, nil for none.
var exec, count, begin, takeConn, onServers = testdb.Exec, testdb.Count, testdb.Begin, testdb.Taken, testdb.OnDatabases
var check, isError = testdb.Must, testdb.Wants

// says fails the test unless the error is the wanted one, nil for any, and has this text.
func says(tb testing.TB, what string, err, want error, text string) {
	tb.Helper()
	testdb.ErrorIf(tb, err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), text),
		"%s: %v, want %v with %q", what, err, want, text)
}

// wantPanic fails the test unless the function panics with this value.
func wantPanic(tb testing.TB, want any, fn func()) {
	tb.Helper()
	defer func() { testdb.Equal(tb, "the panic", recover(), want) }()
	fn()
}

// prepares is a *sql.DB, *sql.Conn or *sql.Tx.
type prepares interface {
	testdb.Executor
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// sendings are the ways to send a statement that sendBy knows.
var sendings = []string{"text", "rows", "prepared"}

// sendBy sends a statement in a way, that of Exec unless it is known, and reads all rows.
func sendBy(ctx context.Context, on prepares, by, query string, args ...any) error {
	switch by {
	case "prepared":
		stmt, err := on.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		return errors.Join(testdb.Err(stmt.ExecContext(ctx, args...)), stmt.Close())
	case "rows":
		rows, err := on.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		for rows.Next() || rows.NextResultSet() {
			continue
		}
		return errors.Join(rows.Err(), rows.Close())
	}
	return testdb.Err(on.ExecContext(ctx, query, args...))
}

// cancelled is the error of a call whose context ends while its session waits for a lock.
func cancelled(t *testing.T, db *testdb.DB, session int64, call func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answered := db.Waiting(t, session, func() error { return call(ctx) })
	cancel()
	return <-answered
}

// wantCount fails the test unless the query counts so many.
func wantCount(tb testing.TB, on testdb.Queryer, want int, query string) {
	tb.Helper()
	testdb.Equal(tb, query, count(tb, on, query), want)
}

func join(tb testing.TB, tx *sql.Tx) *txlock.Scope {
	tb.Helper()
	return testdb.Got(locksqlc.Join(tb.Context(), tx))(tb)
}

func lock(tb testing.TB, scope *txlock.Scope, key txlock.Key) txlock.Grant {
	tb.Helper()
	return testdb.Got(scope.Lock(tb.Context(), key))(tb)
}

// joined begins a transaction and joins it.
func joined(tb testing.TB, on testdb.Beginner, options ...*sql.TxOptions) (*sql.Tx, *txlock.Scope) {
	tb.Helper()
	tx := begin(tb, on, options...)
	return tx, join(tb, tx)
}

// holding is a transaction that holds a key.
func holding(tb testing.TB, on testdb.Beginner, key txlock.Key) *sql.Tx {
	tb.Helper()
	tx, scope := joined(tb, on)
	lock(tb, scope, key)
	return tx
}

// isFree reports whether another transaction gets the lock at once, and releases it. If the lock must be free, use wantFree.
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

// wantLocked fails the test if another transaction gets the lock.
func wantLocked(tb testing.TB, what string, db *testdb.DB, key txlock.Key) {
	tb.Helper()
	testdb.ErrorIf(tb, isFree(tb, db, key), "%s: another gets the lock of %v", what, key)
}

// wantHeld fails the test unless Held says so.
func wantHeld(tb testing.TB, what string, scope *txlock.Scope, key txlock.Key, want bool) {
	tb.Helper()
	_, held := scope.Held(key)
	testdb.ErrorIf(tb, held != want, "%s: Held says %t of %v", what, held, key)
}

// wantFree fails the test unless another transaction gets the locks. It waits with a limit instead of trying: if the row of a key
// was never committed, another test may hold the gap that it goes into, and a try would be refused. Somebody who still held the
// lock itself would hold it longer than the limit.
func wantFree(tb testing.TB, db *testdb.DB, keys ...txlock.Key) {
	tb.Helper()
	pool := newPool(tb, db.Config(), true)
	for _, key := range keys {
		tx := begin(tb, pool)
		isError(tb, fmt.Sprintf("%v is still locked", key), testdb.Err(join(tb, tx).WaitAtMost(30*time.Second).Lock(tb.Context(), key)), nil)
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

// wantOver fails the test unless the error says that the transaction is over, and whether it may be run again.
func wantOver(tb testing.TB, what string, err error, again bool) {
	tb.Helper()
	testdb.ErrorIf(tb, !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) != again,
		"%s: %v (to be tried again: %t), want ErrTxDoomed (%t)", what, err, txlock.Retryable(err), again)
}

// verb is a call of a scope with one key.
type verb = func(ctx context.Context, s *txlock.Scope, key txlock.Key) error

// called is the verb of a method.
func called[T any](method func(*txlock.Scope, context.Context, txlock.Key) (T, error)) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(method(s, ctx, key))
	}
}

// within is the verb of a method that waits so long at most.
func within(limit time.Duration, method func(*txlock.Scope, context.Context, txlock.Key) (txlock.Grant, error)) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		return testdb.Err(method(s.WaitAtMost(limit), ctx, key))
	}
}

// together is the verb of a method for several keys: the key, and those of these names besides it.
func together[T any](method func(*txlock.Scope, context.Context, ...txlock.Key) (T, error), names ...string) verb {
	return func(ctx context.Context, s *txlock.Scope, key txlock.Key) error {
		keys := []txlock.Key{key}
		for _, name := range names {
			keys = append(keys, besides(key, name))
		}
		return testdb.Err(method(s, ctx, keys...))
	}
}

// besides is another key of the same subtest.
func besides(key txlock.Key, name string) txlock.Key { return txlock.Named(key.String() + "/" + name) }

// writing are the calls of a scope that write to the row of a key.
var writing = map[string]verb{
	"Lock":           called((*txlock.Scope).Lock),
	"TryLock":        called((*txlock.Scope).TryLock),
	"WaitAtMost":     within(time.Minute, (*txlock.Scope).Lock),
	"LockAll":        together((*txlock.Scope).LockAll, "b"),
	"CompareAndBump": func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return s.CompareAndBump(ctx, key, 0) },
	"Once":           func(ctx context.Context, s *txlock.Scope, key txlock.Key) error { return testdb.Err(s.Once(ctx, key)) },
}

// verbs are writing, and the calls that lock or read the row of a key in other ways.
var verbs = func() map[string]verb {
	all := maps.Clone(writing)
	all["RLock"] = called((*txlock.Scope).RLock)
	all["TryRLock"] = called((*txlock.Scope).TryRLock)
	all["RLock in time"] = within(time.Minute, (*txlock.Scope).RLock)
	all["LockAny"] = together((*txlock.Scope).LockAny)
	all["Version"] = called((*txlock.Scope).Version)
	return all
}()

// way is a way to run a transaction with a key.
type way = func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error

// running are the ways that run their function each time.
var running = map[string]way{
	"Run": func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, []txlock.Key{key}, fn)
	},
	"Optimistic": func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Optimistic(ctx, pool, key, fn)
	},
}

// ways are running, one without the key, and those that run their function until it was committed once. They are the first if there is no error.
var ways = func() map[string]way {
	all := maps.Clone(running)
	all["Run, no key"] = func(ctx context.Context, pool *sql.DB, _ txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, nil, fn)
	}
	all["Once"] = func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		first, err := locksqlc.Once(ctx, pool, key, fn)
		return firstOf(first, err)
	}
	all["OnceValue"] = func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		_, first, err := locksqlc.OnceValue(ctx, pool, key, func(tx *sql.Tx) (int, error) { return 1, fn(tx) })
		return firstOf(first, err)
	}
	return all
}()

// firstOf is the error, and another one where who is the first has any, or who isn't has none.
func firstOf(first bool, err error) error {
	if first != (err == nil) {
		return fmt.Errorf("it is first: %t, %v", first, err) //nolint:errorlint // no error of lockstep
	}
	return err
}

// endingWith is the way of a transaction of Run that a last statement commits, and whose function then returns what is behind it.
func endingWith(last string, behind error) way {
	return func(ctx context.Context, pool *sql.DB, key txlock.Key, fn func(tx *sql.Tx) error) error {
		return locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			scope, err := locksqlc.Join(ctx, tx)
			if err == nil {
				err = fn(tx)
			}
			if err == nil {
				_, err = tx.ExecContext(scope.CommitWith(ctx, txlock.AnyRows), last)
			}
			return cmp.Or(err, behind)
		})
	}
}

func TestMain(m *testing.M) { testdb.Main(m) }

func TestSuite(t *testing.T) { locksuite.Run(t, adapters...) }

var adapters = []locksuite.Adapter{
	{Name: "sqltx-guarded", Guarded: true, Open: locksuite.OpenSQL(true, locksuite.BeginTx)},
	{Name: "sqltx-plain", Open: locksuite.OpenSQL(false, locksuite.BeginTx)},
	{Name: "sqlconn-guarded", Guarded: true, Open: locksuite.OpenSQL(true, beginConn)},
	{Name: "sqlconn-plain", Open: locksuite.OpenSQL(false, beginConn)},
}

// connSession joins a *sql.Conn on which BEGIN was sent.
type connSession struct {
	locksuite.Statements
	conn *sql.Conn
}

func beginConn(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := connSession{locksuite.Statements{On: conn}, conn}
	for _, text := range []string{"SET TRANSACTION ISOLATION LEVEL " + map[sql.IsolationLevel]string{
		sql.LevelRepeatableRead: "REPEATABLE READ", sql.LevelReadCommitted: "READ COMMITTED",
	}[level], "BEGIN"} {
		if err := s.Exec(ctx, text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s connSession) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.JoinConn(ctx, s.conn, options...)
}

func (s connSession) Commit() error   { return s.end("COMMIT") }
func (s connSession) Rollback() error { return s.end("ROLLBACK") }

// end ends the transaction and returns the connection.
func (s connSession) end(text string) error {
	err := s.Exec(context.Background(), text)
	if closeErr := s.conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

// byOpen is a connector as wrappers make them that know only Driver.Open.
type byOpen struct {
	driver driver.Driver
	dsn    string
}

func (c byOpen) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c byOpen) Driver() driver.Driver                        { return c.driver }

// byContext is a connector as wrappers make them that know driver.DriverContext.
func byContext(t *testing.T, d driver.Driver, dsn string) driver.Connector {
	return testdb.Got(d.(driver.DriverContext).OpenConnector(dsn))(t)
}

// TestDriverName: each pool that is opened by name, or by the driver of such a pool, is guarded, and its locks exclude those of Open.
func TestDriverName(t *testing.T) {
	onServers(t, func(t *testing.T, server *testdb.DB) {
		dsn := server.DSN()
		named := testdb.Got(sql.Open(locksqlc.DriverName, dsn))(t)
		ours := namedDriver(t) // found with an empty name, as otelsql does
		pools := map[string]*sql.DB{
			"sql.Open": named, "Driver.Open": sql.OpenDB(byOpen{ours, dsn}), "OpenConnector": sql.OpenDB(byContext(t, ours, dsn)),
		}
		other := newPool(t, server.Config(), true)
		for how, pool := range pools {
			t.Cleanup(func() { check(t, pool.Close()) })
			isError(t, how, txlock.CheckGuarded(t.Context(), pool), nil)
			testdb.ErrorIf(t, !rawsql.TakesText(pool), "%s: its statements would be prepared", how)
			key := txlock.NewFamily[string]("named", txlock.Exact()).Key(how)
			try := func() error {
				return locksqlc.Run(t.Context(), other, nil, func(tx *sql.Tx) error { return testdb.Err(join(t, tx).TryLock(t.Context(), key)) })
			}
			check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error {
				isError(t, how, try(), txlock.ErrBusy)
				return nil
			}))
			check(t, try())
		}
	})
}

func namedDriver(t *testing.T) driver.Driver {
	pool := testdb.Got(sql.Open(locksqlc.DriverName, ""))(t)
	defer func() { check(t, pool.Close()) }()
	return pool.Driver()
}

package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// connection has the methods of go-sql-driver's connections and of guarded ones.
type connection interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Validator
	driver.SessionResetter
	driver.NamedValueChecker
}

// wrapper is a connector that wraps its connections, as instrumentation does.
type wrapper struct {
	driver.Connector
	wrap func(connection) driver.Conn
}

func (w wrapper) Connect(ctx context.Context) (driver.Conn, error) {
	base, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return w.wrap(base.(connection)), nil
}

// commenter adds a comment before and after each text, as otelsql's WithSQLCommenter and
// Datadog's propagation do.
type commenter struct{ connection }

func (c commenter) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.connection.ExecContext(ctx, commented(query), args)
}

func (c commenter) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.connection.QueryContext(ctx, commented(query), args)
}

func (c commenter) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.connection.PrepareContext(ctx, commented(query))
}

func commented(query string) string {
	return "/* app='shop' */ " + query + " /* traceparent='00-1-1-00' */"
}

// unchecked has no Validator and no SessionResetter, like nhat/otelsql, sqlhooks and
// instrumentedsql.
type unchecked struct {
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	base connection
}

func (u unchecked) Prepare(query string) (driver.Stmt, error) { return u.base.Prepare(query) }
func (u unchecked) Close() error                              { return u.base.Close() }
func (u unchecked) Begin() (driver.Tx, error)                 { return nil, errors.ErrUnsupported }

// unexecuted has no ExecerContext: database/sql prepares each statement.
type unexecuted struct {
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.QueryerContext
	driver.Validator
	driver.SessionResetter
	driver.NamedValueChecker
	base connection
}

func (u unexecuted) Prepare(query string) (driver.Stmt, error) { return u.base.Prepare(query) }
func (u unexecuted) Close() error                              { return u.base.Close() }
func (u unexecuted) Begin() (driver.Tx, error)                 { return nil, errors.ErrUnsupported }

// forgetful drops the context of Exec.
type forgetful struct{ connection }

func (f forgetful) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return f.connection.ExecContext(context.Background(), query, args)
}

func (f forgetful) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return f.connection.PrepareContext(context.Background(), query)
}

var wrappers = map[string]func(connection) driver.Conn{
	"nothing":    func(c connection) driver.Conn { return c },
	"commenter":  func(c connection) driver.Conn { return commenter{c} },
	"unchecked":  func(c connection) driver.Conn { return unchecked{c, c, c, c, c, c} },
	"unexecuted": func(c connection) driver.Conn { return unexecuted{c, c, c, c, c, c, c} },
	"forgetful":  func(c connection) driver.Conn { return forgetful{c} },
}

// onWrapped runs a test on pools with each wrapper, around the guarded pool and under it,
// and on one guarded pool around another. The cases run in parallel, or one after the
// other.
func onWrapped(t *testing.T, together bool, test func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run := func(name string, guarded bool, connector func(driver.Connector) driver.Connector) {
			t.Run(name, func(t *testing.T) {
				if together {
					t.Parallel()
				}
				cfg := db.AdminConfig()
				cfg.Logger = &mysql.NopLogger{} // connections are broken on purpose
				base, err := mysql.NewConnector(cfg)
				check(t, err)
				pool := sql.OpenDB(connector(base))
				t.Cleanup(func() { _ = pool.Close() })
				test(t, db, pool, guarded)
			})
		}
		for name, wrap := range wrappers {
			run(name+" around it", name != "forgetful", func(base driver.Connector) driver.Connector { return wrapper{locksqlc.Connector(base), wrap} })
			run(name+" under it", true, func(base driver.Connector) driver.Connector { return locksqlc.Connector(wrapper{base, wrap}) })
			run(name+" between two", true, func(base driver.Connector) driver.Connector {
				return locksqlc.Connector(wrapper{locksqlc.Connector(base), wrap})
			})
		}
	})
}

// TestWrappedJoins asks whether the transaction is that of a guarded pool.
func TestWrappedJoins(t *testing.T) {
	onWrapped(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		key := uniqueKey(t, "wrapped")
		check(t, txlock.Ensure(t.Context(), pool, key))
		tx := begin(t, pool)
		scope := join(t, tx)
		if scope.Guarded() != guarded {
			t.Errorf("Guarded() is %t, want %t", scope.Guarded(), guarded)
		}
		err := txlock.CheckGuarded(t.Context(), pool)
		if guarded && err != nil || !guarded && (!errors.Is(err, txlock.ErrUnguarded) || !strings.Contains(err.Error(), "put the wrapper under it")) {
			t.Errorf("CheckGuarded: %v, want ErrUnguarded with the reason where the pool is guarded and not heard", err)
		}
		if err := txlock.CheckGuarded(t.Context(), newPool(t, db.Config(), false)); !errors.Is(err, txlock.ErrUnguarded) || strings.Contains(err.Error(), "put the wrapper under it") {
			t.Errorf("CheckGuarded of a plain pool: %v, want ErrUnguarded", err)
		}
		if again := join(t, tx); (again == scope) != guarded {
			t.Error("whether Join gives the same scope twice doesn't fit")
		}
		if _, err := locksqlc.Join(t.Context(), tx, txlock.RequireGuarded()); errors.Is(err, txlock.ErrUnguarded) == guarded {
			t.Errorf("Join with RequireGuarded: %v", err)
		}
		lock(t, scope, key)
		wantLocked(t, "a wrapped pool", db, key)
		check(t, tx.Commit())
		wantFree(t, db, key)
	})
}

// TestWrappedCommit has DDL commit a transaction with a lock.
func TestWrappedCommit(t *testing.T) {
	onWrapped(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		for _, text := range []string{"ALTER TABLE {T} ADD COLUMN w INT", "/*! COMMIT AND CHAIN */"} {
			tx, table := begin(t, pool), db.CreateTable(t, "wrapped", counters)
			lock(t, join(t, tx), uniqueKey(t, "wrapped"))
			statement := text
			if text[0] == 'A' {
				statement = "ALTER TABLE " + table + " ADD COLUMN w INT"
			}
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				if number(err) == 1295 {
					continue // the wrapper has prepared what the server doesn't prepare
				}
				t.Fatal(err)
			}
			if err := tx.Commit(); guarded && !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("Commit after %s: %v, want ErrTxDoomed", statement, err)
			}
		}
	})
}

// TestWrappedCancel cancels a wait: the other locks of the transaction are free at once.
func TestWrappedCancel(t *testing.T) {
	onWrapped(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		if !guarded {
			return // as on a plain pool: the server keeps them until the wait ends
		}
		held, wanted := uniqueKey(t, "held"), uniqueKey(t, "wanted")
		check(t, txlock.Ensure(t.Context(), pool, held))
		holding(t, db, wanted)
		tx := begin(t, pool)
		scope, id := join(t, tx), testdb.ConnID(t, tx)
		lock(t, scope, held)
		ctx, cancel := context.WithCancel(t.Context())
		waited := db.Waiting(t, id, func() error { return second(scope.Lock(ctx, wanted)) })
		cancel()
		isError(t, "Lock", <-waited, context.Canceled)
		db.WaitGone(t, id)
		wantFree(t, db, held)
	})
}

// TestWrappedRestores has a deadlock in a bounded wait: later users of the connection must find
// the variables of the session restored. The cases run one after the other: new keys beside each
// other could cause other deadlocks.
func TestWrappedRestores(t *testing.T) {
	onWrapped(t, false, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) { restoresAfterDeadlock(t, db, pool) })
}

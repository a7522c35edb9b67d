package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// shown shows what it wraps, as XSAM/otelsql does.
type shown struct{ testdb.Edited }

func (s shown) Raw() driver.Conn { return s.Conn }

// commented adds a comment before and after each text, as otelsql's WithSQLCommenter and
// Datadog's propagation do.
func commented(query string) string {
	return "/* app='shop' */ " + query + " /* traceparent='00-1-1-00' */"
}

// unchecked has no Validator and no SessionResetter, like nhat/otelsql, sqlhooks and
// instrumentedsql.
type unchecked struct {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
}

// unexecuted has no ExecerContext: database/sql prepares each statement.
type unexecuted struct {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.QueryerContext
	driver.Validator
	driver.SessionResetter
	driver.NamedValueChecker
}

// forgetful drops the context of Exec.
type forgetful struct{ testdb.Conn }

func (f forgetful) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return f.Conn.ExecContext(context.Background(), query, args)
}

func (f forgetful) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return f.Conn.PrepareContext(context.Background(), query)
}

var wrappers = map[string]func(testdb.Conn) driver.Conn{
	"nothing":    func(c testdb.Conn) driver.Conn { return c },
	"commenter":  func(c testdb.Conn) driver.Conn { return testdb.Edited{Conn: c, Edit: commented} },
	"unchecked":  func(c testdb.Conn) driver.Conn { return unchecked{c, c, c, c, c, c} },
	"unexecuted": func(c testdb.Conn) driver.Conn { return unexecuted{c, c, c, c, c, c, c} },
	"forgetful":  func(c testdb.Conn) driver.Conn { return forgetful{c} },
}

// around, under and between are where a wrapper can be: around the guards, under them, and between two.
func around(wrap func(testdb.Conn) driver.Conn) func(driver.Connector) driver.Connector {
	return func(base driver.Connector) driver.Connector { return testdb.Wrapped(locksqlc.Connector(base), wrap) }
}

func under(wrap func(testdb.Conn) driver.Conn) func(driver.Connector) driver.Connector {
	return func(base driver.Connector) driver.Connector { return locksqlc.Connector(testdb.Wrapped(base, wrap)) }
}

func between(wrap func(testdb.Conn) driver.Conn) func(driver.Connector) driver.Connector {
	return func(base driver.Connector) driver.Connector { return under(wrap)(locksqlc.Connector(base)) }
}

// onWrapped runs a test on pools with each wrapper in each place. The cases run in parallel, or one
// after the other.
func onWrapped(t *testing.T, together bool, test func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		run := func(name string, guarded bool, connector func(driver.Connector) driver.Connector) {
			t.Run(name, func(t *testing.T) {
				if together {
					t.Parallel()
				}
				test(t, db, openPool(t, db.AdminConfig(), connector), guarded)
			})
		}
		for name, wrap := range wrappers {
			run(name+" around it", name != "forgetful", around(wrap))
			run(name+" under it", true, under(wrap))
			run(name+" between two", true, between(wrap))
		}
	})
}

// TestWrappedJoins asks whether the transaction is that of a guarded pool.
func TestWrappedJoins(t *testing.T) {
	onWrapped(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		key := uniqueKey(t, "wrapped")
		check(t, txlock.Ensure(t.Context(), pool, key))
		tx, scope := joined(t, pool)
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
		holding(t, newPool(t, db.Config(), true), wanted)
		tx := begin(t, pool)
		scope, id := join(t, tx), testdb.ConnID(t, tx)
		lock(t, scope, held)
		err := cancelled(t, db, id, func(ctx context.Context) error { return second(scope.Lock(ctx, wanted)) })
		isError(t, "Lock", err, context.Canceled)
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

// edits are what instrumentation does to a text.
var edits = map[string]func(query string) string{
	"before":      func(query string) string { return "/* app='shop', CALL COMMIT (NULL, 0) */ " + query },
	"line before": func(query string) string { return "-- app='shop'\n" + query },
	"behind":      func(query string) string { return query + " /* traceparent='00-1-1-00', (NULL, 0) */" },
	"line behind": func(query string) string { return query + " -- traceparent='00-1-1-00'" },
}

// editors are wrappers that change texts, and some that don't.
func editors() map[string]func(testdb.Conn) driver.Conn {
	all := map[string]func(testdb.Conn) driver.Conn{
		"commenter":  wrappers["commenter"],
		"unchecked":  wrappers["unchecked"],
		"unexecuted": wrappers["unexecuted"],
	}
	for name, edit := range edits {
		all[name] = func(c testdb.Conn) driver.Conn { return testdb.Edited{Conn: c, Edit: edit} }
		all["shown, "+name] = func(c testdb.Conn) driver.Conn { return shown{testdb.Edited{Conn: c, Edit: edit}} }
	}
	all["unexecuted, before"] = func(c testdb.Conn) driver.Conn {
		return wrappers["unexecuted"](testdb.Edited{Conn: c, Edit: edits["before"]})
	}
	return all
}

// onEdited runs a test on guarded pools of one connection with each of these wrappers, around
// the guards, under them and between two.
func onEdited(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, without := range []bool{false, true} {
			if without && !hasProcedures(engine) {
				continue
			}
			db := testdb.Shared(t, engine).OpenNamed(t, hashed.Key(1).Slot())
			if without {
				db.DropProcedures(t)
			}
			all := editors()
			for i, name := range slices.Sorted(maps.Keys(all)) {
				wrap := all[name]
				for j, place := range []func(func(testdb.Conn) driver.Conn) func(driver.Connector) driver.Connector{around, under, between} {
					if !testdb.Meet(i, j, without) {
						continue
					}
					t.Run(fmt.Sprintf("%s/without procedures=%t/%s %s", engine, without, name, []string{"around", "under", "between"}[j]), func(t *testing.T) {
						t.Parallel()
						pool := single(openPool(t, db.Config(), place(wrap)))
						test(t, db, pool)
					})
				}
			}
		}
	}
}

// TestOpenerStaysEdited proves that what stays prepared is what the wrapper has made of it.
func TestOpenerStaysEdited(t *testing.T) {
	onMariaDB(t, func(t *testing.T, _ *testdb.DB) {
		db := testdb.Shared(t, testdb.MariaDB).OpenNamed(t)
		db.Exec(t, "CREATE TABLE tenant_locks LIKE lockstep_locks")
		pool := openPool(t, db.AdminConfig(), around(func(c testdb.Conn) driver.Conn {
			return testdb.Edited{Conn: c, Edit: strings.NewReplacer("lockstep_locks", "tenant_locks").Replace}
		}))
		pool.SetMaxOpenConns(1)
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "tenant")
		runs(t, pool, table, key, 20)
		wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM lockstep_locks")
	})
}

package locktest_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestPrepared prepares a statement of the program, and one of lockstep's own as GORM does with PrepareStmt.
func TestPrepared(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	ctx := t.Context()
	tx := testdb.Got(k.DB().BeginTx(ctx, nil))(t)
	own := testdb.Got(tx.PrepareContext(ctx, gen.LockNamed))(t)
	must(t, testdb.Err(own.ExecContext(ctx, []byte("order:1"), []byte("test"), 1)))
	mock.ExpectBegin()
	mock.ExpectPrepare("UPDATE orders").ExpectExec().WithArgs(7).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()
	program := testdb.Got(tx.PrepareContext(ctx, "UPDATE orders SET n = ?"))(t)
	must(t, testdb.Err(program.ExecContext(ctx, 7)))
	must(t, tx.Commit())
	k.Before(orders.Key(1), "UPDATE orders")
}

// everywhere runs a test on a Kit, whose program has a permissive database, and on servers, where the Kit is
// nil: with a guarded pool, a table of the program and a key.
func everywhere(t *testing.T, test func(t *testing.T, k *locktest.Kit, pool *sql.DB, table string, key txlock.Key)) {
	t.Helper()
	t.Parallel()
	t.Run("kit", func(t *testing.T) {
		t.Parallel()
		program := sql.OpenDB(&numbers{all: make(map[string]int64)})
		t.Cleanup(func() { must(t, program.Close()) })
		k := locktest.Open(t, program)
		test(t, k, k.DB(), "orders", orders.Key(1))
	})
	testdb.OnEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		table := db.CreateTable(t, "words", "n INT PRIMARY KEY")
		test(t, nil, leasetest.Pool(t, db, true), table, txlock.Named(table))
	})
}

// asText returns a function that sends statements of the program on one connection, and one that locks there.
func asText(t *testing.T, pool *sql.DB) (send func(queries ...string), lock func(key txlock.Key) error) {
	t.Helper()
	conn := testdb.Got(pool.Conn(t.Context()))(t)
	t.Cleanup(func() { must(t, conn.Close()) })
	send = func(queries ...string) {
		t.Helper()
		for _, query := range queries {
			must(t, testdb.Err(conn.ExecContext(t.Context(), query)))
		}
	}
	return send, func(key txlock.Key) error {
		scope, err := locksqlc.JoinConn(t.Context(), conn)
		if err != nil {
			return err
		}
		return testdb.Err(scope.Lock(t.Context(), key))
	}
}

// holds lets another transaction hold the lock of a key.
func holds(t *testing.T, pool *sql.DB, key txlock.Key) {
	t.Helper()
	must(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
}

// TestWordsOfTransactions has statements that begin transactions, end them, and undo a part of them, in
// their less common forms. They do the same on a Kit and on servers.
func TestWordsOfTransactions(t *testing.T) {
	everywhere(t, func(t *testing.T, k *locktest.Kit, pool *sql.DB, table string, key txlock.Key) {
		send, lock := asText(t, pool)
		send("BEGIN", "/* first */ SAVEPOINT `a b`")
		must(t, lock(key))
		send("ROLLBACK WORK TO SAVEPOINT `a b`", "UPDATE "+table+" SET n = 1", "ROLLBACK")
		send("BEGIN")
		must(t, lock(key))
		send("ROLLBACK AND CHAIN")
		must(t, lock(key)) // in the next transaction
		for _, begins := range []string{"COMMIT AND CHAIN", "ROLLBACK WORK AND CHAIN"} {
			send("ROLLBACK", begins) // outside of a transaction
			must(t, lock(key))
			wants(t, "TryLock beside "+begins, tries(t, pool, key), txlock.ErrBusy)
		}
		send("DELETE FROM "+table, "COMMIT WORK AND CHAIN", "COMMIT /* AND CHAIN */ AND NO CHAIN")
		wants(t, "a lock after COMMIT AND NO CHAIN", lock(key), txlock.ErrNoTransaction)
		if k != nil {
			k.Before(key, "DELETE FROM orders")
		}

		send("START TRANSACTION READ ONLY", "COMMIT AND CHAIN")
		err := lock(key)
		testdb.ErrorIf(t, err == nil, "a read-only transaction has locked")
		send("ROLLBACK", "START TRANSACTION WITH CONSISTENT SNAPSHOT")
		holds(t, pool, key)
		wants(t, "a lock behind the snapshot", lock(key), txlock.ErrStaleSnapshot)
		for _, ends := range []string{"ANALYZE TABLE ", "OPTIMIZE TABLE ", "CHECK TABLE ", "REPAIR TABLE "} {
			send("ROLLBACK", "BEGIN")
			must(t, lock(key))
			send(ends + table)
			wants(t, "a lock after "+ends, lock(key), txlock.ErrTxDoomed)
		}
		send("ROLLBACK", "BEGIN")
		must(t, lock(key))
		send("BEGIN", "ROLLBACK") // which commits the one before
		holds(t, pool, key)
	})
}

// TestSnapshots has statements before a lock, of which some take the snapshot: then the lock is stale
// behind another holder.
func TestSnapshots(t *testing.T) {
	everywhere(t, func(t *testing.T, k *locktest.Kit, pool *sql.DB, table string, key txlock.Key) {
		send, lock := asText(t, pool)
		must(t, txlock.Ensure(t.Context(), pool, key))
		send("INSERT INTO " + table + " VALUES (3)") // of an empty table servers may read nothing
		all := map[bool][]string{
			false: {
				"SELECT 1", "SELECT @@version", "SELECT NOW()", "SELECT 1 FROM DUAL", "DO 1", "SHOW CREATE TABLE orders",
				"SELECT 'FROM orders', 1 AS `from` /* FROM orders */", "SELECT 1 -- FROM orders\n",
				"SELECT CONNECTION_ID(), LAST_INSERT_ID(), (SELECT 1)", "SET @n = (SELECT COUNT(*) FROM orders)", "INSERT INTO orders SELECT 1 FROM orders LIMIT 0", "UPDATE orders SET n = 1 WHERE n = 7",
				"SELECT n FROM orders FOR UPDATE", "SELECT n FROM orders WHERE n = 7 LOCK\nIN SHARE MODE", "(SELECT n FROM orders FOR UPDATE)",
				"SELECT n FROM orders JOIN orders o USING (n) FOR UPDATE", "SELECT (SELECT MAX(n) FROM orders FOR UPDATE)",
				"(SELECT n FROM orders FOR UPDATE) UNION (SELECT n FROM orders LOCK IN SHARE MODE)",
			},
			true: {
				"SELECT n FROM orders", "SELECT -- no table\n n FROM orders", "WITH o AS (SELECT n FROM orders) SELECT n FROM o", "SELECT (SELECT MAX(n) FROM orders)",
				"SELECT 'FOR UPDATE' FROM orders", "SELECT n AS `FOR UPDATE` FROM orders", "SELECT n FROM orders /* FOR UPDATE */", "SELECT n FROM orders -- LOCK IN SHARE MODE",
				"SELECT n FROM orders WHERE n IN (SELECT n FROM orders) FOR UPDATE", "SELECT * FROM (SELECT n FROM orders) o FOR UPDATE",
				"(SELECT n FROM orders FOR UPDATE) UNION (SELECT n FROM orders)", "EXPLAIN SELECT MAX(n) FROM orders", "CHECKSUM TABLE orders",
			},
		}
		if k != nil { // what one of the servers doesn't know, or the text doesn't show
			all[false] = append(all[false], "SET STATEMENT max_statement_time=9 FOR SELECT 1", "SELECT n FROM orders FOR SHARE")
			all[true] = append(all[true], "SET STATEMENT max_statement_time=9 FOR SELECT n FROM orders", "ANALYZE SELECT n FROM orders", "TABLE orders",
				"CALL report()", "SELECT turnover(7)", "SET @n = turnover(7)", "SELECT EXTRACT(YEAR FROM NOW())", "SELECT n FROM a FOR UPDATE OF a", "SELECT 1; SELECT 2")
		}
		for takes, statements := range all {
			for _, statement := range statements {
				send("BEGIN", regexp.MustCompile(`\borders\b`).ReplaceAllString(statement, table))
				holds(t, pool, key)
				err := lock(key)
				testdb.ErrorIf(t, errors.Is(err, txlock.ErrStaleSnapshot) != takes || err != nil && !takes, "a lock after %q: %v, want a stale one: %t", statement, err, takes)
				send("ROLLBACK")
			}
		}
		for _, level := range []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelSerializable} {
			tx, scope := beginAt(t.Context(), t, pool, level)
			must(t, testdb.Err(tx.ExecContext(t.Context(), "SELECT n FROM "+table)))
			holds(t, pool, key)
			wants(t, "a lock after a read at "+level.String(), testdb.Err(scope.Lock(t.Context(), key)), nil)
			must(t, tx.Commit())
		}
		tx, scope := beginAt(t.Context(), t, pool, sql.LevelSerializable)
		must(t, testdb.Err(scope.Version(t.Context(), key))) // which locks it
		wants(t, "TryLock", tries(t, pool, key), txlock.ErrBusy)
		must(t, tx.Commit())
		must(t, tries(t, pool, key))
	})
}

// TestUnsupportedLevels begins transactions at levels that servers don't have, as the Kit doesn't.
func TestUnsupportedLevels(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, _ string, _ txlock.Key) {
		for _, level := range []sql.IsolationLevel{sql.LevelWriteCommitted, sql.LevelSnapshot, sql.LevelLinearizable} {
			want := fmt.Sprintf("mysql: unsupported isolation level: %d", level)
			tx, err := pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			testdb.ErrorIf(t, err == nil || err.Error() != want, "BeginTx: %v, %v, want %s", tx, err, want)
		}
	})
}

// tries tries to lock a key in another transaction.
func tries(t *testing.T, pool *sql.DB, key txlock.Key) error {
	t.Helper()
	return locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
		scope := testdb.Got(txlock.Join(t.Context(), tx))(t)
		return testdb.Err(scope.TryLock(t.Context(), key))
	})
}

// TestFirstSavepoint rolls back to a savepoint that is set behind a statement. That releases a lock only if
// the statement hasn't begun the transaction on the server.
func TestFirstSavepoint(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, table string, key txlock.Key) {
		send, lock := asText(t, pool)
		must(t, txlock.Ensure(t.Context(), pool, key))
		for statement, begins := range map[string]bool{
			"SAVEPOINT b": false, "SELECT 1": false, "SET @n = 1": false, "DO 0": false, "SELECT n FROM " + table: true,
			"SET @n = (SELECT MAX(n) FROM " + table + ")": true, "SELECT n FROM " + table + " FOR UPDATE": true, "DELETE FROM " + table: true,
		} {
			send("BEGIN", statement, "SAVEPOINT a")
			must(t, lock(key))
			send("ROLLBACK TO a")
			err := tries(t, pool, key)
			testdb.ErrorIf(t, errors.Is(err, txlock.ErrBusy) != begins || err != nil && !begins,
				"%s: TryLock after ROLLBACK TO: %v, want the lock kept: %t", statement, err, begins)
			send("ROLLBACK")
		}
	})
}

// TestLockGoneByDDL has statements behind one that has committed their transaction, on a pool that isn't guarded.
func TestLockGoneByDDL(t *testing.T) {
	t.Parallel()
	k, mock, fails := onSaid(t)
	pool := sql.OpenDB(k.Connector())
	tx, scope := beginAt(t.Context(), t, pool, sql.LevelDefault)
	must(t, testdb.Err(scope.Lock(t.Context(), orders.Key(1))))
	mock.ExpectBegin()
	for _, query := range []string{"CREATE TEMPORARY TABLE draft", "ANALYZE UPDATE draft", "UPDATE orders", "CREATE TABLE archive", "DELETE FROM orders"} {
		expects(mock, query)
		must(t, testdb.Err(tx.ExecContext(t.Context(), query)))
	}
	testdb.ErrorIf(t, !k.Before(orders.Key(1), "UPDATE orders") || k.Before(orders.Key(1), "DELETE FROM orders"), "%v", k.Log())
	fails.says(t, "DELETE FROM orders ran without the lock of order:1: its transaction had locked nothing")
	mock.ExpectRollback()
	must(t, errors.Join(tx.Rollback(), pool.Close()))
}

// TestUse chooses another database, whose tables of lockstep are others.
func TestUse(t *testing.T) {
	everywhere(t, func(t *testing.T, _ *locktest.Kit, pool *sql.DB, _ string, key txlock.Key) {
		tx, scope := beginAt(t.Context(), t, pool, sql.LevelDefault)
		must(t, testdb.Err(scope.Lock(t.Context(), key)))
		must(t, testdb.Err(tx.ExecContext(t.Context(), "USE information_schema")))
		wants(t, "Lock after USE", testdb.Err(scope.Lock(t.Context(), txlock.Named(key.String()+"~"))), schema.ErrSession)
		must(t, tx.Rollback())
	})
}

// TestStaleBeforeAWait refuses a lock behind the snapshot at once, also where others hold it.
func TestStaleBeforeAWait(t *testing.T) {
	everywhere(t, func(t *testing.T, k *locktest.Kit, pool *sql.DB, _ string, key txlock.Key) {
		if !comparesRows(t, k, pool) {
			return // the library does, after the wait
		}
		must(t, txlock.Ensure(t.Context(), pool, key))
		tx, scope := beginAt(t.Context(), t, pool, sql.LevelRepeatableRead)
		must(t, testdb.Err(scope.Version(t.Context(), key)))
		holds(t, pool, key)
		other, reader := beginAt(t.Context(), t, pool, sql.LevelRepeatableRead)
		must(t, testdb.Err(reader.RLock(t.Context(), key)))
		wants(t, "TryLock", testdb.Err(scope.TryLock(t.Context(), key)), txlock.ErrStaleSnapshot)
		must(t, errors.Join(tx.Rollback(), other.Rollback()))
	})
}

// comparesRows reports whether a server itself refuses rows that are newer than a snapshot, as a Kit does.
func comparesRows(t *testing.T, k *locktest.Kit, pool *sql.DB) bool {
	t.Helper()
	if k != nil {
		return true
	}
	var name, value string
	err := pool.QueryRowContext(t.Context(), "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'").Scan(&name, &value)
	if !errors.Is(err, sql.ErrNoRows) {
		must(t, err)
	}
	return err == nil
}

// TestStaleRow makes the row of a key after a snapshot, which only its own transaction may lock.
func TestStaleRow(t *testing.T) {
	everywhere(t, func(t *testing.T, k *locktest.Kit, pool *sql.DB, _ string, key txlock.Key) {
		if !comparesRows(t, k, pool) {
			return // by tokens, which are still 0
		}
		for name, makes := range map[string]func(tx *sql.Tx, scope *txlock.Scope, key txlock.Key){
			"itself": func(*sql.Tx, *txlock.Scope, txlock.Key) {},
			"Ensure": func(_ *sql.Tx, _ *txlock.Scope, key txlock.Key) { must(t, txlock.Ensure(t.Context(), pool, key)) },
			"RLock": func(tx *sql.Tx, scope *txlock.Scope, key txlock.Key) {
				must(t, errors.Join(testdb.Err(scope.RLock(t.Context(), key)), tx.Commit()))
			},
			"ROLLBACK": func(tx *sql.Tx, scope *txlock.Scope, key txlock.Key) {
				must(t, errors.Join(testdb.Err(scope.Lock(t.Context(), key)), tx.Rollback()))
			},
		} {
			key, want := txlock.Named(key.String()+name), txlock.ErrStaleSnapshot
			if name == "itself" {
				want = nil
			}
			tx, scope := beginAt(t.Context(), t, pool, sql.LevelRepeatableRead)
			must(t, testdb.Err(scope.Version(t.Context(), key)))
			other, makers := beginAt(t.Context(), t, pool, sql.LevelRepeatableRead)
			makes(other, makers, key)
			wants(t, name, testdb.Err(scope.Lock(t.Context(), key)), want)
			wants(t, name+", again", testdb.Err(scope.Lock(t.Context(), key)), want)
			_ = other.Rollback() // it has perhaps ended
			must(t, tx.Rollback())
		}
	})
}

// TestStatementsOfTheProgram hands to the mock what only looks like a statement of lockstep's.
func TestStatementsOfTheProgram(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	for _, query := range []string{
		"SET STATEMENT lock_wait_timeout=1 FOR UPDATE orders SET n = 1", "SET STATEMENT max_statement_time=x FOR DELETE FROM orders",
		"INSERT INTO audit VALUES ('by lockstep', 'lockstep_locks')", "UPDATE orders SET lockstep_owner = 'me'", "DELETE FROM my_lockstep_locks",
		"SELECT `lockstep_locks.name` FROM audit_lockstep_once /* lockstep_jobs */", "KILL 7", "KILL QUERY 7",
		"START REPLICA", "COMMIT", "ROLLBACK AND NO CHAIN", // outside of a transaction
		"-- name: Named :one\nSELECT name FROM lockstep_locks_of_mine WHERE name IN (?)",
	} {
		mock.ExpectExec(regexp.QuoteMeta(strings.Join(strings.Fields(query), " "))).WillReturnResult(sqlmock.NewResult(0, 0))
		must(t, testdb.Err(k.DB().ExecContext(t.Context(), query)))
	}
}

// TestAllStatementsAreKnown proves that the Kit executes each statement that sqlc has compiled,
// besides those of leases, and those of engines that it doesn't play.
func TestAllStatementsAreKnown(t *testing.T) {
	t.Parallel()
	others := []string{"CenterForUpdate", "NamedForUpdate", "TouchNamed"}
	files := testdb.Got(filepath.Glob("../../gen/*.sql.go"))(t)
	known, constant := 0, regexp.MustCompile("(?s)const (\\w+) = `(-- name: [^`]+)`")
	list := regexp.MustCompile(`/\*SLICE:\w+\*/\?`)
	for _, file := range files {
		if filepath.Base(file) == "leases.sql.go" || filepath.Base(file) == "shared.sql.go" {
			continue
		}
		source := testdb.Got(os.ReadFile(file))(t)
		for _, s := range constant.FindAllStringSubmatch(string(source), -1) {
			switch knows := locktest.Knows(list.ReplaceAllString(s[2], "?,?")) || locktest.Knows(rawsql.Big(s[2])); {
			case knows:
				known++
			case !slices.Contains(others, s[1]):
				t.Errorf("the Kit doesn't execute %s: it has no handler in statements.go", s[1])
			}
		}
	}
	testdb.ErrorIf(t, known < 30, "%d statements were found", known)
}

package locktest_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// TestPrepared prepares a statement of the program, and one of lockstep's own as GORM does with
// PrepareStmt.
func TestPrepared(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	ctx := t.Context()
	tx, err := k.DB().BeginTx(ctx, nil)
	must(t, err)
	own, err := tx.PrepareContext(ctx, gen.LockNamed)
	must(t, err)
	_, err = own.ExecContext(ctx, []byte("order:1"), []byte("test"), 1)
	must(t, err)
	mock.ExpectBegin()
	mock.ExpectPrepare("UPDATE orders").ExpectExec().WithArgs(7).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()
	program, err := tx.PrepareContext(ctx, "UPDATE orders SET n = ?")
	must(t, err)
	_, err = program.ExecContext(ctx, 7)
	must(t, err)
	must(t, tx.Commit())
	k.Before(orders.Key(1), "UPDATE orders")
}

// TestTransactionAsText begins a transaction by a statement, and undoes a lock by a savepoint.
func TestTransactionAsText(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	ctx := t.Context()
	conn, err := k.DB().Conn(ctx)
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	send := func(query string) {
		t.Helper()
		mock.ExpectExec(query).WillReturnResult(sqlmock.NewResult(0, 0))
		_, err := conn.ExecContext(ctx, query)
		must(t, err)
	}
	send("BEGIN")
	scope, err := locksqlc.JoinConn(ctx, conn)
	must(t, err)
	send("SAVEPOINT before")
	first, err := scope.Lock(ctx, orders.Key(1))
	must(t, err)
	send("ROLLBACK TO SAVEPOINT before")
	if _, held := scope.Held(orders.Key(1)); held {
		t.Error("held after the savepoint")
	}
	again, err := scope.Lock(ctx, orders.Key(1))
	must(t, err)
	if again.Token() <= first.Token() {
		t.Errorf("token %d after %d", again.Token(), first.Token())
	}
	send("COMMIT")
	version, err := txlock.ReadVersion(ctx, k.DB(), orders.Key(1))
	must(t, err)
	if version != again.Token() {
		t.Errorf("version %d, want %d", version, again.Token())
	}
}

// asText returns a function that sends statements of the program on one connection, and one that
// locks there. Before a statement is sent, expect is called.
func asText(t *testing.T, pool *sql.DB, expect func(query string)) (send func(queries ...string), lock func(key txlock.Key) error) {
	t.Helper()
	conn, err := pool.Conn(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	send = func(queries ...string) {
		t.Helper()
		for _, query := range queries {
			expect(query)
			_, err := conn.ExecContext(t.Context(), query)
			must(t, err)
		}
	}
	return send, func(key txlock.Key) error {
		scope, err := locksqlc.JoinConn(t.Context(), conn)
		if err != nil {
			return err
		}
		_, err = scope.Lock(t.Context(), key)
		return err
	}
}

// expecting makes a mock expect each statement.
func expecting(mock sqlmock.Sqlmock) func(query string) {
	return func(query string) {
		mock.ExpectExec(regexp.QuoteMeta(query)).WillReturnResult(sqlmock.NewResult(0, 0))
	}
}

// TestWordsOfTransactions has statements that begin transactions, end them, and undo a part of them, in
// their less common forms. They do the same on a Kit and on servers.
func TestWordsOfTransactions(t *testing.T) {
	t.Parallel()
	t.Run("kit", func(t *testing.T) {
		t.Parallel()
		k, mock := onMock(t)
		key := orders.Key(1)
		wordsOfTransactions(t, k.DB(), "orders", key, expecting(mock))
		k.Before(key, "DELETE FROM orders")
	})
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			table := db.CreateTable(t, "words", "n INT PRIMARY KEY")
			wordsOfTransactions(t, guardedPool(t, db), table, txlock.Named(table), func(string) {})
		})
	}
}

func wordsOfTransactions(t *testing.T, pool *sql.DB, table string, key txlock.Key, expect func(query string)) {
	t.Helper()
	send, lock := asText(t, pool, expect)
	send("BEGIN", "/* first */ SAVEPOINT `a b`")
	must(t, lock(key))
	send("ROLLBACK WORK TO SAVEPOINT `a b`", "UPDATE "+table+" SET n = 1", "ROLLBACK")
	send("BEGIN")
	must(t, lock(key))
	send("ROLLBACK AND CHAIN")
	must(t, lock(key)) // in the next transaction
	send("DELETE FROM "+table, "COMMIT WORK AND CHAIN", "COMMIT AND NO CHAIN")
	wants(t, "a lock after COMMIT AND NO CHAIN", lock(key), txlock.ErrNoTransaction)

	send("START TRANSACTION READ ONLY")
	if err := lock(key); err == nil {
		t.Error("a read-only transaction has locked")
	}
	send("ROLLBACK", "START TRANSACTION WITH CONSISTENT SNAPSHOT")
	must(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
	wants(t, "a lock behind the snapshot", lock(key), txlock.ErrStaleSnapshot)
	for _, ends := range []string{"ANALYZE TABLE ", "OPTIMIZE TABLE ", "CHECK TABLE ", "REPAIR TABLE "} {
		send("ROLLBACK", "BEGIN")
		must(t, lock(key))
		send(ends + table)
		wants(t, "a lock after "+ends, lock(key), txlock.ErrTxDoomed)
	}
}

// TestLockGoneByDDL has statements behind one that has committed their transaction, on a pool that
// isn't guarded.
func TestLockGoneByDDL(t *testing.T) {
	t.Parallel()
	program, mock, err := sqlmock.New()
	must(t, err)
	fails := &said{TB: t}
	k := locktest.Open(fails, program)
	pool := sql.OpenDB(k.Connector())
	tx, err := pool.BeginTx(t.Context(), nil)
	must(t, err)
	scope, err := txlock.Join(t.Context(), tx)
	must(t, err)
	_, err = scope.Lock(t.Context(), orders.Key(1))
	must(t, err)
	mock.ExpectBegin()
	for _, query := range []string{"UPDATE orders", "CREATE TABLE archive", "DELETE FROM orders"} {
		mock.ExpectExec(query).WillReturnResult(sqlmock.NewResult(0, 1))
		_, err := tx.ExecContext(t.Context(), query)
		must(t, err)
	}
	if !k.Before(orders.Key(1), "UPDATE orders") || k.Before(orders.Key(1), "DELETE FROM orders") {
		t.Error(k.Log())
	}
	fails.says(t, "DELETE FROM orders ran without the lock of order:1: its transaction had locked nothing")
	mock.ExpectRollback()
	must(t, errors.Join(tx.Rollback(), pool.Close()))
	fails.end()
	mock.ExpectClose()
	must(t, program.Close())
}

// TestCommitAsTextWithoutAnAnswer commits, as COMMIT of database/sql does.
func TestCommitAsTextWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	conn, err := k.DB().Conn(t.Context())
	must(t, err)
	defer func() { _ = conn.Close() }() // it is lost
	for _, query := range []string{"BEGIN", "COMMIT"} {
		mock.ExpectExec(query).WillReturnResult(sqlmock.NewResult(0, 0))
	}
	_, err = conn.ExecContext(t.Context(), "BEGIN")
	must(t, err)
	scope, err := locksqlc.JoinConn(t.Context(), conn)
	must(t, err)
	grant, err := scope.Lock(t.Context(), orders.Key(1))
	must(t, err)
	k.FailStatement("COMMIT", locktest.UnknownOutcome)
	if _, err := conn.ExecContext(t.Context(), "COMMIT"); err == nil {
		t.Error("it has an answer")
	}
	version, err := txlock.ReadVersion(t.Context(), k.DB(), orders.Key(1))
	if err != nil || version != grant.Token() {
		t.Errorf("version %d, error %v, want %d", version, err, grant.Token())
	}
}

// TestStaleBeforeAWait refuses a lock behind the snapshot at once, also where others hold it.
func TestStaleBeforeAWait(t *testing.T) {
	t.Parallel()
	stale := func(t *testing.T, pool *sql.DB, key txlock.Key) {
		t.Helper()
		begin := func() (*sql.Tx, *txlock.Scope) {
			tx, err := pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			must(t, err)
			scope, err := txlock.Join(t.Context(), tx)
			must(t, err)
			return tx, scope
		}
		must(t, txlock.Ensure(t.Context(), pool, key))
		tx, scope := begin()
		_, err := scope.Version(t.Context(), key)
		must(t, err)
		must(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
		other, reader := begin()
		_, err = reader.RLock(t.Context(), key)
		must(t, err)
		_, err = scope.TryLock(t.Context(), key)
		wants(t, "TryLock", err, txlock.ErrStaleSnapshot)
		must(t, errors.Join(tx.Rollback(), other.Rollback()))
	}
	t.Run("kit", func(t *testing.T) {
		t.Parallel()
		stale(t, locktest.Open(t, nil).DB(), orders.Key(1))
	})
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, engine)
			if engine != testdb.MariaDB || !db.HasSnapshotIsolation(t) {
				return // it leaves the comparison to the library, after the wait
			}
			stale(t, guardedPool(t, db), txlock.Named(t.Name()))
		})
	}
}

// TestLockAllInPart writes no row if it doesn't get all.
func TestLockAllInPart(t *testing.T) {
	t.Parallel()
	k, ctx := locktest.Open(t, nil), t.Context()
	keys := orders.Keys(1, 2)
	other, holder := begin(ctx, t, k)
	_, err := holder.Lock(ctx, keys[1])
	must(t, err)
	tx, scope := begin(ctx, t, k)
	_, err = scope.WaitAtMost(time.Millisecond).LockAll(ctx, keys...)
	wants(t, "LockAll", err, txlock.ErrWaitTimeout)
	_, err = holder.TryLock(ctx, keys[0])
	wants(t, "TryLock of what it has got", err, txlock.ErrBusy)
	must(t, errors.Join(tx.Commit(), other.Rollback()))
	version, err := txlock.ReadVersion(ctx, k.DB(), keys[0])
	if err != nil || version != 0 {
		t.Errorf("version %d, %v", version, err)
	}
}

// TestStatementsOfTheProgram hands to the mock what only looks like a statement of lockstep's.
func TestStatementsOfTheProgram(t *testing.T) {
	t.Parallel()
	k, mock := onMock(t)
	send, _ := asText(t, k.DB(), expecting(mock))
	send("SET STATEMENT lock_wait_timeout=1 FOR UPDATE orders SET n = 1", "SET STATEMENT max_statement_time=x FOR DELETE FROM orders",
		"INSERT INTO audit VALUES ('by lockstep')")
}

// TestAllStatementsAreKnown proves that the Kit executes each statement that sqlc has compiled,
// besides those of leases, and those of engines that it doesn't play.
func TestAllStatementsAreKnown(t *testing.T) {
	t.Parallel()
	others := []string{"CenterForUpdate", "NamedForUpdate", "TouchNamed"}
	files, err := filepath.Glob("../../gen/*.sql.go")
	must(t, err)
	known, constant := 0, regexp.MustCompile("(?s)const (\\w+) = `(-- name: [^`]+)`")
	for _, file := range files {
		if filepath.Base(file) == "leases.sql.go" || filepath.Base(file) == "shared.sql.go" {
			continue
		}
		source, err := os.ReadFile(file)
		must(t, err)
		for _, s := range constant.FindAllStringSubmatch(string(source), -1) {
			switch knows := locktest.Knows(s[2]) || locktest.Knows(rawsql.Big(s[2])); {
			case knows:
				known++
			case !slices.Contains(others, s[1]):
				t.Errorf("the Kit doesn't execute %s: it has no handler in statements.go", s[1])
			}
		}
	}
	if known < 30 {
		t.Errorf("%d statements were found", known)
	}
}

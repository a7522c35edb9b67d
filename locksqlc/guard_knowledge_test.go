package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// What a guarded connection knows about its transaction.

// questions returns how many statements the server has received from the session,
// including this one.
func questions(tb testing.TB, on testdb.Queryer) int {
	tb.Helper()
	var name string
	var n int
	if err := on.QueryRowContext(tb.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestJoinSendsNothing(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.InterpolateParams = true }), true)
		tx, err := pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		key, before := uniqueKey(t, "counted"), questions(t, tx)
		scope := join(t, tx)
		if again := join(t, tx); again != scope {
			t.Error("the second Join gives another scope")
		}
		if n := questions(t, tx) - before; n != 1 {
			t.Errorf("two Joins sent %d statements", n-1)
		}
		before = questions(t, tx)
		grant := lock(t, scope, key)
		want := int64(2)
		switch {
		case hasProcedures(db.Engine()):
			want = 1
		case db.Engine() == testdb.MySQL:
			want = 3 // the first finds out that there are no procedures
		}
		if n := int64(questions(t, tx) - before); n != 1+want {
			t.Errorf("the very first Lock of a key sent %d statements, want %d", n-1, want)
		}
		before = questions(t, tx)
		if again := lock(t, scope, key); again != grant {
			t.Errorf("locked again: %v, want %v", again, grant)
		}
		if held, ok := scope.Held(key); !ok || held != grant {
			t.Errorf("Held: %v, %t", held, ok)
		}
		if n := questions(t, tx) - before; n != 1 {
			t.Errorf("the second Lock sent %d statements", n-1)
		}
		made := uniqueKey(t, "made")
		if err := txlock.Ensure(t.Context(), db.Admin(), made); err != nil {
			t.Fatal(err)
		}
		before = questions(t, tx)
		lock(t, scope, made)
		if n := questions(t, tx) - before; n != 2 {
			t.Errorf("Lock of a key that has a row sent %d statements, want one", n-1)
		}
	})
}

// wantNoTransaction fails the test unless the scope has ended with its transaction.
func wantNoTransaction(t *testing.T, scope *txlock.Scope, key txlock.Key) {
	t.Helper()
	if _, err := scope.Lock(t.Context(), key); !errors.Is(err, txlock.ErrNoTransaction) {
		t.Errorf("Lock after the end: %v, want ErrNoTransaction", err)
	}
	if err := scope.Verify(t.Context()); !errors.Is(err, txlock.ErrNoTransaction) {
		t.Errorf("Verify after the end: %v, want ErrNoTransaction", err)
	}
	if _, held := scope.Held(key); held {
		t.Error("a lock is held after the end")
	}
}

func TestScopeEndsWithTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "ends")
		pool.SetMaxOpenConns(1)
		for name, end := range map[string]func(*sql.Tx) error{"Commit": (*sql.Tx).Commit, "Rollback": (*sql.Tx).Rollback} {
			tx := begin(t, pool)
			scope := join(t, tx)
			lock(t, scope, key)
			if err := end(tx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			wantNoTransaction(t, scope, key)
			if _, err := locksqlc.Join(t.Context(), tx); !errors.Is(err, txlock.ErrNoTransaction) {
				t.Errorf("Join after %s: %v, want ErrNoTransaction", name, err)
			}
			next := begin(t, pool) // on the same connection
			if join(t, next) == scope {
				t.Error("the next transaction has the scope of the last one")
			}
			wantNoTransaction(t, scope, key)
			if err := next.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}

func joinConn(tb testing.TB, conn *sql.Conn) *txlock.Scope {
	tb.Helper()
	scope, err := locksqlc.JoinConn(tb.Context(), conn)
	if err != nil {
		tb.Fatal(err)
	}
	return scope
}

func TestTransactionsAsText(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "text")
		conn := takeConn(t, pool)
		if _, err := locksqlc.JoinConn(t.Context(), conn); !errors.Is(err, txlock.ErrNoTransaction) {
			t.Errorf("JoinConn before BEGIN: %v, want ErrNoTransaction", err)
		}
		for _, text := range []struct{ begin, end string }{
			{"BEGIN", "COMMIT"},
			{"begin work", "ROLLBACK WORK"},
			{"START TRANSACTION", "COMMIT AND NO CHAIN"},
			{"START TRANSACTION READ WRITE", "rollback"},
			{"/* a trace */ BEGIN;", "COMMIT /* the end */;"},
		} {
			exec(t, conn, text.begin)
			scope := joinConn(t, conn)
			if joinConn(t, conn) != scope {
				t.Errorf("%s: the second JoinConn gives another scope", text.begin)
			}
			lock(t, scope, key)
			if isFree(t, db, key) {
				t.Errorf("%s: the lock is free", text.begin)
			}
			exec(t, conn, text.end)
			wantFree(t, db, key)
			wantNoTransaction(t, scope, key)
			if _, err := locksqlc.JoinConn(t.Context(), conn); !errors.Is(err, txlock.ErrNoTransaction) {
				t.Errorf("JoinConn after %s: %v, want ErrNoTransaction", text.end, err)
			}
		}
		for _, chain := range []string{"COMMIT AND CHAIN", "ROLLBACK WORK AND CHAIN"} {
			exec(t, conn, "BEGIN")
			first := joinConn(t, conn)
			lock(t, first, key)
			exec(t, conn, chain)
			wantFree(t, db, key)
			wantNoTransaction(t, first, key)
			second := joinConn(t, conn)
			if second == first || joinConn(t, conn) != second {
				t.Errorf("%s: JoinConn gives other scopes than one for the next transaction", chain)
			}
			lock(t, second, key)
			exec(t, conn, "COMMIT")
		}
		exec(t, conn, "BEGIN")
		first := joinConn(t, conn)
		lock(t, first, key)
		exec(t, conn, "BEGIN") // commits the first
		if _, err := first.Lock(t.Context(), key); !errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("Lock after a second BEGIN: %v, want ErrTxDoomed", err)
		}
		lock(t, joinConn(t, conn), key)
		exec(t, conn, "COMMIT")
	})
}

// TestTextTransactionIsLeftOpen returns a connection to the pool without COMMIT. The next
// user's BEGIN commits.
func TestTextTransactionIsLeftOpen(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "left")
		pool.SetMaxOpenConns(1)
		leave := func() *txlock.Scope {
			conn := takeConn(t, pool)
			exec(t, conn, "BEGIN")
			scope := joinConn(t, conn)
			lock(t, scope, key)
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			return scope
		}
		left := leave()
		tx := begin(t, pool)
		wantFree(t, db, key)
		wantNoTransaction(t, left, key)
		lock(t, join(t, tx), key)
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		left = leave()
		conn := takeConn(t, pool)
		exec(t, conn, "BEGIN")
		wantFree(t, db, key)
		if _, err := left.Lock(t.Context(), key); err == nil {
			t.Error("the transaction that was left gives a lock")
		}
		lock(t, joinConn(t, conn), key)
		exec(t, conn, "COMMIT")
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSavepointFreesLock rolls back to a savepoint that is older than the lock, in every
// form of the text. Another transaction takes the lock in between.
func TestSavepointFreesLock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, text := range []string{"ROLLBACK TO early", "rollback work to savepoint `early`", "DELETE FROM lockstep_once WHERE 0 = 1; ROLLBACK TO SAVEPOINT early"} {
			pool := newPool(t, db.AdminConfig(func(cfg *mysql.Config) { cfg.MultiStatements = true }), true)
			key := uniqueKey(t, "savepoint")
			if err := txlock.Ensure(t.Context(), pool, key); err != nil {
				t.Fatal(err)
			}
			tx := begin(t, pool)
			scope := join(t, tx)
			exec(t, tx, "SAVEPOINT early")
			first := lock(t, scope, key)
			exec(t, tx, text)
			if _, held := scope.Held(key); held {
				t.Errorf("%s: Held says that the lock is held", text)
			}
			between := begin(t, newPool(t, db.Config(), true))
			second, err := join(t, between).TryLock(t.Context(), key)
			if err != nil {
				t.Fatalf("%s: the server keeps the lock, so that nothing is shown: %v", text, err)
			}
			if err := between.Commit(); err != nil {
				t.Error(err)
			}
			if third := lock(t, scope, key); third.Token() <= second.Token() || second.Token() <= first.Token() {
				t.Errorf("%s: tokens %d, %d, %d", text, first.Token(), second.Token(), third.Token())
			}
			if isFree(t, db, key) {
				t.Errorf("%s: the lock that was given again is free", text)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSavepointOfCaller calls procedures that roll back to a savepoint of their caller. No
// server can report whether the transaction is still the same after that, so it counts as
// ended, whatever the procedure does next.
func TestSavepointOfCaller(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.AdminConfig(), true)
		for i, body := range []string{
			"ROLLBACK TO SAVEPOINT early",
			"BEGIN ROLLBACK TO SAVEPOINT early; SAVEPOINT lockstep_bracket; END",
		} {
			procedure := fmt.Sprintf("undo%d_%s", i, db.CreateTable(t, "undo", counters))
			db.CreateProcedure(t, procedure, body)
			tx := begin(t, pool)
			scope, key := join(t, tx), uniqueKey(t, "savepoint")
			exec(t, tx, "SAVEPOINT early")
			lock(t, scope, key)
			if _, err := tx.ExecContext(t.Context(), "CALL "+procedure+"()"); !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) {
				t.Errorf("CALL of %s: %v, want ErrTxDoomed, not to be tried again", body, err)
			}
			if _, held := scope.Held(key); held {
				t.Errorf("after CALL of %s Held says that the lock is held", body)
			}
			if err := tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) {
				t.Errorf("Commit after CALL of %s: %v, want ErrTxDoomed", body, err)
			}
		}
	})
}

// TestSavepointOfProcedure rolls back to a savepoint that a procedure has set before any
// lock was asked for: nobody has seen it set.
func TestSavepointOfProcedure(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.AdminConfig(), true), uniqueKey(t, "savepoint")
		procedure := "set_" + db.CreateTable(t, "set", counters)
		db.CreateProcedure(t, procedure, "SAVEPOINT deep")
		if err := txlock.Ensure(t.Context(), pool, key); err != nil {
			t.Fatal(err)
		}
		tx := begin(t, pool)
		exec(t, tx, "CALL "+procedure+"()")
		scope := join(t, tx)
		lock(t, scope, key)
		exec(t, tx, "ROLLBACK TO SAVEPOINT deep")
		if _, held := scope.Held(key); held {
			t.Error("Held says that the lock is held")
		}
		wantFree(t, db, key)
		lock(t, scope, key)
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	})
}

// TestSavepointKeepsEarlierLocks rolls back to a savepoint that is younger than a lock.
// Both servers keep that lock, Held says so, and re-entry sends nothing. A lock younger
// than the savepoint is sent again.
func TestSavepointKeepsEarlierLocks(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, interpolate := range []bool{false, true} {
			pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.InterpolateParams = interpolate }), true)
			early, fresh := uniqueKey(t, "early"), uniqueKey(t, "fresh")
			if err := txlock.Ensure(t.Context(), pool, early); err != nil {
				t.Fatal(err)
			}
			tx := begin(t, pool)
			scope := join(t, tx)
			first, made := lock(t, scope, early), lock(t, scope, fresh)
			for range 2 {
				late := uniqueKey(t, "late")
				exec(t, tx, "SAVEPOINT middle")
				lock(t, scope, late)
				exec(t, tx, "ROLLBACK TO SAVEPOINT middle")
				if _, held := scope.Held(late); held {
					t.Error("the lock from after the savepoint counts as held")
				}
				for key, want := range map[txlock.Key]txlock.Grant{early: first, fresh: made} {
					if isFree(t, db, key) {
						t.Fatalf("the server has freed %v", key)
					}
					if held, ok := scope.Held(key); !ok || held != want {
						t.Errorf("Held(%v): %v, %t, want %v", key, held, ok, want)
					}
					before := questions(t, tx)
					if again := lock(t, scope, key); again != want {
						t.Errorf("locked again: %v, want %v", again, want)
					}
					if n := questions(t, tx) - before; n != 1 {
						t.Errorf("re-entry sent %d statements", n-1)
					}
				}
				lock(t, scope, late)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCancelledTransactionIsRolledBack leaves the end of an idle transaction to
// database/sql, which rolls back when the context ends.
func TestCancelledTransactionIsRolledBack(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "cancelled")
		if err := txlock.Ensure(t.Context(), pool, key); err != nil {
			t.Fatal(err)
		}
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		scope := join(t, tx)
		lock(t, scope, key)
		cancel()
		lock(t, join(t, begin(t, newPool(t, db.Config(), true))), key) // waits for the rollback
		wantNoTransaction(t, scope, key)
	})
}

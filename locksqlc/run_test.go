package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// onPools runs a test on every server with a guarded pool and with a plain one.
func onPools(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		sides(t, func(t *testing.T, guarded bool) { test(t, db, newPool(t, db.Config(), guarded), guarded) })
	})
}

// onOwnPools does what onPools does, in a database of its own, so that no other test has
// its center locks.
func onOwnPools(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool)) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			sides(t, func(t *testing.T, guarded bool) {
				db := testdb.Shared(t, engine).Open(t)
				test(t, db, newPool(t, db.Config(), guarded), guarded)
			})
		})
	}
}

var hashed = txlock.NewFamily[int]("hashed", txlock.Hashed())

// keysOf are two keys and a hashed one.
func keysOf(t *testing.T) []txlock.Key {
	t.Helper()
	return []txlock.Key{uniqueKey(t, "run"), uniqueKey(t, "run"), hashed.Key(7)}
}

// idle fails the test if a connection is still in use when a call has returned.
func idle(t *testing.T, pool *sql.DB) {
	t.Helper()
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use when the call has returned", n)
	}
}

// numbers is a table of one row, whose number is 0.
func numbers(t *testing.T, db *testdb.DB) string {
	t.Helper()
	table := db.CreateTable(t, "numbers", "id INT PRIMARY KEY, v INT NOT NULL")
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
	return table
}

func TestRunCommits(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		pool.SetMaxOpenConns(1)
		table, keys := numbers(t, db), keysOf(t)
		for range 3 {
			err := locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error {
				for _, key := range keys {
					if isFree(t, db, key) {
						t.Errorf("%v is not locked", key)
					}
				}
				exec(t, tx, "UPDATE "+table+" SET v = v + 1")
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			idle(t, pool)
		}
		if n := count(t, pool, "SELECT v FROM "+table); n != 3 {
			t.Errorf("%d of 3 were committed", n)
		}
		wantFree(t, db, keys...)
	})
}

// TestRunWithoutKeys lets fn take the locks itself.
func TestRunWithoutKeys(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "run")
		err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			lock(t, join(t, tx), key)
			exec(t, tx, "UPDATE "+table+" SET v = 1")
			if isFree(t, db, key) {
				t.Error("the key is not locked")
			}
			return nil
		})
		if err != nil || count(t, pool, "SELECT v FROM "+table) != 1 {
			t.Errorf("Run: %v", err)
		}
		idle(t, pool)
		wantFree(t, db, key)
	})
}

func TestRunRollsBack(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, keys, calls := numbers(t, db), keysOf(t), 0
		noStock := errors.New("no stock")
		write := func(tx *sql.Tx) {
			calls++
			exec(t, tx, "UPDATE "+table+" SET v = 1")
		}
		err := locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error { write(tx); return noStock })
		if !errors.Is(err, noStock) {
			t.Errorf("Run: %v, want the error of fn", err)
		}
		idle(t, pool)

		func() {
			defer func() {
				if r := recover(); r != "out of paper" {
					t.Errorf("recovered %v, want the panic of fn", r)
				}
			}()
			err := locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error { write(tx); panic("out of paper") })
			t.Errorf("Run returned %v after a panic", err)
		}()
		idle(t, pool)

		ended := make(chan struct{})
		go func() { // as t.FailNow does
			defer close(ended)
			_ = locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error { write(tx); runtime.Goexit(); return nil })
		}()
		<-ended
		idle(t, pool)

		if n := count(t, pool, "SELECT v FROM "+table); n != 0 || calls != 3 {
			t.Errorf("after %d calls that failed the number is %d", calls, n)
		}
		wantFree(t, db, keys...)
	})
}

// TestRunRetriesDeadlock lets the first try run into a deadlock, and lose.
func TestRunRetriesDeadlock(t *testing.T) {
	for name, swallow := range map[string]bool{"returned": false, "swallowed": true} {
		t.Run(name, func(t *testing.T) {
			onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
				if swallow && !guarded {
					return // see TestRunConfirms
				}
				c, key, calls := cross(t, db), uniqueKey(t, "run"), 0
				err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
					calls++
					exec(t, tx, "INSERT INTO "+c.table+" VALUES (?, 1)", 1000+calls)
					if calls > 1 {
						exec(t, tx, "UPDATE "+c.table+" SET v = v + 100 WHERE id <= 2")
						return nil
					}
					err := c.lose(t, tx)
					if swallow {
						_, err := tx.ExecContext(t.Context(), "INSERT INTO "+c.table+" VALUES (2000, 1)")
						wantDoomed(t, "a write after it", err, 1213)
						return nil
					}
					return fmt.Errorf("no sale: %w", err)
				})
				if err != nil || calls != 2 {
					t.Errorf("Run called fn %d times and returned %v, want twice and success", calls, err)
				}
				idle(t, pool)
				if n := count(t, pool, "SELECT SUM(v) FROM "+c.table+" WHERE id IN (1, 2)"); n != 200 {
					t.Errorf("the sum is %d, want what one try has written", n)
				}
				if n := count(t, pool, "SELECT COUNT(*) FROM "+c.table+" WHERE id > 1000"); n != 1 {
					t.Errorf("%d rows stay, want the second try's", n)
				}
				wantFree(t, db, key)
			})
		})
	}
}

// TestRunConfirms has fn ignore a deadlock on a plain pool. Each write after it was
// committed by itself, and Run must not report success.
func TestRunConfirms(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(), false)
		c, key, calls := cross(t, db), uniqueKey(t, "run"), 0
		err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			calls++
			exec(t, tx, "INSERT INTO "+c.table+" VALUES (1001, 1)")
			_ = c.lose(t, tx)
			return nil
		})
		if !errors.Is(err, txlock.ErrTxDoomed) || calls != 1 {
			t.Errorf("Run called fn %d times and returned %v, want once and ErrTxDoomed", calls, err)
		}
		idle(t, pool)
		if n := count(t, pool, "SELECT COUNT(*) FROM "+c.table+" WHERE id > 1000"); n != 0 {
			t.Errorf("%d rows stay of what was rolled back", n)
		}
	})
}

// crossing is a table, and another transaction, which holds row 2 and is about to
// ask for row 1.
type crossing struct {
	db    *testdb.DB
	table string
	other *sql.Tx
}

func cross(t *testing.T, db *testdb.DB) *crossing {
	t.Helper()
	c := &crossing{db: db, table: db.CreateTable(t, "crossing", "id INT PRIMARY KEY, v INT NOT NULL")}
	db.Exec(t, "INSERT INTO "+c.table+" VALUES (1, 0), (2, 0)")
	ballast := db.CreateTable(t, "ballast", "id INT PRIMARY KEY")
	c.other = begin(t, newPool(t, db.Config(), false))
	// The server rolls back the transaction that has written less.
	exec(t, c.other, "INSERT INTO "+ballast+" WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT i FROM n")
	exec(t, c.other, "UPDATE "+c.table+" SET v = 1 WHERE id = 2")
	return c
}

// lose runs into a deadlock with the other transaction, which is over then.
func (c *crossing) lose(t *testing.T, tx *sql.Tx) error {
	t.Helper()
	exec(t, tx, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
	err := c.answerTo(t, tx, "UPDATE "+c.table+" SET v = 1 WHERE id = 2")
	if number(err) != 1213 {
		t.Errorf("the statement was answered %v, want the deadlock", err)
	}
	return err
}

// answerTo runs into the deadlock by a statement that waits for row 2 while row 1 is
// locked, and returns the answer.
func (c *crossing) answerTo(t *testing.T, tx *sql.Tx, statement string) error {
	t.Helper()
	id := testdb.ConnID(t, tx)
	answered := make(chan error, 1)
	go func() {
		_, err := tx.ExecContext(t.Context(), statement)
		answered <- err
	}()
	c.db.WaitForLockWait(t, id)
	exec(t, c.other, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
	err := <-answered
	if err := c.other.Rollback(); err != nil {
		t.Error(err)
	}
	return err
}

// TestRunRetriesCommit has COMMIT report the conflict, as on a cluster.
func TestRunRetriesCommit(t *testing.T) {
	t.Parallel()
	db, mock := newMock(t)
	for i := range 2 {
		expectJoin(mock)
		mock.ExpectExec(rawsql.Probe).WillReturnError(&mysql.MySQLError{Number: 1568})
		if commit := mock.ExpectCommit(); i == 0 {
			commit.WillReturnError(&mysql.MySQLError{Number: 1213})
		}
	}
	calls := 0
	if err := locksqlc.Run(t.Context(), db, nil, func(*sql.Tx) error { calls++; return nil }); err != nil || calls != 2 {
		t.Errorf("Run called fn %d times and returned %v", calls, err)
	}

	expectJoin(mock)
	mock.ExpectExec(rawsql.Probe).WillReturnError(&mysql.MySQLError{Number: 1568})
	mock.ExpectCommit().WillReturnError(mysql.ErrInvalidConn)
	calls = 0
	err := locksqlc.Run(t.Context(), db, nil, func(*sql.Tx) error { calls++; return nil })
	if !errors.Is(err, mysql.ErrInvalidConn) || calls != 1 {
		t.Errorf("Run called fn %d times and returned %v: nobody knows what has become of such a COMMIT", calls, err)
	}

	mock.ExpectBegin().WillReturnError(&mysql.MySQLError{Number: 1040})
	if err := locksqlc.Run(t.Context(), db, nil, func(*sql.Tx) error { return nil }); number(err) != 1040 {
		t.Errorf("Run: %v, want the error of BEGIN", err)
	}

	expectJoin(mock)
	mock.ExpectRollback().WillReturnError(&mysql.MySQLError{Number: 1158})
	no := errors.New("no")
	if err := locksqlc.Run(t.Context(), db, nil, func(*sql.Tx) error { return no }); !errors.Is(err, no) || number(err) != 1158 {
		t.Errorf("Run: %v, want the errors of fn and of ROLLBACK", err)
	}
}

// newMock is a plain pool on a mock.
func newMock(t *testing.T) (*sql.DB, sqlmock.Sqlmock) {
	t.Helper()
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mock.ExpectClose()
		if err := errors.Join(db.Close(), mock.ExpectationsWereMet()); err != nil {
			t.Error(err)
		}
	})
	return db, mock
}

// expectJoin expects that a transaction is begun on a plain pool and joined.
func expectJoin(mock sqlmock.Sqlmock) {
	mock.ExpectBegin()
	mock.ExpectExec(rawsql.Probe).WillReturnError(&mysql.MySQLError{Number: 1568})
	mock.ExpectQuery(rawsql.Facts).WillReturnRows(sqlmock.NewRows(make([]string, session.Columns)).AddRow(session.Reply("9.7.4", "mock/3306/test")...))
}

// TestRunRetriesStaleSnapshot reads before it locks, and somebody else commits in
// between.
func TestRunRetriesStaleSnapshot(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key, calls := numbers(t, db), uniqueKey(t, "run"), 0
		err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			calls++
			seen := count(t, tx, "SELECT v FROM "+table)
			if calls == 1 {
				err := locksqlc.Run(t.Context(), newPool(t, db.Config(), true), []txlock.Key{key}, func(tx *sql.Tx) error {
					exec(t, tx, "UPDATE "+table+" SET v = 10")
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
			if _, err := join(t, tx).Lock(t.Context(), key); err != nil {
				return fmt.Errorf("try %d: %w", calls, err)
			}
			exec(t, tx, "UPDATE "+table+" SET v = ?", seen+1)
			return nil
		})
		if err != nil || calls != 2 {
			t.Errorf("Run called fn %d times and returned %v", calls, err)
		}
		if n := count(t, pool, "SELECT v FROM "+table); n != 11 {
			t.Errorf("the number is %d: the other's update was lost", n)
		}
		idle(t, pool)
		wantFree(t, db, key)
	})
}

func TestRunGivesUp(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, calls := numbers(t, db), 0
		err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			calls++
			exec(t, tx, "UPDATE "+table+" SET v = v + 1")
			return fmt.Errorf("try %d: %w", calls, txlock.ErrDeadlock)
		})
		if calls != 10 || !errors.Is(err, txlock.ErrDeadlock) || !strings.Contains(err.Error(), "given up after 10 tries") || !strings.Contains(err.Error(), "try 10:") {
			t.Errorf("Run called fn %d times and returned %v", calls, err)
		}
		idle(t, pool)
		if n := count(t, pool, "SELECT v FROM "+table); n != 0 {
			t.Errorf("%d of the tries were committed", n)
		}
	})
}

// TestRunRetriesNothingElse proves that after other errors fn isn't called again.
func TestRunRetriesNothingElse(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		key := uniqueKey(t, "run")
		holder := begin(t, newPool(t, db.Config(), true))
		lock(t, join(t, holder), key)
		calls := 0
		err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			calls++
			_, err := join(t, tx).TryLock(t.Context(), key)
			return err
		})
		if !errors.Is(err, txlock.ErrBusy) || calls != 1 {
			t.Errorf("Run called fn %d times and returned %v", calls, err)
		}
		idle(t, pool)
	})
}

// TestRunFindsImplicitCommit runs DDL in the transaction, as an administrator.
func TestRunFindsImplicitCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		sides(t, func(t *testing.T, guarded bool) {
			pool, table, key, calls := newPool(t, db.AdminConfig(), guarded), numbers(t, db), uniqueKey(t, "run"), 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				calls++
				exec(t, tx, "UPDATE "+table+" SET v = v + 1")
				exec(t, tx, "ALTER TABLE "+table+" ADD COLUMN w INT")
				return nil
			})
			if !errors.Is(err, txlock.ErrTxDoomed) || calls != 1 {
				t.Errorf("Run called fn %d times and returned %v, want once and ErrTxDoomed", calls, err)
			}
			if guarded && !strings.Contains(fmt.Sprint(err), "ALTER TABLE") {
				t.Errorf("Run: %v, want it to name the statement", err)
			}
			idle(t, pool)
			wantFree(t, db, key)
		})
	})
}

func TestRunWithEndedContext(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB, _ bool) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		called := false
		err := locksqlc.Run(ctx, pool, keysOf(t), func(*sql.Tx) error { called = true; return nil })
		if !errors.Is(err, context.Canceled) || called {
			t.Errorf("Run: %v (called: %t)", err, called)
		}
		idle(t, pool)
	})
}

// TestRunCancelledWhileItWaits leaves no lock behind. On a plain pool the server
// keeps those of the abandoned session until its wait ends.
func TestRunCancelledWhileItWaits(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		key, mine := txlock.Named("z"+uniqueKey(t, "run").String()), txlock.Named("a"+uniqueKey(t, "run").String())
		// If the row didn't exist, Run might wait for the gap that it goes into.
		if err := txlock.Ensure(t.Context(), db.Admin(), mine, key); err != nil {
			t.Fatal(err)
		}
		holder := begin(t, newPool(t, db.Config(), true))
		lock(t, join(t, holder), key)
		pool.SetMaxOpenConns(1)
		id := testdb.ConnID(t, pool)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		answered := make(chan error, 1)
		called := false
		go func() {
			err := locksqlc.Run(ctx, pool, []txlock.Key{mine, key}, func(*sql.Tx) error { called = true; return nil })
			idle(t, pool)
			answered <- err
		}()
		db.WaitForLockWait(t, id)
		cancel()
		if err := <-answered; !errors.Is(err, context.Canceled) || called {
			t.Errorf("Run: %v (called: %t)", err, called)
		}
		if !guarded {
			if err := holder.Rollback(); err != nil {
				t.Error(err)
			}
		}
		db.WaitGone(t, id)
		wantFree(t, db, mine)
	})
}

// TestRunCancelledInside ends the context in fn: whether fn heeds it or not,
// nothing is committed, and nothing is open when Run returns.
func TestRunCancelledInside(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for name, heeds := range map[string]bool{"heeded": true, "not heeded": false} {
			table, key := numbers(t, db), uniqueKey(t, "run")
			for range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				err := locksqlc.Run(ctx, pool, []txlock.Key{key}, func(tx *sql.Tx) error {
					exec(t, tx, "UPDATE "+table+" SET v = 1")
					cancel()
					if heeds {
						return ctx.Err()
					}
					testdb.Await(time.Minute, func() bool { // database/sql rolls back behind it
						_, err := tx.ExecContext(t.Context(), "DO 1")
						return errors.Is(err, sql.ErrTxDone)
					})
					return nil
				})
				idle(t, pool)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: Run: %v", name, err)
				}
				wantFree(t, db, key)
			}
			if n := count(t, pool, "SELECT v FROM "+table); n != 0 {
				t.Errorf("%s: committed after the end of the context", name)
			}
		}
	})
}

// TestRunCancelledBetweenTries ends the context after the ninth try was rolled back, in
// the pause before the tenth, which takes a quarter of a second at least.
func TestRunCancelledBetweenTries(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB, _ bool) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls, ninth := 0, make(chan struct{})
		go func() {
			<-ninth
			for pool.Stats().InUse > 0 {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		err := locksqlc.Run(ctx, pool, nil, func(*sql.Tx) error {
			if calls++; calls == 9 {
				close(ninth)
			}
			return fmt.Errorf("no sale: %w", txlock.ErrDeadlock)
		})
		if calls != 9 || !errors.Is(err, context.Canceled) || !errors.Is(err, txlock.ErrDeadlock) || txlock.Retryable(err) {
			t.Errorf("Run called fn %d times and returned %v", calls, err)
		}
		idle(t, pool)
	})
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	db, _ := newMock(t)
	nothing := func(*sql.Tx) error { t.Error("fn was called"); return nil }
	if err := locksqlc.Run(t.Context(), nil, nil, nothing); err == nil || !strings.Contains(err.Error(), "*sql.DB") {
		t.Errorf("Run on nil: %v", err)
	}
	if err := locksqlc.Run(t.Context(), db, nil, nil); err == nil || !strings.Contains(err.Error(), "function") {
		t.Errorf("Run of nil: %v", err)
	}
	for _, key := range []txlock.Key{{}, txlock.Named(""), txlock.Named("\xff"), txlock.NewFamily[int]("order").Key(0)} {
		// The mock expects nothing: not even a transaction is begun.
		if err := locksqlc.Run(t.Context(), db, []txlock.Key{txlock.Named("good"), key}, nothing); !errors.Is(err, txlock.ErrInvalidKey) {
			t.Errorf("Run with the key %q: %v", key, err)
		}
	}
}

// TestRunOptions runs at READ COMMITTED, where plain reads see what others commit.
func TestRunOptions(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "run")
		for level, want := range map[sql.IsolationLevel]int{sql.LevelReadCommitted: 5, sql.LevelRepeatableRead: 0} {
			db.Exec(t, "UPDATE "+table+" SET v = 0")
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				if n := count(t, tx, "SELECT v FROM "+table); n != 0 {
					t.Errorf("read %d", n)
				}
				db.Exec(t, "UPDATE "+table+" SET v = 5")
				if n := count(t, tx, "SELECT v FROM "+table); n != want {
					t.Errorf("read %d at %v, want %d", n, level, want)
				}
				return nil
			}, &sql.TxOptions{Isolation: level})
			if err != nil {
				t.Error(err)
			}
		}
		err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }, &sql.TxOptions{ReadOnly: true})
		if !errors.Is(err, txlock.ErrReadOnly) {
			t.Errorf("an exclusive lock in a read-only transaction: %v", err)
		}
		err = locksqlc.Optimistic(t.Context(), pool, key, func(*sql.Tx) error { return nil }, nil, &sql.TxOptions{})
		if !errors.Is(err, txlock.ErrInvalidOption) {
			t.Errorf("the options of two transactions: %v", err)
		}
		idle(t, pool)
	})
}

// TestRunOfTransactionThatFnEnds proves that Run returns an error if fn itself has ended
// the transaction.
func TestRunOfTransactionThatFnEnds(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		for name, end := range map[string]func(*sql.Tx) error{"Commit": (*sql.Tx).Commit, "Rollback": (*sql.Tx).Rollback} {
			key, calls := uniqueKey(t, "run"), 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error { calls++; return end(tx) })
			if !errors.Is(err, sql.ErrTxDone) || calls != 1 {
				t.Errorf("%s inside: Run called fn %d times and returned %v", name, calls, err)
			}
			no := errors.New("no")
			err = locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error { return errors.Join(end(tx), no) })
			if !errors.Is(err, no) || errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s inside and an error: Run returned %v", name, err)
			}
			idle(t, pool)
			wantFree(t, db, key)
		}
	})
}

// lockVariables are the session variables that a lock could change.
var lockVariables = map[testdb.Engine]string{
	testdb.MariaDB: "GROUP_CONCAT(variable_value ORDER BY variable_name) FROM information_schema.session_variables WHERE variable_name IN ('innodb_lock_wait_timeout', 'max_statement_time', 'innodb_snapshot_isolation')",
	testdb.MySQL:   "CONCAT_WS('/', @@SESSION.innodb_lock_wait_timeout, @@SESSION.max_execution_time, @@SESSION.transaction_isolation)",
}

// TestSessionVariablesStay looks at a connection after bounded locks of all kinds, with
// every outcome.
func TestSessionVariablesStay(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		pool.SetMaxOpenConns(1)
		variables := func(on testdb.Queryer) (text string) {
			t.Helper()
			if err := on.QueryRowContext(t.Context(), "SELECT "+lockVariables[db.Engine()]).Scan(&text); err != nil {
				t.Fatal(err)
			}
			return text
		}
		id, before := testdb.ConnID(t, pool), variables(pool)
		fresh := uniqueKey(t, "made by another")
		maker := begin(t, newPool(t, db.Config(), true))
		lock(t, join(t, maker), fresh)
		old := uniqueKey(t, "old")
		if err := locksqlc.Run(t.Context(), pool, []txlock.Key{old}, func(*sql.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		for _, key := range []txlock.Key{fresh, uniqueKey(t, "new"), old, hashed.Key(7)} {
			err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				scope := join(t, tx)
				for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){
					scope.TryRLock, scope.WaitAtMost(100 * time.Millisecond).RLock, scope.WaitAtMost(1100 * time.Millisecond).Lock, scope.TryLock,
				} {
					if _, err := verb(t.Context(), key); err != nil && !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrWaitTimeout) && !errors.Is(err, txlock.ErrUpgrade) {
						t.Errorf("the lock of %v: %v", key, err)
					}
					if after := variables(tx); after != before {
						t.Errorf("within the transaction the variables are %s after the lock of %v, %s before", after, key, before)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		if after := variables(pool); after != before || testdb.ConnID(t, pool) != id {
			t.Errorf("the variables are %s, %s before", after, before)
		}
	})
}

// TestSessionVariablesStayAfterDeadlock has the server roll back a transaction while it
// waits for a key that another one is making.
func TestSessionVariablesStayAfterDeadlock(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		pool.SetMaxOpenConns(1)
		const variable = "SELECT @@SESSION.innodb_lock_wait_timeout"
		id, before := testdb.ConnID(t, pool), count(t, pool, variable)
		c, fresh := cross(t, db), uniqueKey(t, "made by another")
		lock(t, join(t, c.other), fresh)
		tx := begin(t, pool)
		exec(t, tx, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
		answered := make(chan error, 1)
		go func() {
			scope, err := locksqlc.Join(t.Context(), tx)
			if err == nil {
				_, err = scope.WaitAtMost(7*time.Second).Lock(t.Context(), fresh)
			}
			answered <- err
		}()
		db.WaitForLockWait(t, id)
		exec(t, c.other, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
		if err := <-answered; !errors.Is(err, txlock.ErrDeadlock) {
			t.Fatalf("Lock: %v, want ErrDeadlock", err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if now := testdb.ConnID(t, pool); now != id {
			t.Errorf("the pool has connection %d instead of %d, which was good", now, id)
		}
		if after := count(t, pool, variable); after != before {
			t.Errorf("innodb_lock_wait_timeout is %d for the next user of the connection, %d before", after, before)
		}
	})
}

// TestRunAgainAfterLostConnection proves that a guarded pool runs a transaction again whose
// connection is lost under a statement of the program that can't commit, and no other.
func TestRunAgainAfterLostConnection(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, guarded := range []bool{true, false} {
			pool, table, again := newPool(t, db.Config(), guarded), numbers(t, db), 1
			if guarded {
				again = 2 // a plain pool doesn't know what was committed
			}
			for statement, want := range map[string]int{"UPDATE " + table + " SET v = v + 1": again, "CREATE TABLE again_" + table + " (v INT)": 1} {
				calls := 0
				err := locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "lost")}, func(tx *sql.Tx) error {
					if calls++; calls == 1 {
						db.Kill(t, testdb.ConnID(t, tx))
					}
					_, err := tx.ExecContext(t.Context(), statement)
					return err
				})
				if calls != want || (err == nil) != (want == 2) || txlock.Retryable(err) {
					t.Errorf("guarded=%t: %s: Run called fn %d times and returned %v", guarded, statement, calls, err)
				}
			}
			if n := count(t, pool, "SELECT v FROM "+table); n != again-1 {
				t.Errorf("guarded=%t: the number is %d, want %d", guarded, n, again-1)
			}
		}
	})
}

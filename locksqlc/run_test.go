package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// onPools runs a test on every server with a guarded pool and with a plain one.
func onPools(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool)) {
	t.Helper()
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		test(t, db, newPool(t, db.Config(), guarded), guarded)
	})
}

// onOwnPools does what onPools does, in a database of its own, so that no other test has the center lock of hashed.Key(7).
func onOwnPools(t *testing.T, test func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool)) {
	t.Helper()
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		own := testdb.Shared(t, db.Engine()).OpenNamed(t, hashed.Key(7).Slot())
		test(t, own, newPool(t, own.Config(), guarded), guarded)
	})
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
	testdb.Equal(t, "connections in use when the call has returned", pool.Stats().InUse, 0)
}

// numbers is a table of one row, whose number is 0.
func numbers(t *testing.T, db *testdb.DB) string {
	t.Helper()
	table := db.CreateTable(t, "numbers", "id INT PRIMARY KEY, v INT NOT NULL")
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
	return table
}

// TestRunRollsBack: Run rolls back, and Do frees its lock, if the function fails, whose error is returned as it is, panics or ends its goroutine.
func TestRunRollsBack(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, keys, no, calls := numbers(t, db), keysOf(t), errors.New("no"), 0
		id, working := testdb.ConnID(t, single(pool)), t.Context()
		run := func(end func() error) error {
			return locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error {
				calls++
				exec(t, tx, "UPDATE "+table+" SET v = 1")
				return end()
			})
		}
		do := func(end func() error) error {
			return locksqlc.Do(t.Context(), pool, keys[0], func(ctx context.Context) error { calls++; working = ctx; return end() })
		}
		tryDo := func(end func() error) error {
			return locksqlc.TryDo(t.Context(), pool, keys[2], func(context.Context) error {
				calls++
				wantLocked(t, "TryDo", db, keys[2])
				return end()
			})
		}
		for _, call := range []func(end func() error) error{run, do, tryDo} {
			err := call(func() error { return no })
			testdb.ErrorIf(t, err != no, "%#v, want the error of the function itself", err) //nolint:errorlint // what is tested
			idle(t, pool)
			wantFree(t, db, keys...)
			wantPanic(t, "out of paper", func() { _ = call(func() error { panic("out of paper") }) })
			idle(t, pool)
			wantFree(t, db, keys...)
			var exits sync.WaitGroup
			exits.Go(func() { _ = call(func() error { runtime.Goexit(); return nil }) })
			exits.Wait()
			idle(t, pool)
			wantFree(t, db, keys...)
		}
		testdb.ErrorIf(t, working.Err() == nil, "the context of a function goes on behind it")
		n := count(t, pool, "SELECT v FROM "+table)
		testdb.ErrorIf(t, n != 0 || calls != 9, "after %d calls that failed the number is %d", calls, n)
		testdb.Equal(t, "the connection of the pool, which was good", testdb.ConnID(t, pool), id)
	})
}

// TestRunConfirms has fn ignore a deadlock on a plain pool. Each write after it was committed by itself, and Run must not report success.
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
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrTxDoomed) || calls != 1, "Run called fn %d times and returned %v, want once and ErrTxDoomed", calls, err)
		idle(t, pool)
		wantCount(t, pool, 0, "SELECT COUNT(*) FROM "+c.table+" WHERE id > 1000")
	})
}

// crossing is a table, and another transaction, which holds row 2 and is about to ask for row 1.
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

// fill returns what puts the names of the table and of its procedure into texts: {T} and {P}. A table {T}_made is dropped at the end.
func (c *crossing) fill(t *testing.T, procedure string) func(text string) string {
	t.Helper()
	fill := strings.NewReplacer("{T}", c.table, "{P}", "own_"+c.table).Replace
	if procedure != "" {
		c.db.CreateProcedure(t, fill("{P}"), fill(procedure))
	}
	t.Cleanup(func() { _, _ = c.db.Admin().Exec(fill("DROP TABLE IF EXISTS {T}_made")) })
	return fill
}

// runsOnce runs a transaction, with a lock or without, whose function must be called once, and which ends in an error that forbids to run it again.
func (c *crossing) runsOnce(t *testing.T, pool *sql.DB, locks bool, fn func(tx *sql.Tx) error) {
	t.Helper()
	calls, keys := 0, []txlock.Key{uniqueKey(t, "run")}
	if !locks {
		keys = nil
	}
	err := locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error {
		if calls++; calls > 1 {
			return nil
		}
		exec(t, tx, "INSERT INTO "+c.table+" VALUES (1001, 1)")
		return fn(tx)
	})
	testdb.ErrorIf(t, calls != 1, "Run called fn %d times", calls)
	wantOver(t, "Run", err, false)
	idle(t, pool)
	wantFree(t, c.db, keys...)
}

// lose runs into a deadlock with the other transaction, which is over then.
func (c *crossing) lose(t *testing.T, tx *sql.Tx) error {
	t.Helper()
	exec(t, tx, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
	err := c.answerTo(t, tx, "UPDATE "+c.table+" SET v = 1 WHERE id = 2")
	testdb.ErrorIf(t, number(err) != 1213, "the statement was answered %v, want the deadlock", err)
	return err
}

// answerTo runs into the deadlock by a statement that waits for row 2 while row 1 is locked, and returns the answer.
func (c *crossing) answerTo(t *testing.T, tx *sql.Tx, statement string) error {
	t.Helper()
	return c.meets(t, testdb.ConnID(t, tx), func() error { return testdb.Err(tx.ExecContext(t.Context(), statement)) })
}

// meets has the other transaction ask for row 1 while a session with that row waits by a call, and returns the answer to the call.
func (c *crossing) meets(t *testing.T, session int64, call func() error) error {
	t.Helper()
	answered := c.db.Waiting(t, session, call)
	exec(t, c.other, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
	err := <-answered
	check(t, c.other.Rollback())
	return err
}

// TestRunGivesUp: Run calls its function ten times at most, and not after the end of its context, which comes in the ninth pause.
func TestRunGivesUp(t *testing.T) {
	for most, why := range map[int]error{10: nil, 9: context.Canceled} {
		synctest.Test(t, func(t *testing.T) {
			pool, calls := stubPool(t), 0
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := locksqlc.Run(ctx, pool, nil, func(*sql.Tx) error {
				if calls++; calls == 9 && why != nil {
					time.AfterFunc(time.Millisecond, cancel)
				}
				return fmt.Errorf("try %d: %w", calls, txlock.ErrDeadlock)
			})
			testdb.ErrorIf(t, calls != most || !errors.Is(err, txlock.ErrDeadlock) || why != nil && !errors.Is(err, why) || why != nil && txlock.Retryable(err) || !strings.Contains(err.Error(), fmt.Sprintf("after %d tries: try %[1]d: ", most)),
				"Run called fn %d times and returned %v", calls, err)
			idle(t, pool)
		})
	}
}

// TestRunRefuses calls everything that runs a function with what it refuses. Not even a transaction is begun.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	begun := new(faulty)
	db := sql.OpenDB(begun)
	defer func() { check(t, db.Close()) }()
	inTx := map[bool]func(*sql.Tx) error{true: func(*sql.Tx) error { t.Error("fn was called"); return nil }}
	under := map[bool]func(context.Context) error{true: func(context.Context) error { t.Error("fn was called"); return nil }}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	all := map[string]func(ctx context.Context, db *sql.DB, key txlock.Key, some bool) error{
		"Run of two keys": func(ctx context.Context, db *sql.DB, key txlock.Key, some bool) error {
			return locksqlc.Run(ctx, db, []txlock.Key{txlock.Named("good"), key}, inTx[some])
		},
		"Do": func(ctx context.Context, db *sql.DB, key txlock.Key, some bool) error {
			return locksqlc.Do(ctx, db, key, under[some])
		},
		"TryDo": func(ctx context.Context, db *sql.DB, key txlock.Key, some bool) error {
			return locksqlc.TryDo(ctx, db, key, under[some])
		},
	}
	for _, name := range []string{"Optimistic", "Once"} {
		all[name] = func(ctx context.Context, db *sql.DB, key txlock.Key, some bool) error {
			return ways[name](ctx, db, key, inTx[some])
		}
	}
	for name, run := range all {
		says(t, name+" on nil", run(t.Context(), nil, txlock.Named("key"), true), nil, "*sql.DB")
		says(t, name+" of nil", run(t.Context(), db, txlock.Named("key"), false), nil, "function")
		for _, key := range []txlock.Key{{}, txlock.Named(""), txlock.Named("\xff"), txlock.NewFamily[int]("order").Key(0)} {
			isError(t, fmt.Sprintf("%s with the key %q", name, key), run(t.Context(), db, key, true), txlock.ErrInvalidKey)
		}
		isError(t, name+" after the end of its context", run(ended, db, txlock.Named("key"), true), context.Canceled)
	}
	_, _, err := locksqlc.OnceValue[int](t.Context(), db, txlock.Named("key"), nil)
	testdb.ErrorIf(t, err == nil, "OnceValue of nil succeeds")
	testdb.ErrorIf(t, begun.begun != 0, "%d transactions were begun", begun.begun)
}

// TestRunOptions runs at READ COMMITTED, where plain reads see what others commit.
func TestRunOptions(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		table, key := numbers(t, db), uniqueKey(t, "run")
		for level, want := range map[sql.IsolationLevel]int{sql.LevelReadCommitted: 5, sql.LevelRepeatableRead: 0} {
			db.Exec(t, "UPDATE "+table+" SET v = 0")
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				wantCount(t, tx, 0, "SELECT v FROM "+table)
				db.Exec(t, "UPDATE "+table+" SET v = 5")
				testdb.Equal(t, fmt.Sprintf("read at %v", level), count(t, tx, "SELECT v FROM "+table), want)
				return nil
			}, &sql.TxOptions{Isolation: level})
			check(t, err)
		}
		err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }, &sql.TxOptions{ReadOnly: true})
		isError(t, "an exclusive lock in a read-only transaction", err, txlock.ErrReadOnly)
		err = locksqlc.Optimistic(t.Context(), pool, key, func(*sql.Tx) error { return nil }, nil, &sql.TxOptions{})
		isError(t, "the options of two transactions", err, txlock.ErrInvalidOption)
		idle(t, pool)
	})
}

// lockVariables are the session variables that a lock could change.
var lockVariables = map[testdb.Engine]string{
	testdb.MariaDB: "GROUP_CONCAT(variable_value ORDER BY variable_name) FROM information_schema.session_variables WHERE variable_name IN ('innodb_lock_wait_timeout', 'max_statement_time', 'innodb_snapshot_isolation')",
	testdb.MySQL:   "CONCAT_WS('/', @@SESSION.innodb_lock_wait_timeout, @@SESSION.max_execution_time, @@SESSION.transaction_isolation)",
}

// TestSessionVariablesStay looks at a connection after bounded locks of all kinds, with every outcome.
func TestSessionVariablesStay(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		pool.SetMaxOpenConns(1)
		variables := func(on testdb.Queryer) (text string) {
			t.Helper()
			check(t, on.QueryRowContext(t.Context(), "SELECT "+lockVariables[db.Engine()]).Scan(&text))
			return text
		}
		id, before := testdb.ConnID(t, pool), variables(pool)
		fresh := uniqueKey(t, "made by another")
		holding(t, newPool(t, db.Config(), true), fresh)
		old := uniqueKey(t, "old")
		check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{old}, func(*sql.Tx) error { return nil }))
		for _, key := range []txlock.Key{fresh, uniqueKey(t, "new"), old, hashed.Key(7)} {
			err := locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
				scope := join(t, tx)
				for _, verb := range []func(context.Context, txlock.Key) (txlock.Grant, error){
					scope.TryRLock, scope.WaitAtMost(100 * time.Millisecond).RLock, scope.WaitAtMost(1100 * time.Millisecond).Lock, scope.TryLock,
				} {
					if _, err := verb(t.Context(), key); err != nil && !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, txlock.ErrWaitTimeout) && !errors.Is(err, txlock.ErrUpgrade) {
						t.Errorf("the lock of %v: %v", key, err)
					}
					testdb.Equal(t, fmt.Sprintf("the variables behind the lock of %v", key), variables(tx), before)
				}
				return nil
			})
			check(t, err)
		}
		after := variables(pool)
		testdb.ErrorIf(t, after != before || testdb.ConnID(t, pool) != id, "the variables are %s, %s before", after, before)
	})
}

// restoresAfterDeadlock has the server roll back a transaction in a bounded wait. It returns the connections, before and after.
func restoresAfterDeadlock(t *testing.T, db *testdb.DB, pool *sql.DB) (before, now int64) {
	t.Helper()
	pool.SetMaxOpenConns(1)
	const variable = "SELECT @@SESSION.innodb_lock_wait_timeout"
	before, was := testdb.ConnID(t, pool), count(t, pool, variable)
	c, made := cross(t, db), uniqueKey(t, "made")
	lock(t, join(t, c.other), made)
	tx := begin(t, pool)
	exec(t, tx, "UPDATE "+c.table+" SET v = 1 WHERE id = 1")
	scope := join(t, tx)
	isError(t, "the bounded wait", c.meets(t, before, func() error { return testdb.Err(scope.WaitAtMost(30*time.Second).Lock(t.Context(), made)) }), txlock.ErrDeadlock)
	_ = tx.Rollback() // the transaction is over
	testdb.Equal(t, "innodb_lock_wait_timeout for the next user of the connection", count(t, pool, variable), was)
	return before, testdb.ConnID(t, pool)
}

// TestRunBesideDDL: a transaction is run again if DDL has rebuilt a table since its snapshot, one of lockstep's or of the program's.
func TestRunBesideDDL(t *testing.T) {
	onOwnPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		ctx, key, first, other := t.Context(), uniqueKey(t, "ddl"), numbers(t, db), numbers(t, db)
		check(t, locksqlc.Run(ctx, pool, []txlock.Key{key}, func(*sql.Tx) error { return nil }))
		check(t, testdb.Err(locksqlc.Once(ctx, pool, key, func(*sql.Tx) error { return nil })))
		for table, call := range map[string]func(tx *sql.Tx) error{
			"lockstep_locks":   func(tx *sql.Tx) error { return testdb.Err(join(t, tx).Lock(ctx, key)) },
			"lockstep_centers": func(tx *sql.Tx) error { return testdb.Err(join(t, tx).Lock(ctx, hashed.Key(7))) },
			"lockstep_once":    func(tx *sql.Tx) error { return testdb.Err(join(t, tx).Once(ctx, key)) },
			other:              func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, "SELECT v FROM "+other).Scan(new(int)) },
		} {
			var errs []error
			err := locksqlc.Run(ctx, pool, nil, func(tx *sql.Tx) error {
				check(t, tx.QueryRowContext(ctx, "SELECT v FROM "+first).Scan(new(int)))
				if errs == nil {
					db.Exec(t, "ALTER TABLE "+table+" FORCE")
				}
				errs = append(errs, call(tx))
				return errs[len(errs)-1]
			})
			testdb.ErrorIf(t, err != nil || len(errs) != 2 || table != other && !errors.Is(errs[0], txlock.ErrStaleSnapshot),
				"after DDL on %s: %v, of %v", table, err, errs)
		}
	})
}

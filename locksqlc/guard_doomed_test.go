package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// The victim of a deadlock holds the first row of a table, the other transaction the last
// one. Between them there are few rows, or so many that a reply begins before it ends.
const (
	crossed    = "id INT PRIMARY KEY, v INT NOT NULL, pad CHAR(200) NOT NULL"
	lastRow    = 4000
	digits     = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
	allNumbers = "(SELECT 1 + a.d + b.d * 10 + c.d * 100 + e.d * 1000 AS n FROM " +
		digits + " a, " + digits + " b, " + digits + " c, " + digits + " e) numbers WHERE n <= 4000"
	rowsOfIt = " SELECT n, 0, REPEAT('x', 200) FROM " + allNumbers
	fewOfIt  = " SELECT n, 0, REPEAT('x', 200) FROM (SELECT 1 + d AS n FROM " +
		digits + " first UNION ALL SELECT 3991 + d FROM " + digits + " last) numbers"
)

// victim is the transaction that a deadlock rolls back.
type victim struct {
	db    *sql.DB
	scope *txlock.Scope // nil where it holds no lock
	key   txlock.Key
	tx    *sql.Tx
	table string
	ready *sql.Stmt // of the pool, prepared before the transaction
	conn  int64
}

// shape is a way in which error 1213 can reach a program.
type shape struct {
	name string
	run  func(ctx context.Context, v *victim) error
	many bool // the table has many rows
}

// shapes are the ways in which error 1213 can reach a program. Each waits for the last row.
var shapes = []shape{
	{name: "Exec", run: sent("text", "UPDATE %s SET v = v + 1 WHERE id = 4000")},
	{name: "Exec with arguments", run: sent("text", "UPDATE %s SET v = v + ? WHERE id = ?", 1, lastRow)},
	{name: "Exec of two statements", run: sent("text", "SELECT 1; UPDATE %s SET v = v + 1 WHERE id = 4000")},
	{name: "row by key", run: row("SELECT id FROM %s WHERE id = 4000 FOR UPDATE")},
	{name: "row by key with an argument", run: row("SELECT id FROM %s WHERE id = ? FOR UPDATE", lastRow)},
	{name: "row of a range", run: row("SELECT id FROM %s WHERE id > 3999 FOR UPDATE")},
	{name: "row of a range with an argument", run: row("SELECT id FROM %s WHERE id > ? FOR UPDATE", lastRow-1)},
	{name: "after thousands of rows", many: true, run: func(ctx context.Context, v *victim) error {
		rows, err := v.tx.QueryContext(ctx, "SELECT id, pad FROM "+v.table+" WHERE id > 1 ORDER BY id FOR UPDATE")
		if err != nil {
			return fmt.Errorf("before any row: %w", err)
		}
		n := 0
		for rows.Next() {
			n++
		}
		if n < 1000 {
			return fmt.Errorf("only %d rows came", n)
		}
		return errors.Join(rows.Err(), rows.Close())
	}},
	{name: "rows closed early", many: true, run: func(ctx context.Context, v *victim) error {
		rows, err := v.tx.QueryContext(ctx, "SELECT id, pad FROM "+v.table+" WHERE id > 1 ORDER BY id FOR UPDATE")
		if err != nil {
			return err
		}
		rows.Next()
		if err := rows.Err(); err != nil {
			return fmt.Errorf("too early: %w", err)
		}
		return rows.Close()
	}},
	{name: "in the second result", run: sent("rows", "SELECT 1; SELECT id FROM %s WHERE id > 3999 FOR UPDATE")},
	{name: "between two results", run: func(ctx context.Context, v *victim) error {
		rows, err := v.tx.QueryContext(ctx, "SELECT 1; UPDATE "+v.table+" SET v = v + 1 WHERE id = 4000; SELECT 2")
		if err != nil {
			return err
		}
		if rows.NextResultSet() {
			return errors.New("there is a second result")
		}
		return errors.Join(rows.Err(), rows.Close())
	}},
	{name: "in a result that nobody reads", run: func(ctx context.Context, v *victim) error {
		rows, err := v.tx.QueryContext(ctx, "SELECT 1; UPDATE "+v.table+" SET v = v + 1 WHERE id = 4000")
		if err != nil {
			return err
		}
		return rows.Close()
	}},
	{name: "prepared by the transaction", run: func(ctx context.Context, v *victim) error {
		stmt, err := v.tx.PrepareContext(ctx, "SELECT id FROM "+v.table+" WHERE id > ? FOR UPDATE")
		if err != nil {
			return err
		}
		return errors.Join(stmt.QueryRowContext(ctx, lastRow-1).Scan(new(int)), stmt.Close())
	}},
	{name: "prepared by the pool", run: func(ctx context.Context, v *victim) error {
		return testdb.Err(v.tx.StmtContext(ctx, v.ready).ExecContext(ctx, lastRow))
	}},
}

func sent(by, query string, args ...any) func(context.Context, *victim) error {
	return func(ctx context.Context, v *victim) error {
		return sendBy(ctx, v.tx, by, fmt.Sprintf(query, v.table), args...)
	}
}

func row(query string, args ...any) func(context.Context, *victim) error {
	return func(ctx context.Context, v *victim) error {
		return v.tx.QueryRowContext(ctx, fmt.Sprintf(query, v.table), args...).Scan(new(int))
	}
}

// deadlock lets a transaction lose a deadlock by a statement: the other one has written far more.
func deadlock(t *testing.T, db *testdb.DB, pool *sql.DB, s shape) *victim {
	t.Helper()
	v, err := lost(t, db, pool, false, s)
	testdb.FatalIf(t, number(err) != 1213, "the statement was answered %v, want the deadlock", err)
	return v
}

// lost does what deadlock does, for a statement that may be answered with anything.
func lost(t *testing.T, db *testdb.DB, pool *sql.DB, locks bool, s shape) (*victim, error) {
	t.Helper()
	v := &victim{db: pool, table: db.CreateTable(t, "crossed", crossed)}
	ballast := db.CreateTable(t, "ballast", "id INT PRIMARY KEY AUTO_INCREMENT, v INT NOT NULL")
	rows, weight := fewOfIt, digits+" a, "+digits+" b"
	if s.many {
		rows, weight = rowsOfIt, allNumbers
	}
	db.Exec(t, "INSERT INTO "+v.table+rows)
	v.ready = testdb.Got(pool.PrepareContext(t.Context(), "UPDATE "+v.table+" SET v = v + 1 WHERE id = ?"))(t)
	t.Cleanup(func() { _ = v.ready.Close() })

	other := begin(t, newPool(t, db.Config(), false))
	exec(t, other, "INSERT INTO "+ballast+" (v) SELECT 1 FROM "+weight)
	exec(t, other, "UPDATE "+v.table+" SET v = v + 1 WHERE id = 4000")
	v.tx = begin(t, pool)
	v.conn = testdb.ConnID(t, v.tx)
	if locks {
		v.scope, v.key = join(t, v.tx), uniqueKey(t, "victim")
		lock(t, v.scope, v.key)
	}
	exec(t, v.tx, "SAVEPOINT early")
	exec(t, v.tx, "UPDATE "+v.table+" SET v = 100 WHERE id = 1")

	answered := db.Waiting(t, v.conn, func() error { return s.run(t.Context(), v) })
	exec(t, other, "UPDATE "+v.table+" SET v = v + 1 WHERE id = 1")
	err := <-answered
	check(t, other.Rollback())
	return v, err
}

func TestDeadlockDooms(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, interpolate := range []bool{false, true} {
			for i, s := range shapes {
				t.Run(fmt.Sprintf("%s/interpolate=%t", s.name, interpolate), func(t *testing.T) {
					sides(t, func(t *testing.T, guarded bool) {
						if !guarded && i > 0 { // one shows what the guard is for
							return
						}
						pool := newPool(t, db.Config(func(cfg *mysql.Config) {
							cfg.InterpolateParams, cfg.MultiStatements = interpolate, true
						}), guarded)
						pool.SetMaxOpenConns(1)
						v := deadlock(t, db, pool, s)
						if guarded {
							v.isDoomed(t)
						} else {
							v.commitsHalf(t)
						}
					})
				})
			}
		}
	})
}

// commitsHalf shows what the guard is for: on a plain pool what is written after the deadlock stays, and nothing else.
func (v *victim) commitsHalf(t *testing.T) {
	t.Helper()
	exec(t, v.tx, "INSERT INTO "+v.table+" VALUES (9000, 0, '')")
	check(t, v.tx.Commit())
	wantCount(t, v.db, 1, "SELECT COUNT(*) FROM "+v.table+" WHERE id = 9000 OR id = 1 AND v = 100")
}

// isDoomed fails the test if anything more of the transaction reaches the server.
func (v *victim) isDoomed(t *testing.T) {
	t.Helper()
	ctx, write := t.Context(), "INSERT INTO "+v.table+" VALUES (9000, 0, '')"
	err := testdb.Err(v.tx.ExecContext(ctx, write))
	wantDoomed(t, "Exec", err, 1213)
	isError(t, "Exec", err, txlock.ErrDeadlock)
	wantDoomed(t, "Exec with an argument", testdb.Err(v.tx.ExecContext(ctx, "INSERT INTO "+v.table+" VALUES (?, 0, '')", 9000)), 1213)
	wantDoomed(t, "Query", testdb.Err(v.tx.QueryContext(ctx, "SELECT 1")), 1213)
	wantDoomed(t, "QueryRow", v.tx.QueryRowContext(ctx, "SELECT 1").Scan(new(int)), 1213)
	wantDoomed(t, "QueryRow with an argument", v.tx.QueryRowContext(ctx, "SELECT ?", 1).Scan(new(int)), 1213)
	for _, text := range []string{"SAVEPOINT x", "ROLLBACK TO SAVEPOINT early", "ROLLBACK", "COMMIT", "BEGIN", write + "; " + write} {
		wantDoomed(t, text, testdb.Err(v.tx.ExecContext(ctx, text)), 1213)
	}
	stmt := testdb.Got(v.tx.PrepareContext(ctx, "UPDATE "+v.table+" SET v = 9 WHERE id = ?"))(t)
	wantDoomed(t, "Exec of a statement prepared now", testdb.Err(stmt.ExecContext(ctx, 1)), 1213)
	wantDoomed(t, "QueryRow of it", stmt.QueryRowContext(ctx, 1).Scan(new(int)), 1213)
	wantDoomed(t, "Exec of the pool's statement", testdb.Err(v.tx.StmtContext(ctx, v.ready).ExecContext(ctx, 1)), 1213)

	wantDoomed(t, "Commit", v.tx.Commit(), 1213)
	wantCount(t, v.db, 0, "SELECT COUNT(*) FROM "+v.table+" WHERE v <> 0 OR id = 9000")
	testdb.Equal(t, "the connection of the pool, which was good", testdb.ConnID(t, v.db), v.conn)
	tx := begin(t, v.db)
	isError(t, "the pool's statement in the next transaction", testdb.Err(tx.StmtContext(ctx, v.ready).ExecContext(ctx, 2)), nil)
	isError(t, "the next transaction", tx.Commit(), nil)
}

const counters = "id INT PRIMARY KEY, v INT NOT NULL"

// oneSecond makes lock waits end soon.
func oneSecond(cfg *mysql.Config) { cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1"} }

// soon is far below innodb_lock_wait_timeout, 50 s: so long the server would keep the locks of a session whose client is gone.
const soon = 20 * time.Second

// waiter is a transaction that holds a key and waits for something that another holds.
type waiter struct {
	tx   *sql.Tx
	mine txlock.Key
	conn int64
}

// newWaiter begins one whose key has a row: else its waiters would lock a gap that other tests need.
func newWaiter(t *testing.T, pool *sql.DB) waiter {
	t.Helper()
	w := waiter{tx: begin(t, pool), mine: uniqueKey(t, "mine")}
	check(t, txlock.Ensure(t.Context(), pool, w.mine))
	w.conn = testdb.ConnID(t, w.tx)
	lock(t, join(t, w.tx), w.mine)
	return w
}

// isAbandoned fails the test unless the key of the waiter is free at once, and its transaction is doomed.
func (w waiter) isAbandoned(t *testing.T, db *testdb.DB) {
	t.Helper()
	begun := time.Now()
	holding(t, newPool(t, db.Config(), true), w.mine)
	took := time.Since(begun)
	testdb.ErrorIf(t, took > soon, "the lock of the abandoned session was free after %v", took)
	db.WaitGone(t, w.conn)
	wantDoomed(t, "the next statement", testdb.Err(w.tx.ExecContext(t.Context(), "SELECT 1")), 0)
	wantDoomed(t, "Commit", w.tx.Commit(), 0)
}

// TestAbandonedStatementIsKilled cancels a statement that waits, and a query that waits after its first rows.
func TestAbandonedStatementIsKilled(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "crossed", crossed)
		db.Exec(t, "INSERT INTO "+table+rowsOfIt)
		pool := newPool(t, db.Config(), true)
		exec(t, begin(t, pool), "UPDATE "+table+" SET v = 1 WHERE id = 4000")
		for _, by := range sendings[:2] {
			w := newWaiter(t, pool)
			text := "UPDATE " + table + " SET v = 2 WHERE id = 4000"
			if by == "rows" {
				text = "SELECT id, pad FROM " + table + " ORDER BY id FOR UPDATE"
			}
			err := cancelled(t, db, w.conn, func(ctx context.Context) error { return sendBy(ctx, w.tx, by, text) })
			isError(t, text, err, context.Canceled)
			slow := errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "end the abandoned session") // a busy server hasn't answered to the KILL within a second
			if err != context.Canceled && !slow && by != "rows" {                                                  //nolint:errorlint // unchanged, as a plain pool has it
				t.Errorf("the cancelled statement returned %#v, want context.Canceled itself", err)
			}
			w.isAbandoned(t, db)
		}
	})
}

// swallowed are statements whose deadlock may be answered with success, or with another error. {T} is the table, {P} what is made.
var swallowed = []struct {
	name, makes string
	before      string // executed in the transaction, before the statement
	text        string
	args        []any
	engine      testdb.Engine // "" for both
	again       bool          // the transaction may be run again
	result      int           // the number of the error that the server answers with; 0 is success or 1213
}{
	{name: "DO", text: "DO (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE)", again: true},
	{name: "DO with an argument", text: "DO (SELECT v FROM {T} WHERE id = ? FOR UPDATE)", args: []any{4000}, again: true},
	{name: "DO of a function", makes: "FUNCTION {P}() RETURNS INT READS SQL DATA RETURN (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE)", text: "DO {P}()", again: true},
	{name: "DO under SET STATEMENT", text: "SET STATEMENT max_statement_time=60 FOR DO (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE)", engine: testdb.MariaDB, again: true},
	{name: "DO of two", text: "DO 1, (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE), 2", again: true},
	{name: "DO among others", text: "SET @a = 1; DO (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE); SET @b = 1"},
	{name: "EXECUTE of DO", before: "PREPARE s FROM 'DO (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE)'", text: "EXECUTE s"},
	{name: "CALL that goes on", makes: "PROCEDURE {P}() BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; UPDATE {T} SET v = v + 1 WHERE id = 4000; END", text: "CALL {P}()"},
	{name: "CALL with rows", makes: "PROCEDURE {P}() BEGIN DECLARE CONTINUE HANDLER FOR 1213 SELECT 'again'; UPDATE {T} SET v = v + 1 WHERE id = 4000; END", text: "CALL {P}()"},
	{name: "CALL with another error", makes: "PROCEDURE {P}() BEGIN DECLARE EXIT HANDLER FOR 1213 SIGNAL SQLSTATE '45000'; UPDATE {T} SET v = v + 1 WHERE id = 4000; END", text: "CALL {P}()", result: 1644},
	{name: "compound", text: "BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; UPDATE {T} SET v = v + 1 WHERE id = 4000; END", engine: testdb.MariaDB},
	{name: "INSERT IGNORE", text: "INSERT IGNORE INTO {T} SELECT 7000, 0, '' FROM {T} WHERE id = 4000 FOR UPDATE", again: true},
	{name: "SET of a subquery", text: "SET @v = (SELECT v FROM {T} WHERE id = 4000 FOR UPDATE)", again: true},
}

// TestSwallowedDeadlock: whatever the reply to a victim of a deadlock is, nothing more of its transaction reaches the server.
func TestSwallowedDeadlock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for i, s := range swallowed {
			if s.engine != "" && s.engine != db.Engine() {
				continue
			}
			for _, locks := range []bool{false, true} {
				for j, by := range []string{"text", "interpolated", "prepared", "rows", "unread"} {
					if !testdb.Meet(i, locks, j) {
						continue
					}
					t.Run(fmt.Sprintf("%s/locks=%t/%s", s.name, locks, by), func(t *testing.T) {
						t.Parallel()
						if by == "prepared" && (strings.Contains(s.text, ";") || s.text == "EXECUTE s") {
							by = "text" // no server prepares these
						}
						cfg := db.AdminConfig(func(cfg *mysql.Config) { cfg.MultiStatements, cfg.InterpolateParams = true, by == "interpolated" })
						v, err := lost(t, db, reading(t, by != "unread", cfg), locks, shape{run: func(ctx context.Context, v *victim) error {
							fill := strings.NewReplacer("{T}", v.table, "{P}", "own_"+v.table).Replace
							if kind, _, made := strings.Cut(s.makes, " "); made {
								db.Exec(t, "CREATE "+fill(s.makes))
								t.Cleanup(func() { _, _ = db.Admin().Exec(fill("DROP " + kind + " {P}")) })
							}
							if s.before != "" {
								exec(t, v.tx, fill(s.before))
							}
							return sendBy(ctx, v.tx, by, fill(s.text), s.args...)
						}})
						v.isOver(t, err, s.result, s.again)
					})
				}
			}
		}
	})
}

// reading opens a pool that can read the flags of the replies, or one that can't.
func reading(t *testing.T, can bool, cfg *mysql.Config) *sql.DB {
	t.Helper()
	if can {
		return newPool(t, cfg, true)
	}
	return openPool(t, cfg, under(wrappers["commenter"]))
}

// isOver fails the test unless the transaction refuses every further statement, nothing of it stays, and its error says whether it may be run again.
func (v *victim) isOver(t *testing.T, answer error, result int, again bool) {
	t.Helper()
	n := int(number(answer))
	testdb.ErrorIf(t, n != result && (result != 0 || n != 1213), "the statement was answered %v", answer)
	wantOver(t, "the next write", testdb.Err(v.tx.ExecContext(t.Context(), "INSERT INTO "+v.table+" VALUES (9000, 0, '')")), again)
	if v.scope != nil {
		wantHeld(t, "after the deadlock", v.scope, v.key, false)
		isError(t, "Lock", testdb.Err(v.scope.Lock(t.Context(), v.key)), txlock.ErrTxDoomed)
	}
	wantOver(t, "Commit", v.tx.Commit(), again)
	wantCount(t, v.db, 0, "SELECT COUNT(*) FROM "+v.table+" WHERE v <> 0 OR id IN (7000, 9000)")
}

// committing are the ways in which a transaction can commit before its end. {T} is the table, {P} a procedure.
var committing = []struct {
	name, procedure, text string
	anew                  bool // a plain pool without a lock doesn't know
}{
	{name: "DDL", text: "CREATE TABLE IF NOT EXISTS {T}_made (id INT)"},
	{name: "DDL that fails", text: "CREATE TABLE {T} (id INT)", anew: true},
	{name: "COMMIT", text: "COMMIT"},
	{name: "COMMIT AND CHAIN", text: "COMMIT AND CHAIN", anew: true},
	{name: "BEGIN", text: "BEGIN", anew: true},
	{name: "in a comment", text: "/*! COMMIT AND CHAIN */", anew: true},
	{name: "among others", text: "SELECT 1; COMMIT; BEGIN", anew: true},
	{name: "CALL", procedure: "COMMIT", text: "CALL {P}()"},
	{name: "CALL that begins again", procedure: "BEGIN COMMIT; START TRANSACTION; END", text: "CALL {P}()", anew: true},
	{name: "CALL that fails", procedure: "BEGIN COMMIT AND CHAIN; SIGNAL SQLSTATE '45000'; END", text: "CALL {P}()", anew: true},
}

// TestRunNeverRepeatsCommitted: what a function has written and committed, before a deadlock, is not written again.
func TestRunNeverRepeatsCommitted(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for i, shape := range committing {
			for _, locks := range []bool{false, true} {
				if shape.anew && !guarded && !locks || !testdb.Meet(i, locks, guarded) {
					continue
				}
				t.Run(fmt.Sprintf("%s/locks=%t", shape.name, locks), func(t *testing.T) {
					t.Parallel()
					c := cross(t, db)
					fill, pool := c.fill(t, shape.procedure), newPool(t, db.AdminConfig(severalTexts), guarded)
					c.runsOnce(t, pool, locks, func(tx *sql.Tx) error {
						if _, err := tx.ExecContext(t.Context(), fill(shape.text)); errors.Is(err, txlock.ErrTxDoomed) {
							return &mysql.MySQLError{Number: 1213, Message: "as a function may say that hides the reason"}
						}
						return c.answerTo(t, tx, "UPDATE "+c.table+" SET v = v + 1 WHERE id <= 2 ORDER BY id")
					})
					wantCount(t, pool, 1, "SELECT COUNT(*) FROM "+c.table+" WHERE id > 1000")
				})
			}
		}
	})
}

// TestLostWithALargeStatement: a statement that is lost with its connection, and may be too large, is not sent again.
func TestLostWithALargeStatement(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		lose := testdb.Losing(func(packet string) (lost, arrives bool) { return len(packet) > 1<<20, false })
		pool := newPool(t, db.AdminConfig(lose), true)
		text := strings.Repeat("x", 1<<20)
		for name, send := range map[string]func(tx *sql.Tx) error{
			"text":     func(tx *sql.Tx) error { return testdb.Err(tx.ExecContext(t.Context(), "DO '"+text+"'")) },
			"prepared": func(tx *sql.Tx) error { return testdb.Err(tx.ExecContext(t.Context(), "DO ?", text)) },
		} {
			runs := 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "large")}, func(tx *sql.Tx) error {
				runs++
				return send(tx)
			})
			testdb.ErrorIf(t, runs != 1 || err == nil || txlock.Retryable(err) || !strings.Contains(err.Error(), "max_allowed_packet"),
				"%s: %d runs, %v", name, runs, err)
		}
	})
}

// TestRejectReadOnly proves that a guarded pool refuses the parameter that hides ErrReadOnly.
func TestRejectReadOnly(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.RejectReadOnly = true }), true)
		err := locksqlc.Run(t.Context(), pool, nil, func(*sql.Tx) error { return nil })
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "rejectReadOnly=true") || txlock.Retryable(err), "%v", err)
	})
}

// TestOnceValueAndThePackets stores values of all sizes around maxAllowedPacket.
func TestOnceValueAndThePackets(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.MaxAllowedPacket = 200_000 }), guarded)
		for _, size := range []int{90_000, 105_000, 199_970, 205_000, 270_000} {
			key, value := uniqueKey(t, "size"), strings.Repeat("x", size)
			for _, wantFirst := range []bool{true, false} {
				got, first, err := locksqlc.OnceValue(t.Context(), pool, key, func(*sql.Tx) (string, error) { return value, nil })
				testdb.ErrorIf(t, got != value || first != wantFirst || err != nil, "%d bytes: %d came back, first %t: %v", size, len(got), first, err)
			}
		}
	})
}

// TestUnknownReplies: what can't be read grants nothing and dooms the transaction; what is granted is locked.
func TestUnknownReplies(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		busy, free := uniqueKey(t, "busy"), uniqueKey(t, "free")
		holder, pool := newPool(t, db.Config(), true), single(newPool(t, db.Config(), guarded))
		check(t, txlock.Ensure(t.Context(), holder, busy, free))
		holding(t, holder, busy)
		for _, c := range []struct {
			key   txlock.Key
			verbs []string
		}{
			{busy, []string{"TryLock", "TryRLock", "LockAny"}},
			{free, []string{"Lock", "RLock", "TryLock", "LockAll", "CompareAndBump"}},
		} {
			for _, name := range c.verbs {
				what := fmt.Sprintf("%s of %v", name, c.key)
				tx, scope := joined(t, pool)
				exec(t, tx, "SET character_set_results = utf16")
				err := verbs[name](t.Context(), scope, c.key)
				testdb.ErrorIf(t, err == nil && (c.key == busy || isFree(t, db, c.key)), "%s is granted, and another has it, too", what)
				wantHeld(t, what, scope, c.key, err == nil)
				if errors.Is(err, fault.ErrReply) {
					wantOver(t, what, err, false)
					isError(t, what+": Verify", scope.Verify(t.Context()), txlock.ErrTxDoomed)
					isError(t, what+": a lock behind it", testdb.Err(scope.TryLock(t.Context(), c.key)), txlock.ErrTxDoomed)
				}
				unread := errors.Is(scope.Verify(t.Context()), fault.ErrReply)
				err = tx.Commit()
				testdb.ErrorIf(t, guarded && unread && !errors.Is(err, txlock.ErrTxDoomed), "%s: Commit: %v, want ErrTxDoomed", what, err)
				exec(t, pool, "SET character_set_results = utf8mb4") // for the next one
			}
		}
	})
}

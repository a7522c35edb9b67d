package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// What a guarded connection knows about its transaction.

// sessionStatus returns what the server has counted of a session.
func sessionStatus(tb testing.TB, on testdb.Queryer, variable string) (n int) {
	tb.Helper()
	check(tb, on.QueryRowContext(tb.Context(), "SHOW SESSION STATUS LIKE '"+variable+"'").Scan(new(string), &n))
	return n
}

// wantNoTransaction fails the test unless the scope has ended with its transaction.
func wantNoTransaction(t *testing.T, scope *txlock.Scope, key txlock.Key) {
	t.Helper()
	isError(t, "Lock after the end", testdb.Err(scope.Lock(t.Context(), key)), txlock.ErrNoTransaction)
	isError(t, "Verify after the end", scope.Verify(t.Context()), txlock.ErrNoTransaction)
	wantHeld(t, "after the end", scope, key, false)
}

func TestScopeEndsWithTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "ends")
		pool.SetMaxOpenConns(1)
		for name, end := range map[string]func(*sql.Tx) error{"Commit": (*sql.Tx).Commit, "Rollback": (*sql.Tx).Rollback} {
			tx, scope := joined(t, pool)
			lock(t, scope, key)
			isError(t, name, end(tx), nil)
			wantNoTransaction(t, scope, key)
			isError(t, "Join after "+name, testdb.Err(locksqlc.Join(t.Context(), tx)), txlock.ErrNoTransaction)
			next := begin(t, pool) // on the same connection
			testdb.ErrorIf(t, join(t, next) == scope, "the next transaction has the scope of the last one")
			wantNoTransaction(t, scope, key)
			check(t, next.Rollback())
		}
	})
}

func joinConn(tb testing.TB, conn *sql.Conn) *txlock.Scope {
	tb.Helper()
	return testdb.Got(locksqlc.JoinConn(tb.Context(), conn))(tb)
}

func TestTransactionsAsText(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "text")
		conn := takeConn(t, pool)
		isError(t, "JoinConn before BEGIN", testdb.Err(locksqlc.JoinConn(t.Context(), conn)), txlock.ErrNoTransaction)
		for _, text := range []struct{ begin, end string }{
			{"BEGIN", "COMMIT"},
			{"begin work", "ROLLBACK WORK"},
			{"START TRANSACTION", "COMMIT AND NO CHAIN"},
			{"START TRANSACTION READ WRITE", "rollback"},
			{"/* a trace */ BEGIN;", "COMMIT /* the end */;"},
		} {
			exec(t, conn, text.begin)
			scope := joinConn(t, conn)
			testdb.ErrorIf(t, joinConn(t, conn) != scope, "%s: the second JoinConn gives another scope", text.begin)
			lock(t, scope, key)
			wantLocked(t, text.begin, db, key)
			exec(t, conn, text.end)
			wantFree(t, db, key)
			wantNoTransaction(t, scope, key)
			isError(t, "JoinConn after "+text.end, testdb.Err(locksqlc.JoinConn(t.Context(), conn)), txlock.ErrNoTransaction)
		}
		for _, chain := range []string{"COMMIT AND CHAIN", "ROLLBACK WORK AND CHAIN"} {
			exec(t, conn, "BEGIN")
			first := joinConn(t, conn)
			lock(t, first, key)
			exec(t, conn, chain)
			wantFree(t, db, key)
			wantNoTransaction(t, first, key)
			second := joinConn(t, conn)
			testdb.ErrorIf(t, second == first || joinConn(t, conn) != second, "%s: JoinConn gives other scopes than one for the next transaction", chain)
			lock(t, second, key)
			exec(t, conn, "COMMIT")
		}
		exec(t, conn, "BEGIN")
		first := joinConn(t, conn)
		lock(t, first, key)
		exec(t, conn, "BEGIN") // commits the first
		isError(t, "Lock after a second BEGIN", testdb.Err(first.Lock(t.Context(), key)), txlock.ErrTxDoomed)
		lock(t, joinConn(t, conn), key)
		exec(t, conn, "COMMIT")
	})
}

// TestSavepointFreesLock: what ROLLBACK TO has freed, in every form of the text, isn't held, and is locked anew.
func TestSavepointFreesLock(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, text := range []string{"ROLLBACK TO early", "rollback work to savepoint `early`", "DELETE FROM lockstep_once WHERE 0 = 1; ROLLBACK TO SAVEPOINT early"} {
			pool := newPool(t, db.AdminConfig(severalTexts), true)
			key := uniqueKey(t, "savepoint")
			check(t, txlock.Ensure(t.Context(), pool, key))
			tx, scope := joined(t, pool)
			exec(t, tx, "SAVEPOINT early")
			first := lock(t, scope, key)
			exec(t, tx, text)
			wantHeld(t, text, scope, key, false)
			between := begin(t, newPool(t, db.Config(), true))
			second, err := join(t, between).TryLock(t.Context(), key)
			testdb.FatalIf(t, err != nil, "%s: the server keeps the lock, so that nothing is shown: %v", text, err)
			check(t, between.Commit())
			if third := lock(t, scope, key); third.Token() <= second.Token() || second.Token() <= first.Token() {
				t.Errorf("%s: tokens %d, %d, %d", text, first.Token(), second.Token(), third.Token())
			}
			wantLocked(t, text, db, key)
			check(t, tx.Commit())
		}
	})
}

// TestSavepointOfCaller: a transaction counts as ended whose procedure rolls back to its caller's savepoint: no server says what is left.
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
			wantOver(t, "CALL of "+body, testdb.Err(tx.ExecContext(t.Context(), "CALL "+procedure+"()")), false)
			wantHeld(t, "after "+body, scope, key, false)
			isError(t, "Commit after CALL of "+body, tx.Commit(), txlock.ErrTxDoomed)
		}
	})
}

// shown shows what it wraps, as XSAM/otelsql does.
type shown struct{ testdb.Edited }

func (s shown) Raw() driver.Conn { return s.Conn }

// commented adds a comment before and after each text, as otelsql's WithSQLCommenter and Datadog's propagation do.
func commented(query string) string {
	return "/* app='shop' */ " + query + " /* traceparent='00-1-1-00' */"
}

// unchecked has no Validator and no SessionResetter, like nhat/otelsql, sqlhooks and instrumentedsql.
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
	"nothing":   func(c testdb.Conn) driver.Conn { return c },
	"commenter": func(c testdb.Conn) driver.Conn { return testdb.Edited{Conn: c, Edit: commented} },
	"lines": func(c testdb.Conn) driver.Conn {
		return testdb.Edited{Conn: c, Edit: func(query string) string { return "-- app='shop'\n" + query + " -- CALL COMMIT (NULL, 0)" }}
	},
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

// onWrapped runs a test on pools with each wrapper in each place. The cases run in parallel, or one after the other.
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

// TestWrappedJoins asks whether the transaction is that of a guarded pool, and locks by each verb.
func TestWrappedJoins(t *testing.T) {
	onWrapped(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		key := uniqueKey(t, "wrapped")
		check(t, txlock.Ensure(t.Context(), pool, key))
		tx, scope := joined(t, pool)
		testdb.ErrorIf(t, scope.Guarded() != guarded, "Guarded() is %t, want %t", scope.Guarded(), guarded)
		err := txlock.CheckGuarded(t.Context(), pool)
		testdb.ErrorIf(t, guarded && err != nil || !guarded && (!errors.Is(err, txlock.ErrUnguarded) || !strings.Contains(err.Error(), "put the wrapper under it")),
			"CheckGuarded: %v, want ErrUnguarded with the reason where the pool is guarded and not heard", err)
		if err := txlock.CheckGuarded(t.Context(), newPool(t, db.Config(), false)); !errors.Is(err, txlock.ErrUnguarded) || strings.Contains(err.Error(), "put the wrapper under it") {
			t.Errorf("CheckGuarded of a plain pool: %v, want ErrUnguarded", err)
		}
		again := join(t, tx)
		testdb.ErrorIf(t, (again == scope) != guarded, "whether Join gives the same scope twice doesn't fit")
		_, err = locksqlc.Join(t.Context(), tx, txlock.RequireGuarded())
		testdb.ErrorIf(t, errors.Is(err, txlock.ErrUnguarded) == guarded, "Join with RequireGuarded: %v", err)
		lock(t, scope, key)
		wantLocked(t, "a wrapped pool", db, key)
		check(t, tx.Commit())
		wantFree(t, db, key)
		for name, call := range verbs {
			tx, scope := joined(t, pool)
			isError(t, name, call(t.Context(), scope, uniqueKey(t, name)), nil)
			check(t, tx.Commit())
		}
		for name, run := range ways {
			runs := 0
			isError(t, name, run(t.Context(), pool, uniqueKey(t, name), func(*sql.Tx) error { runs++; return nil }), nil)
			testdb.Equal(t, name+": runs", runs, 1)
		}
	})
}

// TestWrappedEnds: on a guarded pool DDL dooms a transaction with a lock, and a wait that is cancelled frees its other locks at once.
func TestWrappedEnds(t *testing.T) {
	onWrapped(t, true, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		if !guarded {
			return // as on a plain pool: the server keeps locks until the wait ends
		}
		for _, statement := range []string{"ALTER TABLE " + db.CreateTable(t, "wrapped", counters) + " ADD COLUMN w INT", "/*! COMMIT AND CHAIN */"} {
			tx := holding(t, pool, uniqueKey(t, "wrapped"))
			_, err := tx.ExecContext(t.Context(), statement)
			if number(err) == 1295 {
				continue // the wrapper has prepared what the server doesn't prepare
			}
			check(t, err)
			isError(t, "Commit after "+statement, tx.Commit(), txlock.ErrTxDoomed)
		}
		held, wanted := uniqueKey(t, "held"), uniqueKey(t, "wanted")
		check(t, txlock.Ensure(t.Context(), pool, held))
		holding(t, newPool(t, db.Config(), true), wanted)
		tx, scope := joined(t, pool)
		id := testdb.ConnID(t, tx)
		lock(t, scope, held)
		err := cancelled(t, db, id, func(ctx context.Context) error { return testdb.Err(scope.Lock(ctx, wanted)) })
		isError(t, "Lock", err, context.Canceled)
		db.WaitGone(t, id)
		wantFree(t, db, held)
	})
}

// TestWrappedRestores: a deadlock in a bounded wait leaves no variable behind for later users of the connection. One case after the other.
func TestWrappedRestores(t *testing.T) {
	onWrapped(t, false, func(t *testing.T, db *testdb.DB, pool *sql.DB, _ bool) {
		before, now := restoresAfterDeadlock(t, db, pool)
		testdb.ErrorIf(t, now != before && strings.HasSuffix(t.Name(), "/nothing_under_it"), "the pool has connection %d instead of %d, which was good", now, before)
	})
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

// savepointNames are pairs of names, as they are written, that a server takes for one or for two: it compares them by a collation.
var savepointNames = [][2]string{
	{"a", "b"},
	{"a", "`A`"},
	{"a", "`a `"},
	{"a", "ä"},
	{"Ä", "`á`"},
	{"s", "ß"},
	{"k", "\u212a"}, // KELVIN SIGN
	{"И", "й"},
	{"保存点", "保存處"},
	{"か", "が"},
	{"`a\u0301`", "`a`"},
	{"a", "`a\t`"},
	{"a$1", "A$1"},
	{"`a-b`", "`A-B`"},
	{strings.Repeat("x", 64) + "1", strings.Repeat("x", 64) + "2"},
}

// TestSavepointNames: no lock counts as held which another session can take, whatever the savepoints are called.
func TestSavepointNames(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		db.CreateProcedure(t, "sets_savepoint", "SAVEPOINT deep")
		pool, other := newPool(t, db.AdminConfig(), true), takeConn(t, newPool(t, db.Config(), false))
		keys := []txlock.Key{uniqueKey(t, "savepoint"), uniqueKey(t, "savepoint"), uniqueKey(t, "savepoint")}
		check(t, txlock.Ensure(t.Context(), pool, keys...))
		one, two, freed := 0, 0, 0
		for _, names := range savepointNames {
			same, ok := oneSavepoint(t, other, names)
			if !ok {
				continue // the server doesn't take it for a name
			}
			if same {
				one++
			} else {
				two++
			}
			for _, history := range savepointHistories {
				freed += keepsToServer(t, pool, other, keys, history, names)
			}
		}
		testdb.ErrorIf(t, one < 4 || two < 3 || freed < 30, "%d pairs are one name and %d two, %d locks were freed: too few to show anything", one, two, freed)
	})
}

// oneSavepoint asks the server whether two names are one. It returns false for what isn't a name.
func oneSavepoint(t *testing.T, conn *sql.Conn, names [2]string) (same, ok bool) {
	t.Helper()
	exec(t, conn, "BEGIN")
	defer exec(t, conn, "ROLLBACK")
	for _, name := range names {
		if _, err := conn.ExecContext(t.Context(), "SAVEPOINT "+name); err != nil {
			t.Logf("SAVEPOINT %q: %v", name, err)
			return false, false
		}
		exec(t, conn, "RELEASE SAVEPOINT "+name)
	}
	exec(t, conn, "SAVEPOINT "+names[0])
	_, err := conn.ExecContext(t.Context(), "RELEASE SAVEPOINT "+names[1])
	return err == nil, true
}

// savepointHistories are steps with savepoints of two names, 1 and 2, that leave a lock undone if those are one, or two.
var savepointHistories = []string{
	"SAVEPOINT 1|LOCK|ROLLBACK TO 2",
	"SAVEPOINT 1|LOCK|SAVEPOINT 2|LOCK|ROLLBACK TO 1",
	"SAVEPOINT 1|SAVEPOINT x|LOCK|SAVEPOINT 2|RELEASE SAVEPOINT 1|ROLLBACK TO x",
	"SAVEPOINT x|SAVEPOINT 1|LOCK|RELEASE SAVEPOINT 2|ROLLBACK TO x",
	"CALL sets_savepoint()|LOCK|ROLLBACK TO deep", // that nobody has seen set
}

// keepsToServer compares what counts as held after a history with what another session can lock, and counts that.
func keepsToServer(t *testing.T, pool *sql.DB, other *sql.Conn, keys []txlock.Key, history string, names [2]string) (freed int) {
	t.Helper()
	conn := takeConn(t, pool)
	defer func() { _ = conn.Close() }()
	exec(t, conn, "BEGIN")
	defer exec(t, conn, "ROLLBACK")
	scope := joinConn(t, conn)
	locked := keys[:0]
	for step := range strings.SplitSeq(history, "|") {
		if step == "LOCK" {
			lock(t, scope, keys[len(locked)])
			locked = keys[:len(locked)+1]
			continue
		}
		step = strings.NewReplacer("1", names[0], "2", names[1]).Replace(step)
		_, _ = conn.ExecContext(t.Context(), step) // 1305, where it has none of that name
	}
	for i, key := range locked {
		if count(t, other, "SELECT COUNT(*) FROM lockstep_locks WHERE name = ? FOR UPDATE SKIP LOCKED", key.String()) == 0 {
			continue
		}
		freed++
		grant, held := scope.Held(key)
		testdb.ErrorIf(t, held, "%s with %q: lock %d counts as held, %v, and another can take it", history, names, i, grant)
	}
	return freed
}

// TestSavepointKeepsEarlierLocks: a lock older than a savepoint stays held without a statement; a younger one is sent again.
func TestSavepointKeepsEarlierLocks(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, interpolate := range []bool{false, true} {
			pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.InterpolateParams = interpolate }), true)
			early, fresh := uniqueKey(t, "early"), uniqueKey(t, "fresh")
			check(t, txlock.Ensure(t.Context(), pool, early))
			tx, scope := joined(t, pool)
			first, made := lock(t, scope, early), lock(t, scope, fresh)
			for range 2 {
				late := uniqueKey(t, "late")
				exec(t, tx, "SAVEPOINT middle")
				lock(t, scope, late)
				exec(t, tx, "ROLLBACK TO SAVEPOINT middle")
				wantHeld(t, "from after the savepoint", scope, late, false)
				for key, want := range map[txlock.Key]txlock.Grant{early: first, fresh: made} {
					testdb.FatalIf(t, isFree(t, db, key), "the server has freed %v", key)
					held, ok := scope.Held(key)
					testdb.ErrorIf(t, !ok || held != want, "Held(%v): %v, %t, want %v", key, held, ok, want)
					before := sessionStatus(t, tx, "Questions")
					again := lock(t, scope, key)
					testdb.ErrorIf(t, again != want, "locked again: %v, want %v", again, want)
					n := sessionStatus(t, tx, "Questions") - before
					testdb.ErrorIf(t, n != 1, "re-entry sent %d statements", n-1)
				}
				lock(t, scope, late)
			}
			check(t, tx.Commit())
		}
	})
}

// lostCommits are statements that commit, or don't, and then wait for row 2 of {T}.
var lostCommits = []struct {
	name, procedure, text string
	again                 bool // nothing was committed, and a guarded pool knows that
}{
	{name: "CALL", procedure: "BEGIN COMMIT; START TRANSACTION; UPDATE {T} SET v = v WHERE id = 2; END", text: "CALL {P}()"},
	{name: "CALL with rows", procedure: "BEGIN SELECT 1; COMMIT; UPDATE {T} SET v = v WHERE id = 2; END", text: "CALL {P}()"},
	{name: "several", text: "COMMIT AND CHAIN; UPDATE {T} SET v = v WHERE id = 2"},
	{name: "several with rows", text: "SELECT 1; COMMIT; UPDATE {T} SET v = v WHERE id = 2"},
	{name: "DDL", text: "CREATE TABLE {T}_made AS SELECT * FROM {T} WHERE id = 2"},
	{name: "UPDATE", text: "UPDATE {T} SET v = v WHERE id = 2", again: true},
}

// TestRunAfterLostCommit: what may be committed when the connection is lost isn't written again; a guarded pool knows what isn't.
func TestRunAfterLostCommit(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for i, shape := range lostCommits {
			for j, by := range sendings[:2] {
				if !testdb.Meet(i, j, guarded) {
					continue
				}
				t.Run(shape.name+"/"+by, func(t *testing.T) {
					t.Parallel()
					c, calls := cross(t, db), 0
					fill := c.fill(t, shape.procedure)
					key := uniqueKey(t, "run")
					pool := newPool(t, db.AdminConfig(severalTexts), guarded)
					err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
						if calls++; calls > 1 {
							return nil
						}
						exec(t, tx, "INSERT INTO "+c.table+" VALUES (1001, 1)")
						id := testdb.ConnID(t, tx)
						answered := db.Waiting(t, id, func() error { return sendBy(t.Context(), tx, by, fill(shape.text)) })
						db.Kill(t, id)
						err := <-answered
						testdb.ErrorIf(t, err == nil, "the statement was answered with success")
						db.WaitGone(t, id)
						return nil
					})
					committed := count(t, pool, "SELECT COUNT(*) FROM "+c.table+" WHERE id = 1001")
					again := shape.again && guarded
					if want := map[bool]int{true: 2, false: 1}[again]; calls != want || (err == nil) != again || err != nil && (!errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err)) {
						t.Errorf("Run called fn %d times and returned %v", calls, err)
					}
					testdb.ErrorIf(t, (committed == 1) == shape.again, "%d rows were committed", committed)
					idle(t, pool)
					wantFree(t, db, key)
				})
			}
		}
	})
}

// TestAutocommitAfterDDL goes on after DDL, when no transaction is open: the guard takes none of these statements for the end of one.
func TestAutocommitAfterDDL(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, ddl := range []string{"CREATE TABLE IF NOT EXISTS {T}_made (id INT)", "COMMIT"} {
			for _, joined := range []bool{false, true} {
				for _, reads := range []bool{false, true} {
					c := &crossing{db: db, table: db.CreateTable(t, "severed", counters)}
					fill := c.fill(t, "UPDATE {T} SET v = v + 1")
					pool := reading(t, reads, db.AdminConfig(severalTexts))
					tx := begin(t, pool)
					if joined {
						join(t, tx)
					}
					for _, text := range []string{
						ddl, "INSERT INTO {T} VALUES (1, 1)", "CALL {P}()", "DO 1", "ALTER TABLE {T} COMMENT 'x'", "SELECT 1; DO 2", "CALL {P}()",
						"BEGIN", "CALL {P}()", "COMMIT", "CALL {P}()", "ROLLBACK", "UPDATE {T} SET v = v + 1",
					} {
						exec(t, tx, fill(text))
					}
					isError(t, fmt.Sprintf("%s, joined %t, reads %t: Commit", ddl, joined, reads), tx.Commit(), nil)
					testdb.Equal(t, fmt.Sprintf("%s, joined %t, reads %t", ddl, joined, reads), count(t, pool, "SELECT v FROM "+c.table), 6)
				}
			}
		}
	})
}

// TestEndedByText: the error says what a statement has done that ended the transaction.
func TestEndedByText(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.AdminConfig(severalTexts), true)
		for i, c := range []struct{ text, name, says string }{
			{"COMMIT", "COMMIT", committedBy},
			{"commit work and chain", "COMMIT WORK AND CHAIN", committedBy},
			{"COMMIT RELEASE", "COMMIT RELEASE", committedBy},
			{"COMMIT; DO 1", "COMMIT", committedBy},
			{"BEGIN", "BEGIN", committedBy},
			{"ALTER TABLE {T} COMMENT 'ended'", "ALTER TABLE {T} COMMENT", committedBy},
			{"ROLLBACK", "ROLLBACK", rolledBackBy},
			{"rollback work", "ROLLBACK WORK", rolledBackBy},
			{"ROLLBACK AND CHAIN", "ROLLBACK AND CHAIN", rolledBackBy},
			{"ROLLBACK RELEASE", "ROLLBACK RELEASE", rolledBackBy},
			{"ROLLBACK; DO 1", "ROLLBACK", rolledBackBy},
			{"DO 1; ROLLBACK", "ROLLBACK", rolledBackBy},
			{"XA END 'x'", "", ""},
			{"XA PREPARE 'x'", "", ""},
		} {
			for j, name := range []string{"Run", "Run, no key", "Once", "OnceValue"} {
				if !testdb.Meet(i, j) {
					continue
				}
				t.Run(c.text+"/"+name, func(t *testing.T) {
					t.Parallel()
					table, calls := db.CreateTable(t, "ended", counters), 0
					var answer error
					err := ways[name](t.Context(), pool, uniqueKey(t, "ended"), func(tx *sql.Tx) error {
						calls++
						exec(t, tx, "INSERT INTO "+table+" VALUES (1, 1)")
						_, answer = tx.ExecContext(t.Context(), strings.ReplaceAll(c.text, "{T}", table))
						return nil
					})
					rows := 1
					if c.says == rolledBackBy {
						rows = 0
					}
					n := count(t, pool, "SELECT COUNT(*) FROM "+table)
					testdb.ErrorIf(t, n != rows || calls != 1, "%d calls have left %d rows, want %d", calls, n, rows)
					if c.says == "" { // refused by the server, which keeps the transaction open
						testdb.ErrorIf(t, answer == nil || err != nil, "the statement was answered by %v, the call returned %v", answer, err)
						return
					}
					said := fmt.Sprintf(c.says, strings.ToUpper(strings.ReplaceAll(c.name, "{T}", table)))
					testdb.ErrorIf(t, !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !strings.Contains(err.Error(), said),
						"the call returned %v, want %q", err, said)
					testdb.ErrorIf(t, err != nil && strings.Contains(err.Error(), "committed") != (rows == 1),
						"%d rows are left, and the call returned %v", rows, err)
				})
			}
		}
	})
}

const (
	committedBy  = "it was committed before its end by the statement %q"
	rolledBackBy = "the statement %q rolled it back and released its locks"
)

// TestFunctionThatEndsItsTransaction: Run says of a function that has committed or rolled back the transaction itself, and doesn't call it again.
func TestFunctionThatEndsItsTransaction(t *testing.T) {
	deadlock := &mysql.MySQLError{Number: 1213, Message: "of something else"}
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB, guarded bool) {
		for _, c := range []struct {
			end     func(tx *sql.Tx) error
			returns error
			rows    int
			says    string
			onPlain string
		}{
			{end: (*sql.Tx).Commit, rows: 1, says: "by its own function, and what that did stays", onPlain: "which called Commit or Rollback"},
			{end: (*sql.Tx).Commit, returns: deadlock, rows: 1, says: "by its own function, and what that did stays", onPlain: "committed before its end"},
			{end: (*sql.Tx).Commit, returns: fmt.Errorf("of another transaction: %w", txlock.ErrDeadlock), rows: 1, says: "by its own function, and what that did stays", onPlain: "committed before its end"},
			{end: (*sql.Tx).Commit, returns: errInner, rows: 1, says: "by its own function, and what that did stays"},
			{end: (*sql.Tx).Rollback, says: "which called Commit or Rollback", onPlain: "which called Commit or Rollback"},
			{end: (*sql.Tx).Rollback, returns: errInner},
		} {
			table, key, calls := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "ended"), 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				calls++
				_, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()")
				return errors.Join(err, c.end(tx), c.returns)
			})
			says, n := c.says, count(t, db.Admin(), "SELECT COUNT(*) FROM "+table)
			if !guarded {
				says = c.onPlain
			}
			testdb.ErrorIf(t, err == nil || c.returns != nil && !errors.Is(err, c.returns) || txlock.Retryable(err) || !strings.Contains(err.Error(), says) || calls != 1 || n != c.rows,
				"%v after %d calls, with %d rows, want %q and %d", err, calls, n, says, c.rows)
			if c.returns != deadlock && errors.Is(err, sql.ErrTxDone) != (c.returns == nil) { //nolint:errorlint // the one above
				t.Errorf("%v, behind %v of the function", err, c.returns)
			}
			idle(t, pool)
			wantFree(t, db, key)
		}
	})
}

// TestLockTablesUnderAutocommitOff: LOCK TABLES, as MySQL's manual has it, commits a transaction with a lock, and begins another at once.
func TestLockTablesUnderAutocommitOff(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "locked", "id INT PRIMARY KEY")
		for _, texts := range [][]string{
			{"SET autocommit = 0", "LOCK TABLES " + table + " WRITE"},
			{"SET autocommit = 0; LOCK TABLES " + table + " WRITE"},
			{"SET @@autocommit = OFF, @a = 1", "DO 1", "ANALYZE TABLE " + table, "SELECT * FROM " + table},
			{"SET autocommit = 0", "SET autocommit = 1, autocommit = 0", "SELECT * FROM " + table},
			{"PREPARE s FROM 'SET autocommit = 0'; EXECUTE s", "LOCK TABLES " + table + " READ"},
		} {
			for _, by := range sendings[:2] {
				pool, key := newPool(t, db.AdminConfig(severalTexts), true), uniqueKey(t, "tables")
				tx, scope := joined(t, pool)
				lock(t, scope, key)
				for _, text := range texts {
					if err := sendBy(t.Context(), tx, by, text); err != nil && !errors.Is(err, txlock.ErrTxDoomed) {
						t.Fatal(err)
					}
				}
				wantFree(t, db, key)
				wantHeld(t, fmt.Sprintf("%q", texts), scope, key, false)
				_, err := scope.Lock(t.Context(), key)
				for what, err := range map[string]error{"Lock": err, "Verify": scope.Verify(t.Context()), "Commit": tx.Commit()} {
					wantOver(t, fmt.Sprintf("%q: %s", texts, what), err, false)
				}
				check(t, pool.PingContext(t.Context()))
			}
		}
	})
}

// TestChainedTransaction: COMMIT under completion_type frees the locks, and the transaction behind it stays open nowhere.
func TestChainedTransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := newPool(t, db.Config(), true), uniqueKey(t, "chained")
		table := db.CreateTable(t, "chained", "id INT PRIMARY KEY AUTO_INCREMENT")
		pool.SetMaxOpenConns(1)
		for i, end := range []error{nil, errors.New("rolled back")} {
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
				exec(t, tx, "SET completion_type = CHAIN")
				return end
			})
			isError(t, "Run", err, end)
			exec(t, pool, "INSERT INTO "+table+" VALUES ()")
			wantCount(t, db.Admin(), i+1, "SELECT COUNT(*) FROM "+table)
		}

		conn := takeConn(t, pool)
		exec(t, conn, "BEGIN")
		exec(t, conn, "SET completion_type = CHAIN")
		exec(t, conn, "COMMIT")
		scope := joinConn(t, conn)
		isError(t, "a lock behind a chained COMMIT", testdb.Err(scope.Lock(t.Context(), key)), schema.ErrSession)
		exec(t, conn, "SET completion_type = NO_CHAIN")
		lock(t, scope, key)
		wantLocked(t, "the chained transaction", db, key)
		exec(t, conn, "COMMIT")
		wantFree(t, db, key)

		always := single(newPool(t, db.Config(func(cfg *mysql.Config) { cfg.Params = map[string]string{"completion_type": "1"} }), true))
		tx := begin(t, always) // without locks, which are refused there
		exec(t, tx, "INSERT INTO "+table+" VALUES ()")
		check(t, tx.Commit())
		exec(t, always, "INSERT INTO "+table+" VALUES ()")
		wantCount(t, db.Admin(), 4, "SELECT COUNT(*) FROM "+table)
	})
}

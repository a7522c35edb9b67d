package locksqlc_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

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
						if err := <-answered; err == nil {
							t.Error("the statement was answered with success")
						}
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

// TestAutocommitAfterDDL goes on after DDL, when no transaction is open: the guard takes
// none of these statements for the end of one.
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
					n := count(t, pool, "SELECT v FROM "+c.table)
					testdb.ErrorIf(t, n != 6, "%s, joined %t, reads %t: %d, want 6", ddl, joined, reads, n)
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
					if !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) || !strings.Contains(err.Error(), said) {
						t.Errorf("the call returned %v, want %q", err, said)
					}
					if err != nil && strings.Contains(err.Error(), "committed") != (rows == 1) {
						t.Errorf("%d rows are left, and the call returned %v", rows, err)
					}
				})
			}
		}
	})
}

const (
	committedBy  = "it was committed before its end by the statement %q"
	rolledBackBy = "the statement %q rolled it back and released its locks"
)

// TestFunctionThatEndsItsTransaction proves that Run says of a function that has committed
// or rolled back the transaction itself, and doesn't call it again.
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
			if err == nil || c.returns != nil && !errors.Is(err, c.returns) || txlock.Retryable(err) || !strings.Contains(err.Error(), says) || calls != 1 || n != c.rows {
				t.Errorf("%v after %d calls, with %d rows, want %q and %d", err, calls, n, says, c.rows)
			}
			if c.returns != deadlock && errors.Is(err, sql.ErrTxDone) != (c.returns == nil) { //nolint:errorlint // the one above
				t.Errorf("%v, behind %v of the function", err, c.returns)
			}
			idle(t, pool)
			wantFree(t, db, key)
		}
	})
}

// moves are statements after which no lock would hold on their session. {O} is another
// database with lockstep's tables, {P} a procedure.
var moves = []struct {
	text   string
	want   error
	engine testdb.Engine // "" for both
}{
	{text: "USE {O}", want: schema.ErrSession},
	{text: "/*! USE {O} */", want: schema.ErrSession},
	{text: "SET autocommit = 0", want: schema.ErrAutocommit},
	{text: "SET @@completion_type = CHAIN", want: schema.ErrSession},
	{text: "SET SESSION completion_type = 2", want: schema.ErrSession},
	{text: "SET timestamp = 1", want: schema.ErrSession},
	{text: "SET character_set_results = utf16", want: schema.ErrCharset},
	{text: "SET collation_connection = utf32_bin", want: schema.ErrCharset},
	{text: "SET @a = 1; SET autocommit = 0; SELECT 1", want: schema.ErrAutocommit},
	{text: "PREPARE s FROM 'SET autocommit = 0'; EXECUTE s", want: schema.ErrAutocommit},
	{text: "CALL {P}()", want: schema.ErrSession},
	{text: "BEGIN NOT ATOMIC SET completion_type = 1; END", want: schema.ErrSession, engine: testdb.MariaDB},
}

// TestMovedSession: a lock of a session that was moved is refused, and its connection not used again.
func TestMovedSession(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		other, procedure := db.Name()+"_moved", "own_"+strings.ToLower(rand.Text())
		db.CreateProcedure(t, procedure, "SET SESSION completion_type = 1")
		db.Exec(t, "CREATE DATABASE "+other)
		t.Cleanup(func() { _, _ = db.Admin().Exec("DROP DATABASE " + other) })
		db.Exec(t, "CREATE TABLE "+other+".lockstep_locks LIKE lockstep_locks")
		pool := single(newPool(t, db.AdminConfig(severalTexts), true))
		for i, m := range moves {
			if m.engine != "" && m.engine != db.Engine() {
				continue
			}
			text := strings.NewReplacer("{O}", other, "{P}", procedure).Replace(m.text)
			send := func(on prepares, by string) bool { return sendBy(t.Context(), on, by, text) == nil } // the server prepares not all
			by := sendings[i%len(sendings)]
			tx, scope := joined(t, pool)
			first := uniqueKey(t, "first")
			lock(t, scope, first)
			if send(tx, by) || send(tx, "text") {
				refuses(t, scope, m.want, text)
			} else {
				t.Errorf("%s isn't sent", text)
			}
			wantHeld(t, text+", "+by, scope, first, true)
			check(t, tx.Commit())
			send(pool, by)
			check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{first}, func(*sql.Tx) error {
				wantLocked(t, text, db, first)
				return nil
			}))
		}
		wantCount(t, db.Admin(), 0, "SELECT COUNT(*) FROM "+other+".lockstep_locks")
	})
}

// refuses makes sure that every kind of lock is refused.
func refuses(tb testing.TB, s *txlock.Scope, want error, why string) {
	tb.Helper()
	key := uniqueKey(tb, "refused")
	verify := func(ctx context.Context, s *txlock.Scope, _ txlock.Key) error { return s.Verify(ctx) }
	for what, call := range map[string]verb{
		"Lock": verbs["Lock"], "TryLock": verbs["TryLock"], "RLock": verbs["RLock"], "LockAll": verbs["LockAll"], "Version": verbs["Version"], "Once": verbs["Once"], "Verify": verify,
	} {
		says(tb, what+" after "+why, call(tb.Context(), s, key), want, "don't ")
	}
}

// TestLockTablesUnderAutocommitOff follows the idiom of MySQL's manual in a transaction that
// holds a lock: LOCK TABLES commits it, and begins another at once.
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
		isError(t, "a lock behind a chained COMMIT", second(scope.Lock(t.Context(), key)), schema.ErrSession)
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

func managerOf(tb testing.TB, pool *sql.DB) *lease.Manager {
	tb.Helper()
	m, err := lease.NewManager(pool)
	check(tb, err)
	tb.Cleanup(func() { check(tb, m.Close(context.Background())) })
	return m
}

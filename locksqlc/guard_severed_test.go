package locksqlc_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
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
					leasetest.Equal(t, fmt.Sprintf("%s, joined %t, reads %t", ddl, joined, reads), count(t, pool, "SELECT v FROM "+c.table), 6)
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

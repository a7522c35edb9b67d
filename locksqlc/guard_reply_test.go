package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// swallowed are the statements that can be the victim of a deadlock and still be answered
// with success, or with another error. {T} is the table, {P} the name of what was made
// before.
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

// TestSwallowedDeadlock proves that whatever the reply to a victim of a deadlock is,
// nothing more of its transaction reaches the server.
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
						cfg := db.AdminConfig(func(cfg *mysql.Config) {
							cfg.MultiStatements, cfg.InterpolateParams = true, by == "interpolated"
						})
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

// isOver fails the test unless the transaction refuses every further statement, nothing
// of it stays, and its error says whether it may be run again.
func (v *victim) isOver(t *testing.T, answer error, result int, again bool) {
	t.Helper()
	if n := int(number(answer)); n != result && (result != 0 || n != 1213) {
		t.Errorf("the statement was answered %v", answer)
	}
	_, err := v.tx.ExecContext(t.Context(), "INSERT INTO "+v.table+" VALUES (9000, 0, '')")
	if !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) != again {
		t.Errorf("the next write: %v (to be tried again: %t), want ErrTxDoomed (%t)", err, txlock.Retryable(err), again)
	}
	if v.scope != nil {
		wantHeld(t, "after the deadlock", v.scope, v.key, false)
		isError(t, "Lock", second(v.scope.Lock(t.Context(), v.key)), txlock.ErrTxDoomed)
	}
	if err := v.tx.Commit(); !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) != again {
		t.Errorf("Commit: %v (to be tried again: %t), want ErrTxDoomed (%t)", err, txlock.Retryable(err), again)
	}
	wantCount(t, v.db, 0, "SELECT COUNT(*) FROM "+v.table+" WHERE v <> 0 OR id IN (7000, 9000)")
}

// committing are the ways in which a transaction can commit before its end. {T} is the
// table, {P} a procedure.
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

// TestRunNeverRepeatsCommitted has fn write, commit by one of the ways, and then run into
// a deadlock: what was written must not be written again.
func TestRunNeverRepeatsCommitted(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		for i, shape := range committing {
			for _, locks := range []bool{false, true} {
				if shape.anew && !guarded && !locks || !testdb.Meet(i, locks, guarded) {
					continue
				}
				t.Run(fmt.Sprintf("%s/locks=%t", shape.name, locks), func(t *testing.T) {
					t.Parallel()
					c, calls := cross(t, db), 0
					fill := c.fill(t, shape.procedure)
					var keys []txlock.Key
					if locks {
						keys = append(keys, uniqueKey(t, "run"))
					}
					pool := newPool(t, db.AdminConfig(severalTexts), guarded)
					err := locksqlc.Run(t.Context(), pool, keys, func(tx *sql.Tx) error {
						calls++
						exec(t, tx, "INSERT INTO "+c.table+" VALUES (?, 1)", 1000+calls)
						_, err := tx.ExecContext(t.Context(), fill(shape.text))
						if calls > 1 {
							return nil
						}
						if errors.Is(err, txlock.ErrTxDoomed) {
							return &mysql.MySQLError{Number: 1213, Message: "as a function may say that hides the reason"}
						}
						return c.answerTo(t, tx, "UPDATE "+c.table+" SET v = v + 1 WHERE id <= 2 ORDER BY id")
					})
					if calls != 1 || !errors.Is(err, txlock.ErrTxDoomed) || txlock.Retryable(err) {
						t.Errorf("Run called fn %d times and returned %v", calls, err)
					}
					wantCount(t, pool, 1, "SELECT COUNT(*) FROM "+c.table+" WHERE id > 1000")
					idle(t, pool)
					wantFree(t, db, keys...)
				})
			}
		}
	})
}

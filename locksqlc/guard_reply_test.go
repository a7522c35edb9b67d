package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/fault"
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
	wantOver(t, "the next write", second(v.tx.ExecContext(t.Context(), "INSERT INTO "+v.table+" VALUES (9000, 0, '')")), again)
	if v.scope != nil {
		wantHeld(t, "after the deadlock", v.scope, v.key, false)
		isError(t, "Lock", second(v.scope.Lock(t.Context(), v.key)), txlock.ErrTxDoomed)
	}
	wantOver(t, "Commit", v.tx.Commit(), again)
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

// TestLostWithALargeStatement loses the connection with a statement of more than a megabyte,
// as a server does for which it is too large: it is not sent again, and the error says why.
func TestLostWithALargeStatement(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		lose := testdb.Losing(func(packet string) (lost, arrives bool) { return len(packet) > 1<<20, false })
		pool := newPool(t, db.AdminConfig(lose), true)
		text := strings.Repeat("x", 1<<20)
		for name, send := range map[string]func(tx *sql.Tx) error{
			"text":     func(tx *sql.Tx) error { return second(tx.ExecContext(t.Context(), "DO '"+text+"'")) },
			"prepared": func(tx *sql.Tx) error { return second(tx.ExecContext(t.Context(), "DO ?", text)) },
		} {
			runs := 0
			err := locksqlc.Run(t.Context(), pool, []txlock.Key{uniqueKey(t, "large")}, func(tx *sql.Tx) error {
				runs++
				return send(tx)
			})
			if runs != 1 || err == nil || txlock.Retryable(err) || !strings.Contains(err.Error(), "max_allowed_packet") {
				t.Errorf("%s: %d runs, %v", name, runs, err)
			}
		}
	})
}

// TestRejectReadOnly proves that a guarded pool refuses the parameter that hides ErrReadOnly.
func TestRejectReadOnly(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(func(cfg *mysql.Config) { cfg.RejectReadOnly = true }), true)
		err := locksqlc.Run(t.Context(), pool, nil, func(*sql.Tx) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "rejectReadOnly=true") || txlock.Retryable(err) {
			t.Errorf("%v", err)
		}
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
				if got != value || first != wantFirst || err != nil {
					t.Errorf("%d bytes: %d came back, first %t: %v", size, len(got), first, err)
				}
			}
		}
	})
}

// TestUnknownReplies lets the server answer in a character set that nobody expects, in the
// middle of a transaction. What can't be read grants nothing, and dooms the transaction; what is
// granted is locked.
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
				if err == nil && (c.key == busy || isFree(t, db, c.key)) {
					t.Errorf("%s is granted, and another has it, too", what)
				}
				wantHeld(t, what, scope, c.key, err == nil)
				if errors.Is(err, fault.ErrReply) {
					wantOver(t, what, err, false)
					isError(t, what+": Verify", scope.Verify(t.Context()), txlock.ErrTxDoomed)
					isError(t, what+": a lock behind it", second(scope.TryLock(t.Context(), c.key)), txlock.ErrTxDoomed)
				}
				unread := errors.Is(scope.Verify(t.Context()), fault.ErrReply)
				if err := tx.Commit(); guarded && unread && !errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("%s: Commit: %v, want ErrTxDoomed", what, err)
				}
				exec(t, pool, "SET character_set_results = utf8mb4") // for the next one
			}
		}
	})
}

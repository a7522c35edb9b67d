package rawsql

import (
	"testing"

	"github.com/dca00107/lockstep/gen"
)

// TestBegin proves that each way to begin stands in the text before the statement, and
// that what isn't merged is refused.
func TestBegin(t *testing.T) {
	type merge func(b Begin, query string) (string, bool)
	exec := func(b Begin, query string) (string, bool) { return b.Compound(query, true) }
	rows := func(b Begin, query string) (string, bool) { return b.Compound(query, false) }
	full := Begin{Isolation: "READ COMMITTED", ReadOnly: true, Again: true}
	const levels = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ ONLY; "
	for _, c := range []struct {
		merge merge
		begin Begin
		query string
		want  string // "" if it is refused
	}{
		{exec, Begin{}, "-- name: X :exec\nINSERT INTO t\n", "BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); START TRANSACTION; INSERT INTO t RETURNING LAST_INSERT_ID(); END"},
		{exec, Begin{}, For(NoWait) + "-- name: X\nUPDATE t\n", "SET STATEMENT innodb_lock_wait_timeout=0 FOR BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); START TRANSACTION; UPDATE t; SELECT LAST_INSERT_ID(), ROW_COUNT(); END"},
		{rows, Begin{Make: "?", Isolation: "SERIALIZABLE", Again: true}, "SELECT 1", "BEGIN NOT ATOMIC ROLLBACK; " +
			"BEGIN DECLARE lockstep_name VARBINARY(255) DEFAULT ?; DECLARE lockstep_rows INT; DECLARE CONTINUE HANDLER FOR 1205 BEGIN END; " +
			"SELECT COUNT(*) INTO lockstep_rows FROM lockstep_locks WHERE name = lockstep_name; " +
			"IF lockstep_rows = 0 THEN SET STATEMENT innodb_lock_wait_timeout=0 FOR INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us) " +
			"VALUES (lockstep_name, 0, '-', 0, UNIX_TIMESTAMP() * 1000000); END IF; END; " +
			"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION; SELECT 1; END"},
		{exec, Begin{}, "SELECT 1", ""},
		{exec, Begin{}, "INSERT INTO t -- app='shop'", ""},
		{rows, Begin{}, "SELECT 1 # app='shop'", ""},
		{rows, full, "SELECT 1;", "BEGIN NOT ATOMIC ROLLBACK; " + levels + "SELECT 1; END"},
		{rows, Begin{}, Probe, ""},
		{rows, Begin{}, SetLockWait(7), ""},
		{rows, Begin{}, "CALL lockstep_lock_1(NULL)", ""},
		{Begin.Call, Begin{}, "CALL lockstep_lock_1(NULL, X'00')", "CALL lockstep_lock_1('', X'00')"},
		{Begin.Call, Begin{ReadOnly: true}, "CALL lockstep_lock_1(NULL, 1, NULL)", "CALL lockstep_lock_1('READ ONLY', 1, NULL)"},
		{Begin.Call, Begin{Isolation: "SERIALIZABLE", ReadOnly: true}, "CALL lockstep_lock_1(NULL)", "CALL lockstep_lock_1('SERIALIZABLE READ ONLY')"},
		{Begin.Call, Begin{Make: "X'00'"}, "CALL lockstep_lock_1(NULL, X'00')", "CALL lockstep_lock_1('MAKE', X'00')"},
		{Begin.Call, Begin{Isolation: "SERIALIZABLE", Make: "X'00'"}, "CALL lockstep_lock_1(NULL)", "CALL lockstep_lock_1('SERIALIZABLE MAKE')"},
		{Begin.Call, full, "CALL lockstep_lock_1(NULL)", ""},
		{Begin.Call, Begin{}, "CALL pay(NULL)", ""},
		{Begin.Call, Begin{}, "CALL lockstep_end_1(X'00')", ""},
		{Begin.Call, Begin{}, "SELECT 1", ""},
	} {
		got, ok := c.merge(c.begin, c.query)
		if !ok {
			got = ""
		}
		if got != c.want {
			t.Errorf("%q is %q, want %q", c.query, got, c.want)
		}
	}
}

// TestCommitIfRaised proves which statements commit by themselves.
func TestCommitIfRaised(t *testing.T) {
	for query, want := range map[string]bool{gen.CompareAndBumpNamed: true, For(AllowStale) + gen.CompareAndBumpCenter: true, gen.NamedToken: false, Probe: false} {
		if _, ok := CommitIfRaised(query); ok != want {
			t.Errorf("%q commits: %t", query, ok)
		}
	}
}

// TestCommitCall proves which calls commit by themselves, whatever stands behind them.
func TestCommitCall(t *testing.T) {
	for query, want := range map[string]string{
		"CALL lockstep_compare_1(NULL, X'00', NULL, 0, X'00', 1, 0)":                "CALL lockstep_compare_1(NULL, X'00', NULL, 0, X'00', 1, 1)",
		"-- x\nCALL lockstep_compare_1(NULL, NULL, 7, 0, X'00', 1, 0) /* (a, 0) */": "CALL lockstep_compare_1(NULL, NULL, 7, 0, X'00', 1, 1) /* (a, 0) */",
		"/* x */ CALL lockstep_compare_1(NULL, X'00', NULL, 0, X'00', 1, 0)":        "",
		"CALL lockstep_lock_all_1(NULL, X'00', NULL, X'00', 0)":                     "",
		"SELECT IF(a, 1, 0)": "",
	} {
		if got, ok := CommitCall(query); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %t", query, got, ok)
		}
	}
}

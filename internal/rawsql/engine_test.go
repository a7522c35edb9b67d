package rawsql

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestEngines proves that what can't share a text is refused: what each engine has no text for, what an
// attempt before has left open on MySQL, and more arguments than its procedure takes. The texts
// themselves are executed by the tests of locksqlc.
func TestEngines(t *testing.T) {
	t.Parallel()
	lock, compare, insert := Statement{Procedure: LockProcedure}, Statement{Procedure: CompareProcedure, Args: []any{0}}, Statement{Query: "INSERT"}
	shares := func(_ Statement, ok bool) bool { return ok }
	for of, is := range map[string]bool{
		"MariaDB begins with a procedure":       shares(MariaDB.Open(Begin{}, lock, true)),
		"MySQL begins again":                    shares(MySQL.Open(Begin{Again: true}, lock, true)),
		"MySQL begins without a procedure":      shares(MySQL.Open(Begin{}, insert, true)),
		"TiDB begins":                           shares(TiDB.Open(Begin{}, insert, true)),
		"MariaDB commits a procedure":           shares(MariaDB.Commit(compare)),
		"MySQL commits a lock":                  shares(MySQL.Commit(lock)),
		"MySQL commits without a procedure":     shares(MySQL.Commit(insert)),
		"TiDB commits":                          shares(TiDB.Commit(insert)),
		"MariaDB reads behind a procedure":      shares(MariaDB.LockThen(Begin{}, lock, "SELECT 1", 0)),
		"MySQL reads with 17 arguments":         shares(MySQL.LockThen(Begin{}, lock, "SELECT ?", 17)),
		"MySQL reads behind another procedure":  shares(MySQL.LockThen(Begin{}, compare, "SELECT 1", 0)),
		"MySQL reads behind a lock, and again":  shares(MySQL.LockThen(Begin{Again: true}, lock, "SELECT 1", 0)),
		"TiDB locks with a text of the program": shares(TiDB.LockThen(Begin{}, insert, "", 0)),
		"MySQL writes with 17 arguments":        shares(MySQL.WriteAndCommit("DELETE", 17, 1)),
	} {
		if is {
			t.Errorf("%s in one text", of)
		}
	}
	if s, _ := MariaDB.Open(Begin{}, Statement{Query: "INSERT", Inserts: true}, true); !strings.HasSuffix(s.Query, "INSERT RETURNING LAST_INSERT_ID(); END") {
		t.Errorf("what inserts is followed by a statement more: %s", s.Query)
	}
}

// TestWordsOfEngines: each engine has its words for what the others have, too.
func TestWordsOfEngines(t *testing.T) {
	t.Parallel()
	const read, turn = "SELECT 1 FROM t LOCK IN SHARE MODE", "SET SESSION innodb_lock_wait_timeout = 100000000, %s = 0, wait_timeout = 9"
	for _, c := range []struct {
		e                     Engine
		skips, turns, limited string
	}{
		{MariaDB, "SELECT 1 FROM t LOCK IN SHARE MODE SKIP LOCKED", "max_statement_time", "SET STATEMENT max_statement_time=0.007000 FOR " + read},
		{MySQL, "SELECT 1 FROM t FOR SHARE SKIP LOCKED", "max_execution_time", "SELECT /*+ MAX_EXECUTION_TIME(7) */ 1 FROM t LOCK IN SHARE MODE"},
	} {
		text, _ := c.e.Limited(7 * time.Millisecond)(Statement{Query: read}).SQL()
		for want, got := range map[string]string{c.skips: c.e.SkipShared(read), fmt.Sprintf(turn, c.turns): c.e.SetQueueWait(9), c.limited: text} {
			if got != want {
				t.Errorf("%s: %s, want %s", c.e.Name, got, want)
			}
		}
		if got := EngineOf("11.8.3-" + c.e.Name + "-log"); got != c.e {
			t.Errorf("a version of %s is taken for one of %s", c.e.Name, got.Name)
		}
	}
}

// TestCommitKeepsTheCall: the statement that commits leaves the other as it was.
func TestCommitKeepsTheCall(t *testing.T) {
	t.Parallel()
	s := Statement{Procedure: CompareProcedure, Args: []any{1, 0}}
	if both, _ := (MySQL).Commit(s); s.Args[1] != 0 || both.Args[1] != 1 {
		t.Errorf("%v, and that which commits %v", s.Args, both.Args)
	}
}

// TestStatementText: the arguments of the program stay question marks.
func TestStatementText(t *testing.T) {
	t.Parallel()
	s, _ := MariaDB.LockThen(Begin{}, Statement{Query: "INSERT ?", Args: []any{7}}, "SELECT ?", 1)
	if text, ok := s.Text(); !ok || !strings.Contains(text, "REPEAT INSERT 7; UNTIL") || !strings.HasSuffix(text, " USING ?; END") {
		t.Errorf("%t: %s", ok, text)
	}
	if text, ok := (Statement{Procedure: "p", Args: []any{nil, 1, "x"}}).Text(); !ok || text != "CALL p(NULL, NULL, 1, X'78')" {
		t.Errorf("%t: %s", ok, text)
	}
}

package rawsql

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// TestEngines: each way to begin stands in the text before the statement, what commits or follows
// stands behind it, the arguments are in the order of their question marks, and what can't share a
// text is refused.
func TestEngines(t *testing.T) {
	t.Parallel()
	name := []byte{0}
	call := func(procedure string, args ...any) Statement { return Statement{Procedure: procedure, Args: args} }
	insert, update := Statement{Query: "INSERT ?", Args: []any{7}}, Statement{Query: "UPDATE t", Variables: []string{NoWait}}
	lock := call(LockProcedure, name, nil, "o", 1)
	again := Begin{Isolation: "READ COMMITTED", ReadOnly: true, Again: true}
	const makes = "BEGIN DECLARE lockstep_name VARBINARY(255) DEFAULT ?; DECLARE lockstep_rows INT; DECLARE CONTINUE HANDLER FOR 1205 BEGIN END; " +
		"SELECT COUNT(*) INTO lockstep_rows FROM lockstep_locks WHERE name = lockstep_name; " +
		"IF lockstep_rows = 0 THEN SET STATEMENT innodb_lock_wait_timeout=0 FOR INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us) " +
		"VALUES (lockstep_name, 0, '-', 0, UNIX_TIMESTAMP() * 1000000); END IF; END; "
	const repeat = "REPEAT INSERT ?; UNTIL LAST_INSERT_ID() <> 1 END REPEAT; "
	const settings = ", @@sql_mode, @@character_set_client, @@collation_connection)"
	for _, c := range []struct {
		of   string
		s    Statement
		ok   bool
		want string // "" if it is refused
		args []any
	}{
		of("a row", MariaDB.Open, Begin{}, insert, true)("BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); START TRANSACTION; INSERT ?; SELECT LAST_INSERT_ID(), ROW_COUNT(); END", 7),
		of("an id", MariaDB.Open, Begin{}, Statement{Query: "INSERT ?", Args: []any{7}, Inserts: true}, true)("BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); START TRANSACTION; INSERT ? RETURNING LAST_INSERT_ID(); END", 7),
		of("a limit", MariaDB.Open, Begin{}, update, true)("SET STATEMENT innodb_lock_wait_timeout=0 FOR BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); START TRANSACTION; UPDATE t; SELECT LAST_INSERT_ID(), ROW_COUNT(); END"),
		of("a row to make", MariaDB.Open, Begin{Make: "k", Isolation: "SERIALIZABLE", Again: true}, insert, false)(
			"BEGIN NOT ATOMIC ROLLBACK; "+makes+"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION; INSERT ?; END", []byte("k"), 7),
		of("read only", MariaDB.Open, again, insert, false)("BEGIN NOT ATOMIC ROLLBACK; SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ ONLY; INSERT ?; END", 7),
		of("a procedure", MariaDB.Open, Begin{}, lock, true)(""),
		of("a call", MySQL.Open, Begin{}, lock, true)("CALL lockstep_lock_1('', ?, NULL, ?, ?)", name, "o", 1),
		of("a call, read only", MySQL.Open, Begin{Isolation: "SERIALIZABLE", ReadOnly: true}, lock, true)("CALL lockstep_lock_1('SERIALIZABLE READ ONLY', ?, NULL, ?, ?)", name, "o", 1),
		of("a call, a row to make", MySQL.Open, Begin{Make: "k"}, lock, true)("CALL lockstep_lock_1('MAKE', ?, NULL, ?, ?)", name, "o", 1),
		of("a call, again", MySQL.Open, again, lock, true)(""),
		of("no call", MySQL.Open, Begin{}, insert, true)(""),
		of("alone", TiDB.Open, Begin{}, insert, true)(""),

		commits("raised", MariaDB, insert)("BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); "+repeat+"SELECT LAST_INSERT_ID(); IF LAST_INSERT_ID() > 1 THEN COMMIT; END IF; END", 7),
		commits("raised by a procedure", MariaDB, call(CompareProcedure, 0))(""),
		commits("compared", MySQL, call(CompareProcedure, nil, 7, 3, 0))("CALL lockstep_compare_1(NULL, NULL, ?, ?, ?)", 7, 3, 1),
		commits("locked", MySQL, lock)(""),
		commits("no call", MySQL, insert)(""),
		commits("alone", TiDB, insert)(""),

		reads("a read", MariaDB, Begin{Make: "k"}, insert, "SELECT '?', ?", 1)("BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); "+makes+"START TRANSACTION; "+repeat+
			"SELECT LAST_INSERT_ID(); "+prepareProgram+"X'53454c45435420273f272c203f'"+executeProgram+" USING ?; END", []byte("k"), 7),
		reads("a lock alone", MariaDB, Begin{Open: true, Make: "k"}, insert, "", 0)("BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); "+repeat+"SELECT LAST_INSERT_ID(); END", 7),
		reads("a procedure", MariaDB, Begin{}, lock, "SELECT 1", 0)(""),
		reads("a call", MySQL, Begin{}, lock, "SELECT ?", 1)("CALL lockstep_lock_read_2('', ?, NULL, ?, ?, X'53454c454354203f', 1, 0 + COALESCE(LENGTH(@lockstep_1 := ?), 0)"+settings, name, "o", 1),
		reads("a call, open", MySQL, Begin{Open: true}, lock, "", 0)("CALL lockstep_lock_1(NULL, ?, NULL, ?, ?)", name, "o", 1),
		reads("too many arguments", MySQL, Begin{}, lock, "SELECT ?", 17)(""),
		reads("another procedure", MySQL, Begin{}, call(CompareProcedure, 0), "SELECT 1", 0)(""),
		reads("a call, again", MySQL, again, lock, "SELECT 1", 0)(""),
		reads("a lock, alone", TiDB, Begin{}, insert, "", 0)(""),

		writes("rows", MariaDB, "DELETE ?, ?", 2, 3)("BEGIN NOT ATOMIC IF @@in_transaction = 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lockstep: no transaction is open'; END IF; " +
			prepareProgram + "X'44454c455445203f2c203f'" + executeProgram + " USING ?, ?; SET @lockstep_rows = ROW_COUNT(); SELECT LAST_INSERT_ID(), @lockstep_rows; IF @lockstep_rows = 3 THEN COMMIT; END IF; END"),
		writes("rows by a procedure", MySQL, "DELETE", 0, -1)("CALL lockstep_program_2(-1, X'44454c455445', 0, 0" + settings),
		writes("too many arguments", MySQL, "DELETE", 17, 1)(""),
	} {
		query, args := c.s.SQL()
		if c.ok != (c.want != "") || c.ok && (query != c.want || len(args) != len(c.args) || len(args) > 0 && !reflect.DeepEqual(args, c.args)) {
			t.Errorf("%s: %t\n%s\nwant\n%s\nwith %v", c.of, c.ok, query, c.want, args)
		}
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

type rendered = struct {
	of   string
	s    Statement
	ok   bool
	want string
	args []any
}

func wanted(name string, s Statement, ok bool) func(want string, args ...any) rendered {
	return func(want string, args ...any) rendered { return rendered{name, s, ok, want, args} }
}

func of(name string, open func(Begin, Statement, bool) (Statement, bool), b Begin, s Statement, reply bool) func(string, ...any) rendered {
	s, ok := open(b, s, reply)
	return wanted("begins with "+name, s, ok)
}

func commits(name string, e Engine, s Statement) func(string, ...any) rendered {
	s, ok := e.Commit(s)
	return wanted("commits what is "+name, s, ok)
}

func reads(name string, e Engine, b Begin, s Statement, read string, args int) func(string, ...any) rendered {
	s, ok := e.LockThen(b, s, read, args)
	return wanted("locks with "+name, s, ok)
}

func writes(name string, e Engine, query string, args int, rows int64) func(string, ...any) rendered {
	s, ok := e.WriteAndCommit(query, args, rows)
	return wanted("writes "+name, s, ok)
}

// The statements around one of the program on MariaDB.
const (
	prepareProgram = "SET @lockstep_rows = NULL; IF @@sql_auto_is_null THEN SIGNAL SQLSTATE '0A000' SET MESSAGE_TEXT = 'lockstep: sql_auto_is_null'; END IF; PREPARE lockstep_program FROM "
	executeProgram = "; SET @lockstep_rows = LAST_INSERT_ID(0); EXECUTE lockstep_program"
)

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
	const want = "BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); START TRANSACTION; REPEAT INSERT 7; UNTIL LAST_INSERT_ID() <> 1 END REPEAT; SELECT LAST_INSERT_ID(); " + prepareProgram + "X'53454c454354203f'" + executeProgram + " USING ?; END"
	if text, ok := s.Text(); !ok || text != want {
		t.Errorf("%t: %s", ok, text)
	}
	if text, ok := (Statement{Procedure: "p", Args: []any{nil, 1, "x"}}).Text(); !ok || text != "CALL p(NULL, NULL, 1, X'78')" {
		t.Errorf("%t: %s", ok, text)
	}
}

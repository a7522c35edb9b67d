package rawsql

import (
	"fmt"
	"strconv"
	"strings"
)

// MariaDB is the engine MariaDB.
var MariaDB = Engine{Renderer: mariaDB{}, Replies: &mariaDBReplies, Name: "MariaDB", Least: 10_06, Views: "views/mariadb.sql",
	ForShare: "LOCK IN SHARE MODE", TimeLimit: "max_statement_time", Processes: "information_schema.PROCESSLIST", Compound: true}

var mariaDBReplies = Replies{IDs: map[string][]int64{
	"LockNamed":            {1},
	"LockCenter":           {0, 1},
	"CompareAndBumpNamed":  {0, 1},
	"CompareAndBumpCenter": {0, 1},
	"TouchNamed":           {0, 1}, // the token of a row that it has made
}}

// mariaDB renders compound statements. Their variables count for all that is in them.
type mariaDB struct{}

// RefusesStale is Renderer.RefusesStale. The variable came with the maintenance releases of May
// 2024 (MDEV-35124 and the release notes of the versions below).
func (mariaDB) RefusesStale(version string) bool {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false
	}
	since, maintained := map[[2]int]int{
		{10, 6}: 18, {10, 11}: 8, {11, 0}: 6, {11, 1}: 5, {11, 2}: 4, {11, 4}: 2,
	}[[2]int{major, minor}]
	if maintained {
		return patch >= since
	}
	return major > 11 || major == 11 && minor > 4
}

// Open is Renderer.Open.
func (mariaDB) Open(b Begin, s Statement, reply bool) (Statement, bool) {
	begin, args := b.statements(s.Args)
	before, behind := "", ""
	if reply { // the id of an earlier statement is not this one's
		before, behind = noID, "; SELECT LAST_INSERT_ID(), ROW_COUNT()"
		if s.Inserts { // a SELECT more takes the server a tenth as long again
			behind = " RETURNING LAST_INSERT_ID()"
		}
	}
	return compound(s.Variables, args, before, begin, s.Query, behind), s.Procedure == ""
}

// Commit is Renderer.Commit. Where the statement had to make the row, it is repeated, and raises
// the token at once.
func (mariaDB) Commit(s Statement) (Statement, bool) {
	return compound(s.Variables, s.Args, noID, granted(s.Query), "; IF LAST_INSERT_ID() > 1 THEN COMMIT; END IF"), s.Procedure == ""
}

// LockThen is Renderer.LockThen.
func (mariaDB) LockThen(b Begin, lock Statement, read string, args int) (Statement, bool) {
	begin, own := b.statements(lock.Args)
	then := ""
	if read != "" {
		then = "; " + execute(read, args)
	}
	s := compound(lock.Variables, own, noID, begin, granted(lock.Query), then)
	s.behind = args
	return s, lock.Procedure == ""
}

// WriteAndCommit is Renderer.WriteAndCommit.
func (mariaDB) WriteAndCommit(query string, args int, rows int64) (Statement, bool) {
	when := "1 = 1"
	if rows >= 0 {
		when = "@lockstep_rows = " + strconv.FormatInt(rows, 10)
	}
	s := compound(nil, nil, "IF @@in_transaction = 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lockstep: no transaction is open'; END IF; ",
		execute(query, args), "; SET @lockstep_rows = ROW_COUNT(); SELECT LAST_INSERT_ID(), @lockstep_rows; IF ", when, " THEN COMMIT; END IF")
	s.behind = args
	return s, true
}

const noID = "DO LAST_INSERT_ID(0); "

func compound(variables []string, args []any, pieces ...string) Statement {
	return Statement{Query: "BEGIN NOT ATOMIC " + strings.Join(pieces, "") + "; END", Args: args, Variables: variables}
}

// granted repeats a lock statement that has made the row, and answers with the token: to write
// the statement twice takes the server as long again as all else.
func granted(query string) string {
	return "REPEAT " + query + "; UNTIL LAST_INSERT_ID() <> 1 END REPEAT; SELECT LAST_INSERT_ID()"
}

// execute executes a statement of the program inside of a compound statement, and notes in
// @lockstep_rows how far it has come, as lockstep_program_2 does on MySQL.
func execute(query string, args int) string {
	using := ""
	if args > 0 {
		using = " USING ?" + strings.Repeat(", ?", args-1)
	}
	return "SET @lockstep_rows = NULL; IF @@sql_auto_is_null THEN SIGNAL SQLSTATE '0A000' SET MESSAGE_TEXT = 'lockstep: sql_auto_is_null'; END IF; " +
		"PREPARE lockstep_program FROM " + literal(query) + "; SET @lockstep_rows = LAST_INSERT_ID(0); EXECUTE lockstep_program" + using
}

// statements returns the statements that begin the transaction, and the arguments of these and of
// what follows. What makes a row waits for nobody: SELECT ... INTO, while a condition with a
// SELECT in it would lock the row, and an INSERT that leaves it to the lock statement to wait for
// who is making it.
func (b Begin) statements(args []any) (text string, all []any) {
	if b.Open {
		return "", args
	}
	text = "START TRANSACTION" + b.access() + "; "
	if b.Isolation != "" {
		text = "SET TRANSACTION ISOLATION LEVEL " + b.Isolation + "; " + text
	}
	if b.Make != "" {
		args = append([]any{[]byte(b.Make)}, args...)
		text = "BEGIN DECLARE lockstep_name VARBINARY(255) DEFAULT ?; DECLARE lockstep_rows INT; " +
			"DECLARE CONTINUE HANDLER FOR 1205 BEGIN END; " +
			"SELECT COUNT(*) INTO lockstep_rows FROM lockstep_locks WHERE name = lockstep_name; " +
			"IF lockstep_rows = 0 THEN " + For(NoWait) + "INSERT IGNORE INTO lockstep_locks (name, token, owner, conn_id, locked_us) " +
			"VALUES (lockstep_name, 0, '-', 0, UNIX_TIMESTAMP() * 1000000); END IF; END; " + text
	}
	if b.Again {
		text = "ROLLBACK; " + text
	}
	return text, args
}

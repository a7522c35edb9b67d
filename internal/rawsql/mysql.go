package rawsql

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// MySQL is the engine MySQL.
var MySQL = Engine{Renderer: mySQL{}, Replies: &mySQLReplies, Name: "MySQL", Least: 8_00, Views: "views/mysql.sql",
	ForShare: "FOR SHARE", TimeLimit: "max_execution_time", Processes: "performance_schema.processlist", Procedures: true}

// A shared grant has the token of the last exclusive one, which may be 0. If lockstep_share_1
// answers with no row, there is none to lock.
var mySQLReplies = Replies{
	IDs: map[string][]int64{
		"LockNamed":            {1},
		"LockCenter":           {0, 1},
		"CompareAndBumpNamed":  {0, 1},
		"CompareAndBumpCenter": {0, 1},
		"TouchNamed":           {0, 1}, // the token of a row that it has made
	},
	Outcomes: map[string]map[string]Outcome{
		LockProcedure:      {"granted": {Granted, Null}, "made": {Granted, Null}, "missing": {Anything, Null}},
		CompareProcedure:   {"granted": {Granted, Present}, "other": {Present, Present}, "missing": {Zero, Present}},
		"lockstep_try_1":   {"granted": {Granted, Anything}, "other": {Present, Present}, "missing": {Zero, Anything}, "busy": {Zero, Anything}},
		"lockstep_share_1": {"granted": {Present, Anything}, "": {}},
	},
	Numbers: map[string]uint64{"lockstep_version_1": math.MaxInt64, "lockstep_once_1": 1},
	Lists:   []string{"lockstep_lock_all_1"},
}

// mySQL renders calls of the procedures of package schema.
type mySQL struct{}

// RefusesStale is Renderer.RefusesStale.
func (mySQL) RefusesStale(string) bool { return false }

// The procedures that lock a row, and that compare its version; see
// schema/mysql/0005_procedures.sql.
const (
	LockProcedure    = "lockstep_lock_1"
	CompareProcedure = "lockstep_compare_1"
)

// Open is Renderer.Open. What an attempt before has left open is rolled back by a statement of its
// own.
func (mySQL) Open(b Begin, s Statement, _ bool) (Statement, bool) {
	return s.call(b.opening(), ""), s.Procedure != "" && !b.Again
}

// Commit is Renderer.Commit: the last argument of the procedure says that it commits.
func (mySQL) Commit(s Statement) (Statement, bool) {
	if s.Procedure != CompareProcedure {
		return s, false
	}
	s.Args = slices.Clone(s.Args)
	s.Args[len(s.Args)-1] = 1
	return s.call("NULL", ""), true
}

// LockThen is Renderer.LockThen.
func (m mySQL) LockThen(b Begin, lock Statement, read string, args int) (Statement, bool) {
	if read == "" {
		return m.Open(b, lock, false)
	}
	with, ok := program(read, args)
	lock.Procedure, ok = "lockstep_lock_read_2", ok && lock.Procedure == LockProcedure && !b.Again
	s := lock.call(b.opening(), ", "+with)
	s.behind = args
	return s, ok
}

// WriteAndCommit is Renderer.WriteAndCommit.
func (mySQL) WriteAndCommit(query string, args int, rows int64) (Statement, bool) {
	with, ok := program(query, args)
	return Statement{Query: "CALL lockstep_program_2(" + strconv.FormatInt(rows, 10) + ", " + with + ")", behind: args}, ok
}

// opening is the first argument of a procedure, by which it begins the transaction. The name of
// the row to make is another of its arguments.
func (b Begin) opening() string {
	if b.Open {
		return "NULL"
	}
	words := b.Isolation + b.access()
	if b.Make != "" {
		words += " MAKE"
	}
	return "'" + strings.TrimSpace(words) + "'"
}

// mostArgs is how many arguments lockstep_program_2 takes.
const mostArgs = 16

// program returns the last arguments of a procedure that executes a statement of the program. A
// procedure runs under the settings of whoever has made it, so those of the session by which
// a text is read go with it. It returns false for a statement of too many arguments.
func program(query string, args int) (string, bool) {
	set := "0"
	for i := range args {
		set += " + COALESCE(LENGTH(@lockstep_" + strconv.Itoa(i+1) + " := ?), 0)" // IS NULL of a literal isn't evaluated
	}
	return literal(query) + ", " + strconv.Itoa(args) + ", " + set + ", @@sql_mode, @@character_set_client, @@collation_connection", args <= mostArgs
}

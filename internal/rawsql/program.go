package rawsql

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// This file sends a statement of the program together with one of lockstep's own. Its text is
// a literal, so that it stays one statement whatever is in it, and sees no name of the others;
// its arguments are those of the text.

// immediate executes a statement of the program inside of a compound statement.
func immediate(query string, args int) string {
	using := ""
	if args > 0 {
		using = " USING ?" + strings.Repeat(", ?", args-1)
	}
	return "EXECUTE IMMEDIATE X'" + hex.EncodeToString([]byte(query)) + "'" + using + "; "
}

// WriteAndCommit returns a statement of the program in a compound statement that commits
// the transaction if it has changed so many rows, or any number if that is negative. The reply
// is a row of the insert id and the number of rows, before the COMMIT. MariaDB only.
func WriteAndCommit(query string, args int, rows int64) string {
	when := "1 = 1"
	if rows >= 0 {
		when = "@lockstep_rows = " + strconv.FormatInt(rows, 10)
	}
	return "BEGIN NOT ATOMIC IF @@in_transaction = 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lockstep: no transaction is open'; END IF; " +
		"DO LAST_INSERT_ID(0); " + immediate(query, args) + "SET @lockstep_rows = ROW_COUNT(); SELECT LAST_INSERT_ID(), @lockstep_rows; " +
		"IF " + when + " THEN COMMIT; END IF; END"
}

// LockAndRead returns a lock statement in a compound statement that begins the transaction
// first, and reads afterwards, if there is a read. The reply is the token, which a row that the
// statement has made gets by the same statement again, and then what was read. MariaDB only.
func (b Begin) LockAndRead(lock, read string, args int) (string, bool) {
	prefix, verb, statement := mergeable(lock)
	text := prefix + "BEGIN NOT ATOMIC DO LAST_INSERT_ID(0); " + b.statements() +
		"REPEAT " + statement + "; UNTIL LAST_INSERT_ID() <> 1 END REPEAT; SELECT LAST_INSERT_ID(); "
	if read != "" {
		text += immediate(read, args)
	}
	return text + "END", verb == "INSERT" || verb == "UPDATE"
}

// mostArgs is how many arguments lockstep_program_1 takes.
const mostArgs = 16

// program returns the arguments of a procedure that executes a statement of the program. A
// procedure runs under the settings of whoever has made it, so those of the session by which
// a text is read go with it. It returns "" for a statement of too many arguments.
func program(query string, args int) string {
	if args > mostArgs {
		return ""
	}
	set := "0"
	for i := range args {
		set += " + COALESCE(LENGTH(@lockstep_" + strconv.Itoa(i+1) + " := ?), 0)" // IS NULL of a literal isn't evaluated
	}
	return "X'" + hex.EncodeToString([]byte(query)) + "', " + strconv.Itoa(args) + ", " + set + ", @@sql_mode, @@character_set_client, @@collation_connection)"
}

// CallWrite returns the call of the procedure that does what WriteAndCommit does, or "" for
// a statement of too many arguments. MySQL only.
func CallWrite(query string, args int, rows int64) string {
	with := program(query, args)
	if with == "" {
		return ""
	}
	return "CALL lockstep_write_1(" + strconv.FormatInt(rows, 10) + ", " + with
}

// CallLockAndRead returns the call of lockstep_lock_1 as one that begins the transaction and
// reads afterwards, if there is a read. It returns false where it can't do both, as Call does.
// MySQL only.
func (b Begin) CallLockAndRead(lock, read string, args int) (string, bool) {
	call, ok := uncommented(lock), true
	if !b.Open {
		call, ok = b.Call(lock)
	}
	if !ok || read == "" {
		return call, ok
	}
	with, arguments := program(read, args), strings.TrimPrefix(call, "CALL lockstep_lock_1(")
	return "CALL lockstep_lock_read_1(" + strings.TrimSuffix(arguments, ")") + ", " + with, with != "" && arguments != call
}

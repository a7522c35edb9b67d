package rawsql

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// WriteAndCommit returns a statement of the program in a compound statement that commits
// the transaction if it has changed so many rows, or any number if that is negative. The reply
// is a row of the insert id and the number of rows, before the COMMIT. The statement's text is
// a literal, so that it stays one statement whatever is in it, and sees no name of the compound
// statement; its arguments are those of the text. MariaDB only.
func WriteAndCommit(query string, args int, rows int64) string {
	using := ""
	if args > 0 {
		using = " USING ?" + strings.Repeat(", ?", args-1)
	}
	when := "1 = 1"
	if rows >= 0 {
		when = "@lockstep_rows = " + strconv.FormatInt(rows, 10)
	}
	return "BEGIN NOT ATOMIC IF @@in_transaction = 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lockstep: no transaction is open'; END IF; " +
		"DO LAST_INSERT_ID(0); EXECUTE IMMEDIATE X'" + hex.EncodeToString([]byte(query)) + "'" + using + "; " +
		"SET @lockstep_rows = ROW_COUNT(); SELECT LAST_INSERT_ID(), @lockstep_rows; " +
		"IF " + when + " THEN COMMIT; END IF; END"
}

// mostWritten is how many arguments lockstep_write_1 takes.
const mostWritten = 16

// CallWrite returns the call of the procedure that does what WriteAndCommit does. It runs
// under the settings of whoever has made it, so those of the session by which a text is read
// go with it. It returns "" for a statement of too many arguments. MySQL only.
func CallWrite(query string, args int, rows int64) string {
	if args > mostWritten {
		return ""
	}
	set := "0"
	for i := range args {
		set += " + COALESCE(LENGTH(@lockstep_" + strconv.Itoa(i+1) + " := ?), 0)" // IS NULL of a literal isn't evaluated
	}
	return "CALL lockstep_write_1(X'" + hex.EncodeToString([]byte(query)) + "', " + strconv.Itoa(args) + ", " + set + ", " +
		strconv.FormatInt(rows, 10) + ", @@sql_mode, @@character_set_client, @@collation_connection)"
}

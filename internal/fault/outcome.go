package fault

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// Outcome returns what a transaction's COMMIT has failed with: the error itself if that is
// known to leave nothing committed, and ErrUnknownOutcome with it otherwise.
func Outcome(err error) error {
	if err == nil || NotCommitted(err) || errors.Is(err, ErrUnknownOutcome) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// NotCommitted reports whether an error of COMMIT is one of those that are known to leave
// nothing committed: it wasn't sent, or the server has refused it by an answer that it
// gives to nothing else. No answer and any other answer leave that open.
func NotCommitted(err error) bool {
	if errors.Is(err, ErrTxDoomed) || errors.Is(err, ErrDeadlock) || errors.Is(err, ErrEnded) {
		return true // the guard has refused it, or has asked the group
	}
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return errors.Is(err, sql.ErrTxDone) || errors.Is(err, sql.ErrConnDone) || // as by the end of a context
			!LostConnection(err) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
	}
	switch server.Number {
	case 1064, // ER_PARSE_ERROR: it was no COMMIT
		1205,             // ER_LOCK_WAIT_TIMEOUT: FLUSH TABLES WITH READ LOCK lets no COMMIT begin
		1290, 1792, 1836, // see Interpret
		1399: // ER_XAER_RMFAIL, in an XA transaction
		return true
	}
	return Interpret(err).Gone
}

// OfRow reports whether an error is, by the class of its SQLSTATE, one of what a statement does with its
// rows: their number (21), data (22), constraints (23), or SIGNAL (45).
func OfRow(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return false
	}
	class := string(server.SQLState[:2])
	return class == "21" || class == "22" || class == "23" || class == "45"
}

// KeepsOpen reports whether an error of a statement is known to leave its transaction as it
// was before. The server's own errors are known by the classes of their SQLSTATE that are about
// the statement alone, those of OfRow and its text and rights (42), and by the numbers of those that
// have none of these. What isn't known may have ended the transaction: 1317 does so on Vitess.
func KeepsOpen(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) { // the connection lives: nothing was sent
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, mysql.ErrPktTooLarge) || errors.Is(err, mysql.ErrBusyBuffer)
	}
	if OfRow(err) || string(server.SQLState[:2]) == "42" {
		return true
	}
	switch server.Number {
	case 1054, 1062, 1064, 1142, 1146, 1305, // of the classes, from a wrapper that drops the SQLSTATE
		1093, 1265, 1267, 1271, 1288, 1300, 1348, 1364, 1366, 1369, 1390, 1442, 1449, 1471, 1526, 3819, // of a table or a value
		1205, 1969, 3024, 3547, 3572, // the end of a wait
		1243, 1461, // not prepared
		1290, 1568, 1792, 1836: // what is refused at its beginning
		return true
	}
	return false
}

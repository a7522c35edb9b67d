// Package fault knows what the errors of the server and of the driver mean for a lock,
// a lease and a transaction. It is the one place where the numbers of server errors have
// a meaning.
package fault

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

// Retryable reports whether the same transaction, started again from its beginning, may
// succeed: see txlock.Retryable.
func Retryable(err error) bool {
	switch {
	case err == nil, errors.Is(err, schema.ErrEngine), errors.Is(err, ErrReply), errors.Is(err, ErrUnknownOutcome), errors.Is(err, ErrCommitted), errors.Is(err, ErrUnseen), errors.Is(err, errUnfenced), errors.Is(err, errLarge), errors.Is(err, ErrGiven),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, ErrDeadlock), errors.Is(err, ErrStaleSnapshot), errors.Is(err, ErrTxDoomed), errors.Is(err, ErrConflict):
		return true
	}
	v := Interpret(err)
	return v.Sentinel != nil && v.Gone && !errors.Is(v.Sentinel, schema.ErrEngine) || errors.Is(v.Sentinel, ErrStaleSnapshot)
}

// Verdict is what a server's error means.
type Verdict struct {
	Sentinel  error // nil: nothing that a lock has a word for
	Gone      bool  // the whole transaction has been rolled back
	OnTimeout bool  // likewise, but under innodb_rollback_on_timeout only
}

// Interpret returns the verdict on an error. What each number leaves of the transaction
// was measured on MariaDB 10.11 and MySQL 9.7, the errors of several primaries on Galera
// and a Group Replication.
func Interpret(err error) Verdict {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return Verdict{}
	}
	if _, missing := schema.MissingPrivilege(err); missing {
		return Verdict{Sentinel: ErrPrivilege}
	}
	if shards := session.Sharded(err); shards != nil {
		return Verdict{Sentinel: shards, Gone: server.Number == 1317} // ER_QUERY_INTERRUPTED
	}
	switch server.Number {
	case 1213, // ER_LOCK_DEADLOCK
		8002, 8022, 8028, 9007: // TiDB: a locking read, a commit or a statement that must be repeated, a changed schema, a write conflict
		return Verdict{Sentinel: ErrDeadlock, Gone: true}
	case 1180: // ER_ERROR_DURING_COMMIT, of any statement: MySQL's InnoDB has aborted the transaction for another primary's
		if strings.Contains(" "+server.Message, " 149 - '") { // in every language of the server
			return Verdict{Sentinel: ErrDeadlock, Gone: true}
		}
	case 1020: // ER_CHECKREAD, MariaDB under innodb_snapshot_isolation
		return Verdict{Sentinel: ErrStaleSnapshot, Gone: true}
	case 1412, // ER_TABLE_DEF_CHANGED: DDL has rebuilt a table since the snapshot
		159: // HA_ERR_TABLE_DEF_CHANGED, MariaDB's warning of it, which a strict sql_mode makes an error
		return Verdict{Sentinel: ErrStaleSnapshot}
	case 1317: // ER_QUERY_INTERRUPTED, of Vitess for a transaction that it rolls back while nothing is sent, or has
		if strings.Contains(server.Message, ": ended at ") && strings.Contains(server.Message, " (exceeded timeout: ") || strings.Contains(server.Message, " in use: for tx killer rollback") {
			return Verdict{Sentinel: ErrTxDoomed, Gone: true}
		}
	case 1206, // ER_LOCK_TABLE_FULL
		8229: // TiDB: it took longer than max-txn-ttl
		return Verdict{Sentinel: ErrTxDoomed, Gone: true}
	case 4031: // ER_CLIENT_INTERACTION_TIMEOUT, MySQL: the session was ended before
		return Verdict{Sentinel: ErrTxDoomed, Gone: true}
	case 1205: // ER_LOCK_WAIT_TIMEOUT, on MariaDB also of NOWAIT
		return Verdict{Sentinel: ErrWaitTimeout, OnTimeout: true}
	case 1105: // ER_UNKNOWN_ERROR, of TiDB at READ COMMITTED for a wait that others have ended by their COMMITs until its limit
		if server.Message == "lock wait timeout" {
			return Verdict{Sentinel: ErrWaitTimeout}
		}
	case 3572: // ER_LOCK_NOWAIT, MySQL
		return Verdict{Sentinel: ErrBusy}
	case 1969, 3024, // ER_STATEMENT_TIMEOUT (MariaDB), ER_QUERY_TIMEOUT (MySQL)
		3547: // ER_CANNOT_LOCK_USER_MANAGEMENT_CACHES: the same while a user is changed, see PastLimit
		return Verdict{Sentinel: ErrWaitTimeout}
	case 1290, 1792, 1836: // ER_OPTION_PREVENTS_STATEMENT (read-only), ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE
		return Verdict{Sentinel: ErrReadOnly}
	case 1235: // ER_NOT_SUPPORTED_YET, on TiDB also of a BEGIN
		if strings.Contains(server.Message, "READ ONLY") {
			return Verdict{Sentinel: ErrReadOnly}
		}
		return Verdict{Sentinel: schema.ErrEngine}
	case 1193: // ER_UNKNOWN_SYSTEM_VARIABLE
		return Verdict{Sentinel: session.UnknownVariable(server)}
	case 8048, 8108: // TiDB's for an isolation level and for CALL
		return Verdict{Sentinel: schema.ErrEngine}
	case 1146, 1054, 1364, 1046: // ER_NO_SUCH_TABLE, ER_BAD_FIELD_ERROR, ER_NO_DEFAULT_FOR_FIELD, ER_NO_DB_ERROR
		return Verdict{Sentinel: ErrSchema}
	}
	return Verdict{}
}

// Of turns what a statement of a lock was answered, in a transaction of the program, into
// the error of the call. It says what was asked for, and matches the sentinel and the
// cause.
func Of(what string, err error, s session.Server) error {
	v := Interpret(err)
	sentinel := v.Sentinel
	switch {
	case errors.Is(err, ErrOpenRows), errors.Is(err, mysql.ErrBusyBuffer):
		sentinel = ErrOpenRows
	case errors.Is(err, ErrEnded), errors.Is(err, sql.ErrTxDone), errors.Is(err, sql.ErrConnDone):
		sentinel = ErrNoTransaction
	case errors.Is(err, ErrUnknownOutcome):
		sentinel = ErrUnknownOutcome
	case LostConnection(err) && !errors.Is(err, ErrCommitted): // and the transaction with it
		sentinel = errCutOff
	case v.OnTimeout && s.RollbackOnTimeout:
		sentinel = ErrTxDoomed
		if !errors.Is(err, ErrBusy) {
			sentinel = fmt.Errorf("%w: %w", v.Sentinel, ErrTxDoomed)
		}
	case errors.Is(err, ErrBusy): // a try, whose number is that of a wait
		sentinel = ErrBusy
	case errors.Is(err, ErrWaitTimeout): // see PastLimit
		sentinel = ErrWaitTimeout
	case sentinel == ErrPrivilege: //nolint:errorlint // a verdict's sentinel is one of ours
		fix, _ := schema.MissingPrivilege(err)
		sentinel = fmt.Errorf("%w: %s", ErrPrivilege, fix)
	}
	return fmt.Errorf("%s: %w", what, withSentinel(sentinel, err))
}

// Explain is Of for a statement outside of the program's transactions. For a nil error it
// returns nil.
func Explain(what string, err error) error {
	if err == nil {
		return nil
	}
	explained := Of(what, err, session.Server{})
	if errors.Is(explained, ErrTxDoomed) && !errors.Is(err, ErrTxDoomed) {
		return fmt.Errorf("%s: %w", what, err) // there is no transaction to start again
	}
	return explained
}

// OfContext names the end of the context in an error that says only that the transaction is over:
// database/sql has rolled it back for that.
func OfContext(ctx context.Context, err error) error {
	over := errors.Is(err, sql.ErrTxDone) || errors.Is(err, ErrNoTransaction)
	if ctx.Err() == nil || !over || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// withSentinel joins the sentinel to the cause, once.
func withSentinel(sentinel, cause error) error {
	if sentinel == nil || errors.Is(cause, sentinel) {
		return cause
	}
	return fmt.Errorf("%w: %w", sentinel, cause)
}

// LostConnection reports whether the driver has said that the connection is gone.
func LostConnection(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
}

// SessionEnded reports whether the server has said that it ends the session.
func SessionEnded(err error) bool {
	return Is(err, 1053, 1927, 3169, 4031) // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED (MariaDB), ER_SESSION_WAS_KILLED, ER_CLIENT_INTERACTION_TIMEOUT (MySQL)
}

// Unknown reports whether a statement that was answered by this error may have been
// executed nevertheless, or may still be: there was no answer, or one to the end of the
// session, or to a commit that a cluster may have nevertheless.
func Unknown(err error) bool {
	if errors.Is(err, schema.ErrEngine) && !errors.Is(err, ErrUnknownOutcome) { // it was not sent
		return false
	}
	var server *mysql.MySQLError
	if err == nil || errors.Is(err, ErrUnknownOutcome) || !errors.As(err, &server) {
		return err != nil
	}
	switch server.Number {
	case 1053, 1317, 1927, 3169: // ER_SERVER_SHUTDOWN, ER_QUERY_INTERRUPTED, ER_CONNECTION_KILLED (MariaDB), ER_SESSION_WAS_KILLED (MySQL)
		return true
	case 1180, 3100, 3101: // ER_ERROR_DURING_COMMIT, ER_RUN_HOOK_ERROR, ER_TRANSACTION_ROLLBACK_DURING_COMMIT, see Refused
		return !Interpret(err).Gone && !errors.Is(err, ErrDeadlock)
	}
	return false
}

// UnknownReply returns ErrReply for a statement, with what came.
func UnknownReply(statement, came string) error {
	return fmt.Errorf("%s was answered by %s: %w", statement, came, ErrReply)
}

// Changed returns the reply of a statement that changes one row or none: a table WITH SYSTEM
// VERSIONING counts the row of its history, too.
func Changed(statement string) func(n int64, err error) (changed bool, _ error) {
	return func(n int64, err error) (bool, error) {
		if err == nil && (n < 0 || n > 2) {
			return false, UnknownReply(statement, strconv.FormatInt(n, 10)+" changed rows")
		}
		return n > 0, Read(statement, err)
	}
}

// Again sends a statement a second time if it has changed nothing: MariaDB answers so to an UPDATE
// that KILL QUERY or its time limit has interrupted, too.
func Again(send func() (changed bool, err error)) (changed bool, err error) {
	if changed, err = send(); err == nil && !changed {
		return send()
	}
	return changed, err
}

// Read returns the error of a statement of lockstep's own. If database/sql could not read the
// row, it is ErrReply.
func Read(statement string, err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), "sql: Scan error") && !strings.HasPrefix(err.Error(), "sql: expected ") {
		return err
	}
	return fmt.Errorf("%w: %w", UnknownReply(statement, "a row that can't be read"), err)
}

// Overtaken reports whether a member of a Group Replication has refused a commit (3101). In
// most cases another primary was first, and the transaction is rolled back. But it is also
// the answer to what waits for the group while the member leaves that, and then the others
// may have the transaction, and the member when it comes back. Unknown is true of it too,
// unless a guarded pool has found out.
func Overtaken(err error) bool {
	return Is(err, 3101) // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
}

// NoProcedure reports whether the server has refused a CALL because there is no such procedure
// (ER_SP_DOES_NOT_EXIST), because it has other parameters (ER_SP_WRONG_NO_OF_ARGS), or
// because the user may not call it (ER_PROCACCESS_DENIED).
func NoProcedure(err error) bool { return Is(err, 1305, 1318, 1370) }

// PastLimit is the error of a SELECT that MySQL ends after a limit. Where a user is
// changed meanwhile, CREATE USER or GRANT, a SELECT has to wait before it may look at its
// privileges; when the limit is over by then, the server says that it can't (3547), or
// that there are none (1142). The latter, too, is ErrWaitTimeout then.
func PastLimit(err error, took, limit time.Duration) error {
	if Is(err, 1142) && limit > 0 && took >= limit { // ER_TABLEACCESS_DENIED_ERROR
		return fmt.Errorf("%w: %w", ErrWaitTimeout, err)
	}
	return err
}

// Duplicate reports whether a statement was refused because its row is there.
func Duplicate(err error) bool { return Is(err, 1062) } // ER_DUP_ENTRY

// Is reports whether an error is the server's of one of the numbers.
func Is(err error, numbers ...uint16) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && slices.Contains(numbers, server.Number)
}

// NilTx returns ErrNoTransaction for a transaction that is nil, a nil *sql.Tx among them.
func NilTx(tx any) error {
	if pooled, is := tx.(*sql.Tx); tx == nil || is && pooled == nil {
		return fmt.Errorf("%w: the transaction is nil", ErrNoTransaction)
	}
	return nil
}

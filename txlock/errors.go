package txlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/marks"
	"github.com/dca00107/lockstep/schema"
)

// The errors of lockstep. errors.Is finds them in what a call returns, beside the
// error of the context and of the driver that caused them.
var (
	// ErrBusy is returned by TryLock, TryRLock and LockAny when somebody else
	// holds the lock. The transaction goes on.
	ErrBusy = errors.New("txlock: the lock is held by somebody else")
	// ErrWaitTimeout is returned when the lock wasn't free in time: within
	// WaitAtMost, or else within the server's innodb_lock_wait_timeout. The
	// transaction goes on, unless the server runs with
	// innodb_rollback_on_timeout: then the error is ErrTxDoomed as well.
	ErrWaitTimeout = errors.New("txlock: the lock was not free in time")
	// ErrDeadlock is returned when the server chose the transaction as the
	// victim of a deadlock, or for a transaction of another primary of its cluster.
	// The server has rolled it back: start it again.
	ErrDeadlock = errors.New("txlock: deadlock, the server has rolled the transaction back")
	// ErrStaleSnapshot is returned when the lock was free but the transaction's
	// snapshot is older than the last holder's commit, so that plain reads
	// would show data from before it. Start the transaction again and lock
	// first. On MariaDB the server has rolled it back.
	ErrStaleSnapshot = errors.New("txlock: the transaction's snapshot is older than the lock")
	// ErrTxDoomed is returned when the transaction can't be committed whole:
	// the server has rolled it back, its connection is gone, or a statement
	// such as DDL has committed it and so freed the locks. On a guarded pool a
	// transaction that was rolled back takes no more statements.
	ErrTxDoomed = errors.New("txlock: the transaction is over on the server")
	// ErrConflict is returned by an optimistic lock when the version has
	// changed. The transaction goes on, but should be rolled back.
	ErrConflict = errors.New("txlock: the version has changed")
	// ErrLost is returned when a lock that outlives statements has been lost
	// while it was needed.
	ErrLost = errors.New("txlock: the lock was lost")
	// ErrNotHeld is returned when a lock is needed that isn't held.
	ErrNotHeld = errors.New("txlock: the lock is not held")
	// ErrTooManyHolds is returned when an owner has entered a re-entrant lease
	// too many times.
	ErrTooManyHolds = errors.New("txlock: too many holds of one owner")
	// ErrUpgrade is returned when a transaction that holds a lock shared asks
	// for it exclusively: two of them would wait for each other. Nothing was
	// sent and the transaction goes on.
	ErrUpgrade = errors.New("txlock: a shared lock can't be made exclusive")
	// ErrNoTransaction is returned when no transaction is open: the handle is a
	// pool, or its transaction has been committed or rolled back.
	ErrNoTransaction = errors.New("txlock: no open transaction")
	// ErrInvalidKey is returned for a key that can't be locked, or where a key
	// is needed and none is given. Nothing was sent.
	ErrInvalidKey = errors.New("txlock: invalid key")
	// ErrInvalidOption is returned for an option out of its range. Nothing was
	// sent.
	ErrInvalidOption = errors.New("txlock: invalid option")
	// ErrOpenRows is returned when the caller's rows are still open on the
	// transaction. On a guarded pool nothing was sent and the transaction goes
	// on; on a plain one the driver has closed the connection.
	ErrOpenRows = errors.New("txlock: rows are open on the transaction: close them, or read them to the end, before a lock")
	// ErrReadOnly is returned when the server or the transaction is read only.
	// The transaction goes on.
	ErrReadOnly = errors.New("txlock: the server or the transaction is read only")
	// ErrSchema is returned when a table of lockstep is missing or not as it
	// should be. The transaction goes on.
	ErrSchema = errors.New("txlock: tables missing or wrong: run schema.Install(ctx, db) or the DDL in schema.FS, and see schema.Check")
	// ErrUnguarded is returned by Join where OnlyGuarded was asked for and the pool is
	// not guarded. The transaction goes on.
	ErrUnguarded = errors.New("txlock: the pool is not guarded: open it by locksqlc.Open, locksqlc.Connector or lockgorm.Open; where it was, something around it drops the context of its statements")
	// ErrPrivilege is returned when the user may not do what a lock needs. The message
	// names the table and the GRANT to run; schema.Check returns it, too. The
	// transaction goes on.
	ErrPrivilege = schema.ErrPrivilege
	// ErrNoQuorum is returned when a majority of databases can't be had.
	ErrNoQuorum = errors.New("txlock: no majority")
)

// The marks of what must not be started again by itself: an ErrTxDoomed where the work,
// or a part of it, was committed, or may have been. An ErrConflict for good has
// marks.ErrGiven.
var (
	errCommitted = errors.New("committed before its end")
	errUnknown   = errors.New("the server has ended it, by a statement that was not seen")
	errUnfenced  = errors.New("a savepoint may have been rolled back after the guard, and the guard with it: guard again, last in the transaction")
)

// Retryable tells whether the same transaction, started again from its
// beginning, may succeed: the server has rolled it back for a reason that passes,
// or it was behind. A transaction that a statement has committed, a cancelled
// context, a busy lock, a connection lost in COMMIT, and a COMMIT that Group Replication
// has refused (see Overtaken), whose outcome nobody knows, are not retryable, nor is the
// conflict of a version from before the transaction.
func Retryable(err error) bool {
	switch {
	case err == nil, errors.Is(err, errCommitted), errors.Is(err, errUnknown), errors.Is(err, errUnfenced), errors.Is(err, marks.ErrGiven),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, ErrDeadlock), errors.Is(err, ErrStaleSnapshot), errors.Is(err, ErrTxDoomed), errors.Is(err, ErrConflict):
		return true
	}
	v := interpret(err)
	return v.sentinel != nil && v.gone
}

// verdict is what a server's error means.
type verdict struct {
	sentinel  error // nil: nothing that a lock has a word for
	gone      bool  // the whole transaction has been rolled back
	onTimeout bool  // likewise, but under innodb_rollback_on_timeout only
}

// interpret is the one place where numbers of server errors have a meaning. What
// each leaves of the transaction was measured on MariaDB 10.11 and MySQL 9.7, the
// errors of several primaries on Galera and a Group Replication.
func interpret(err error) verdict {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return verdict{}
	}
	if _, missing := schema.MissingPrivilege(err); missing {
		return verdict{sentinel: ErrPrivilege}
	}
	switch server.Number {
	case 1213: // ER_LOCK_DEADLOCK
		return verdict{sentinel: ErrDeadlock, gone: true}
	case 1180: // ER_ERROR_DURING_COMMIT, of any statement: MySQL's InnoDB has aborted the transaction for another primary's
		if strings.Contains(" "+server.Message, " 149 - '") { // in every language of the server
			return verdict{sentinel: ErrDeadlock, gone: true}
		}
	case 1020: // ER_CHECKREAD, MariaDB under innodb_snapshot_isolation
		return verdict{sentinel: ErrStaleSnapshot, gone: true}
	case 1206: // ER_LOCK_TABLE_FULL
		return verdict{sentinel: ErrTxDoomed, gone: true}
	case 4031: // ER_CLIENT_INTERACTION_TIMEOUT, MySQL: the session was ended before
		return verdict{sentinel: ErrTxDoomed, gone: true}
	case 1205: // ER_LOCK_WAIT_TIMEOUT, on MariaDB also of NOWAIT
		return verdict{sentinel: ErrWaitTimeout, onTimeout: true}
	case 3572: // ER_LOCK_NOWAIT, MySQL
		return verdict{sentinel: ErrBusy}
	case 1969, 3024, // ER_STATEMENT_TIMEOUT (MariaDB), ER_QUERY_TIMEOUT (MySQL)
		3547: // ER_CANNOT_LOCK_USER_MANAGEMENT_CACHES: the same while a user is changed, see PastLimit
		return verdict{sentinel: ErrWaitTimeout}
	case 1290, 1792, 1836: // ER_OPTION_PREVENTS_STATEMENT (read-only), ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_READ_ONLY_MODE
		return verdict{sentinel: ErrReadOnly}
	case 1146, 1054, 1364, 1046: // ER_NO_SUCH_TABLE, ER_BAD_FIELD_ERROR, ER_NO_DEFAULT_FOR_FIELD, ER_NO_DB_ERROR
		return verdict{sentinel: ErrSchema}
	}
	return verdict{}
}

// transactionOpen judges the reply to rawsql.Probe.
func transactionOpen(reply error) (bool, error) {
	var server *mysql.MySQLError
	switch {
	case reply == nil:
		return false, nil
	case errors.As(reply, &server) && server.Number == 1568: // ER_CANT_CHANGE_TX_CHARACTERISTICS
		return true, nil
	}
	return false, reply
}

// lockError turns what a lock's statement was answered into the error of the
// call, which says what was asked for and matches the sentinel.
func lockError(what string, err error, s guard.Server) error {
	v := interpret(err)
	sentinel := v.sentinel
	switch {
	case errors.Is(err, guard.ErrOpenRows), errors.Is(err, mysql.ErrBusyBuffer):
		sentinel = ErrOpenRows
	case errors.Is(err, guard.ErrEnded), errors.Is(err, sql.ErrTxDone), errors.Is(err, sql.ErrConnDone):
		sentinel = ErrNoTransaction
	case lostConnection(err): // and the transaction with it
		sentinel = ErrTxDoomed
	case v.onTimeout && s.RollbackOnTimeout:
		sentinel = ErrTxDoomed
		if !errors.Is(err, ErrBusy) {
			sentinel = fmt.Errorf("%w: %w", v.sentinel, ErrTxDoomed)
		}
	case errors.Is(err, ErrBusy): // a try, whose number is that of a wait
		sentinel = ErrBusy
	case errors.Is(err, ErrWaitTimeout): // see PastLimit
		sentinel = ErrWaitTimeout
	case sentinel == ErrPrivilege: //nolint:errorlint // a verdict's sentinel is one of ours
		cure, _ := schema.MissingPrivilege(err)
		sentinel = fmt.Errorf("%w: %s", ErrPrivilege, cure)
	}
	return fmt.Errorf("%s: %w", what, withSentinel(sentinel, err))
}

// lostConnection tells whether the driver has said that the connection is gone.
func lostConnection(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
}

// Explain turns the error of a statement outside of the caller's transactions into
// that of a call, as all packages of lockstep return it: what was asked for, the
// sentinel of this package where there is one, and the cause. For a nil error it
// returns nil.
func Explain(what string, err error) error {
	if err == nil {
		return nil
	}
	explained := lockError(what, err, noServer)
	if errors.Is(explained, ErrTxDoomed) && !errors.Is(err, ErrTxDoomed) {
		return fmt.Errorf("%s: %w", what, err) // there is no transaction to start again
	}
	return explained
}

// Unknown tells whether a statement that was answered by this error may have been
// executed nevertheless, or may still be: there was no answer, or one to the end of
// the session.
func Unknown(err error) bool {
	var server *mysql.MySQLError
	if err == nil || !errors.As(err, &server) {
		return err != nil
	}
	switch server.Number {
	case 1053, 1317, 1927, 3169: // ER_SERVER_SHUTDOWN, ER_QUERY_INTERRUPTED, ER_CONNECTION_KILLED (MariaDB), ER_SESSION_WAS_KILLED (MySQL)
		return true
	}
	return Overtaken(err)
}

// Overtaken tells whether a member of a Group Replication has refused a commit (3101). In
// most cases another primary was first, and the transaction is rolled back. But it is also
// the answer to what waits for the group while the member leaves that, and then the others
// may have the transaction, and the member when it comes back. Unknown is true of it too.
func Overtaken(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 3101 // ER_TRANSACTION_ROLLBACK_DURING_COMMIT
}

// PastLimit is the error of a SELECT that MySQL ends after a limit. Where a user is
// changed meanwhile, CREATE USER or GRANT, a SELECT has to wait before it may look at its
// privileges; when the limit is over by then, the server says that it can't (3547), or
// that there are none (1142). The latter, too, is ErrWaitTimeout then.
func PastLimit(err error, began time.Time, limit time.Duration) error {
	var server *mysql.MySQLError
	if errors.As(err, &server) && server.Number == 1142 && limit > 0 && time.Since(began) >= limit { // ER_TABLEACCESS_DENIED_ERROR
		return fmt.Errorf("%w: %w", ErrWaitTimeout, err)
	}
	return err
}

// noServer is for errors outside of any transaction of the caller's.
var noServer guard.Server

// withSentinel joins the sentinel to the cause, once.
func withSentinel(sentinel, cause error) error {
	if sentinel == nil || errors.Is(cause, sentinel) {
		return cause
	}
	return fmt.Errorf("%w: %w", sentinel, cause)
}

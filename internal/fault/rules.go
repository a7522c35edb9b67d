package fault

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/session"
	"github.com/dca00107/lockstep/schema"
)

// Ended returns why a transaction is over after this error of a statement, or nil if it goes on.
func Ended(err error, s session.Server) error {
	v := Interpret(err)
	if v.Gone || v.OnTimeout && s.RollbackOnTimeout || errors.Is(err, ErrDeadlock) {
		return fmt.Errorf("%w: an earlier statement failed: %w", ErrTxDoomed, withSentinel(v.Sentinel, err))
	}
	return nil
}

// Lost is the error of a transaction whose connection is gone.
func Lost(cause error) error {
	return fmt.Errorf("%w: its connection was lost: %w", ErrTxDoomed, cause)
}

// Large is the error of a statement of so many bytes with which the connection was lost: it
// may be larger than the server takes, and would be lost again.
func Large(size int, cause error) error {
	return fmt.Errorf("%w: it had %d bytes: compare max_allowed_packet of the server: %w", errLarge, size, cause)
}

// ReadOnly reports whether the server can't be written to, and not the transaction alone (1792).
func ReadOnly(err error) bool { return Is(err, 1290, 1836) }

// Committed is the error of a transaction that the named statement has committed.
func Committed(statement string) error {
	return fmt.Errorf("%w: it was %w by the statement %q, which has freed the locks", ErrTxDoomed, ErrCommitted, statement)
}

// RolledBackBy is the error of a transaction that the named statement of the program has rolled
// back. It is not retried: the statements after it may have committed by themselves.
func RolledBackBy(statement string) error {
	return fmt.Errorf("%w: the statement %q rolled it back and released its locks, and the statements after it aren't part of it: %w", ErrTxDoomed, statement, ErrGiven)
}

// MayHaveCommitted is the error of a transaction that was over after the named statement, of
// which nobody knows whether it was committed or rolled back.
func MayHaveCommitted(statement string) error {
	return fmt.Errorf("%w: after the statement %q it was no longer open: the server rolled it back, or it was %w", ErrTxDoomed, statement, ErrCommitted)
}

// RolledBack is the error of a transaction that was over after the named statement, which
// can't commit, although the reply was a success.
func RolledBack(statement string) error {
	if statement == "" {
		statement = "of a lock"
	}
	return fmt.Errorf("%w: the server rolled it back, which only its state after the statement %q shows", ErrTxDoomed, statement)
}

// Unfenced is the error of a transaction that has lost the row of a lease by ROLLBACK TO
// SAVEPOINT.
func Unfenced(name string) error {
	return fmt.Errorf("%w: lease %q: %w", ErrTxDoomed, Clipped(name), errUnfenced)
}

// Refused returns the error of a transaction that a Group Replication has refused, if this
// reply to COMMIT may mean that, or nil.
func Refused(reply error) error {
	if !Overtaken(reply) {
		return nil
	}
	return fmt.Errorf("%w: another member of the group was first: %w", ErrDeadlock, reply)
}

// Interrupts reports whether this error may have come between a statement and its COMMIT in one
// text.
func Interrupts(err error) bool { return Is(err, 1317, 1969, 3024) } // ER_QUERY_INTERRUPTED, time limits

// Interrupted is the error of a transaction that isn't committed; see Interrupts.
func Interrupted(err error) error {
	return fmt.Errorf("%w: its last statement was interrupted before COMMIT: nothing is committed: %w", ErrTxDoomed, err)
}

// Rows is the error of a last statement that has changed so many rows, and not as many as it
// should.
func Rows(n, want int64) error {
	return fmt.Errorf("%w: it changed %d, and should have changed %d", ErrRows, n, want)
}

// NoSavepoint reports whether the reply to RELEASE SAVEPOINT says that there is none
// (ER_SP_DOES_NOT_EXIST).
func NoSavepoint(reply error) bool { return Is(reply, 1305) }

// Unreadable reports whether MySQL couldn't list sessions or transactions, since the statement of
// one has an emoji, or other bytes that utf8mb3 lacks (ER_CANNOT_CONVERT_STRING).
func Unreadable(err error) bool { return Is(err, 3854) }

// NoSession reports whether the reply to KILL says that there is no such session
// (ER_NO_SUCH_THREAD).
func NoSession(reply error) bool { return Is(reply, 1094) }

// TransactionOpen judges the reply to rawsql.Probe. A success means that no transaction is
// open, unless it says itself, by its flag, that one is: MySQL and MariaDB refuse the
// statement whenever they set the flag.
func TransactionOpen(reply error, flag bool) (bool, error) {
	switch {
	case reply == nil && flag:
		return false, fmt.Errorf("%w: it accepts SET TRANSACTION in a transaction", schema.ErrEngine)
	case reply == nil:
		return false, nil
	case Is(reply, 1568): // ER_CANT_CHANGE_TX_CHARACTERISTICS
		return true, nil
	}
	if !familiar(reply) {
		return false, fmt.Errorf("not an error of github.com/go-sql-driver/mysql, which lockstep needs; if the pool has another driver, open it with locksqlc.Open or lockgorm.Open: %w", reply)
	}
	return false, reply
}

// familiar reports whether an error may be one of go-sql-driver, of database/sql over it, of
// the network or of a context.
func familiar(err error) bool {
	var server *mysql.MySQLError
	var network net.Error
	if errors.As(err, &server) || errors.As(err, &network) {
		return true
	}
	for _, known := range []error{
		driver.ErrBadConn, sql.ErrTxDone, sql.ErrConnDone, context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF,
		mysql.ErrInvalidConn, mysql.ErrBusyBuffer, mysql.ErrMalformPkt, mysql.ErrPktSync, mysql.ErrPktSyncMul, mysql.ErrPktTooLarge,
		ErrOpenRows, ErrEnded, ErrTxDoomed, ErrNoTransaction,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// Clipped is a name for a message.
func Clipped(name string) string {
	if len(name) > 40 {
		return name[:40] + "..."
	}
	return name
}

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

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/schema"
)

// Rules are what the guarded pool needs to know of errors.
var Rules = guard.Rules{
	Ended: func(err error, s guard.Server) error {
		v := Interpret(err)
		if v.Gone || v.OnTimeout && s.RollbackOnTimeout || errors.Is(err, ErrDeadlock) {
			return fmt.Errorf("%w: an earlier statement was answered: %w", ErrTxDoomed, withSentinel(v.Sentinel, err))
		}
		return nil
	},
	Lost: func(cause error) error {
		return fmt.Errorf("%w: its connection was lost: %w", ErrTxDoomed, cause)
	},
	Large: func(size int, cause error) error {
		return fmt.Errorf("%w: it had %d bytes: compare max_allowed_packet of the server: %w", errLarge, size, cause)
	},
	ReadOnly: func(err error) bool { return is(err, 1290) || is(err, 1836) }, // but for 1792, of the transaction alone
	Committed: func(statement string) error {
		return fmt.Errorf("%w: it was %w by the statement %q, which has freed the locks", ErrTxDoomed, ErrCommitted, statement)
	},
	MayHaveCommitted: func(statement string) error {
		return fmt.Errorf("%w: after the statement %q it wasn't open any more: the server has rolled it back, or it was %w", ErrTxDoomed, statement, ErrCommitted)
	},
	RolledBack: func(statement string) error {
		if statement == "" {
			statement = "of a lock"
		}
		return fmt.Errorf("%w: the server has rolled it back, and says so only by its state after the statement %q", ErrTxDoomed, statement)
	},
	Outcome:      Outcome,
	NotCommitted: NotCommitted,
	KeepsOpen:    KeepsOpen,
	Unfenced: func(name string) error {
		return fmt.Errorf("%w: lease %q: %w", ErrTxDoomed, Clipped(name), errUnfenced)
	},
	Refused: func(reply error) error {
		if !Overtaken(reply) {
			return nil
		}
		return fmt.Errorf("%w: another member of the group was first: %w", ErrDeadlock, reply)
	},
	Open:        TransactionOpen,
	NoProcedure: NoProcedure,
	Interrupts: func(err error) bool {
		return is(err, 1317) || is(err, 1969) || is(err, 3024) || !KeepsOpen(err) // ER_QUERY_INTERRUPTED, time limits
	},
	Interrupted: func(err error) error {
		return fmt.Errorf("%w: its last statement was interrupted before COMMIT: nothing is committed: %w", ErrTxDoomed, err)
	},
	Rows: func(n, want int64) error {
		return fmt.Errorf("%w: it has changed %d, and should have changed %d", ErrRows, n, want)
	},
	NoSavepoint: func(reply error) bool { return is(reply, 1305) }, // ER_SP_DOES_NOT_EXIST
	Gone:        func(reply error) bool { return is(reply, 1094) }, // ER_NO_SUCH_THREAD
}

// TransactionOpen judges the reply to rawsql.Probe. A success means that no transaction is
// open, unless it says itself, by its flag, that one is: MySQL and MariaDB refuse the
// statement whenever they set the flag.
func TransactionOpen(reply error, flag bool) (bool, error) {
	switch {
	case reply == nil && flag:
		return false, fmt.Errorf("%w: it accepts SET TRANSACTION in a transaction", schema.ErrEngine)
	case reply == nil:
		return false, nil
	case is(reply, 1568): // ER_CANT_CHANGE_TX_CHARACTERISTICS
		return true, nil
	}
	if !familiar(reply) {
		return false, fmt.Errorf("that is no error of github.com/go-sql-driver/mysql, which lockstep needs: if the pool has another driver, open it by locksqlc.Open or lockgorm.Open: %w", reply)
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
		guard.ErrOpenRows, guard.ErrEnded, ErrTxDoomed, ErrNoTransaction,
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

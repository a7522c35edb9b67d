package txlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/guard"
)

// PoolOption is an option of a guarded pool.
type PoolOption interface{ toPool(*guard.Rules) }

// Guarded wraps the connector of go-sql-driver/mysql into that of a guarded pool.
// Programs use locksqlc.Open, locksqlc.Connector or lockgorm.Open, which call it.
func Guarded(base driver.Connector, options ...PoolOption) driver.Connector {
	r := rules
	for _, option := range options {
		option.toPool(&r)
	}
	return guard.Wrap(base, r)
}

// rules are what the guarded pool needs to know of errors.
var rules = guard.Rules{
	Ended: func(err error, s guard.Server) error {
		v := interpret(err)
		if v.gone || v.onTimeout && s.RollbackOnTimeout {
			return fmt.Errorf("%w: an earlier statement was answered: %w", ErrTxDoomed, withSentinel(v.sentinel, err))
		}
		return nil
	},
	Lost: func(cause error) error {
		return fmt.Errorf("%w: its connection was lost: %w", ErrTxDoomed, cause)
	},
	Committed: func(statement string) error {
		return fmt.Errorf("%w: it was %w by the statement %q, which has freed the locks", ErrTxDoomed, errCommitted, statement)
	},
	MayHaveCommitted: func(statement string) error {
		return fmt.Errorf("%w: after the statement %q it wasn't open any more: the server has rolled it back, or it was %w", ErrTxDoomed, statement, errCommitted)
	},
	RolledBack: func(statement string) error {
		if statement == "" {
			statement = "of a lock"
		}
		return fmt.Errorf("%w: the server has rolled it back, though it has answered the statement %q with success", ErrTxDoomed, statement)
	},
	Unfenced: func(name string) error {
		return fmt.Errorf("%w: lease %q: %w", ErrTxDoomed, clipped(name), errUnfenced)
	},
	Open: transactionOpen,
	NoSavepoint: func(reply error) bool {
		var server *mysql.MySQLError
		return errors.As(reply, &server) && server.Number == 1305 // ER_SP_DOES_NOT_EXIST
	},
	Gone: func(reply error) bool {
		var server *mysql.MySQLError
		return errors.As(reply, &server) && server.Number == 1094 // ER_NO_SUCH_THREAD
	},
}

// CheckGuarded returns nil where the transactions of a pool are those of a guarded pool, and
// ErrUnguarded where they are not: because it was opened without, or because something
// around it drops the context of what it hands on, which the error says. A program calls it
// once, when it starts. It takes a connection of the pool and begins no transaction.
func CheckGuarded(ctx context.Context, db *sql.DB) (err error) {
	if db == nil {
		return errors.New("txlock: CheckGuarded needs a *sql.DB, got nil")
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("look at the pool: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	_, guarded, reply := guard.Ask(ctx, conn)
	if guarded {
		return nil
	}
	if reply != nil {
		return Explain("look at the pool", reply)
	}
	server, err := introduce(ctx, conn)
	if err != nil {
		return Explain("look at the pool", err)
	}
	if guard.Guards(server) {
		return fmt.Errorf("%w: this is so here: put the wrapper under it, locksqlc.Connector(wrapped), or let it hand on the contexts of ExecContext and PrepareContext", ErrUnguarded)
	}
	return ErrUnguarded
}

package txlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/guard"
)

// A PoolOption configures a guarded pool.
type PoolOption interface{ toPool(*pooled) }

// pooled is what the options of a pool set for the scopes of all of its transactions.
type pooled struct {
	watch Observer      // nil for none
	looks *sql.DB       // where NameHolders looks, nil for nowhere
	slow  time.Duration // from when on SlowWait looks there, 0 for never
}

// Guarded wraps the connector of go-sql-driver/mysql into that of a guarded pool.
func (internals) Guarded(base driver.Connector, options ...PoolOption) driver.Connector {
	var p pooled
	for _, option := range options {
		option.toPool(&p)
	}
	return guard.Wrap(base, guard.Options{Value: &p})
}

// CheckGuarded returns nil if the pool is guarded, and ErrUnguarded if it isn't: because it was
// opened in another way, or because a wrapper drops the context of what it passes on, which the
// error reports. Call it once, when the program starts. It uses a connection of the pool and
// begins no transaction.
func CheckGuarded(ctx context.Context, db *sql.DB) (err error) {
	if ctx == nil {
		return errors.New("txlock: CheckGuarded needs a context, got nil")
	}
	if db == nil {
		return errors.New("txlock: CheckGuarded needs a *sql.DB, got nil")
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("query the pool: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	_, guarded, reply := guard.Ask(ctx, conn)
	if guarded {
		return nil
	}
	if reply != nil {
		return fault.Explain("query the pool", reply)
	}
	server, err := introduce(ctx, conn)
	if err != nil {
		return fault.Explain("query the pool", err)
	}
	if guard.Guards(server) {
		return fmt.Errorf("%w: put the wrapper under it, locksqlc.Connector(wrapped), or let it pass on the contexts of ExecContext and PrepareContext", ErrUnguarded)
	}
	return ErrUnguarded
}

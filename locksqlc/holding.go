package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
)

// holding is the transaction of Do. A guarded pool sends its BEGIN together with the lock; on an
// unguarded one it is begun and ended as text.
type holding struct {
	conn  *sql.Conn
	tx    *sql.Tx // nil on an unguarded pool
	scope *txlock.Scope
}

// holdOn begins the transaction. It doesn't end with the context, but with release.
func holdOn(ctx context.Context, conn *sql.Conn) (*holding, error) {
	onGuarded := false
	err := conn.Raw(func(driverConn any) error {
		onGuarded = guarded(driverConn)
		return nil
	})
	h := &holding{conn: conn}
	switch {
	case err != nil:
	case onGuarded:
		h.tx, err = conn.BeginTx(context.WithoutCancel(ctx), nil)
	default:
		_, err = conn.ExecContext(ctx, "BEGIN")
	}
	return h, err
}

// join returns the scope of the transaction.
func (h *holding) join(ctx context.Context) (_ *txlock.Scope, err error) {
	if h.tx != nil {
		h.scope, err = Join(ctx, h.tx)
	} else {
		h.scope, err = JoinConn(ctx, h.conn, txlock.NothingRead())
	}
	return h.scope, err
}

// release commits the transaction with the raised token, so that somebody who locks next
// with an older snapshot is told. If that fails, it closes the connection, and the server
// ends the lock.
func (h *holding) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*serverCheck)
	defer cancel()
	var err error
	switch {
	case h.tx == nil:
		_, err = h.conn.ExecContext(ctx, "COMMIT")
	case h.scope == nil: // nothing was sent
	default:
		err = inner.Commit(ctx, h.scope)
	}
	if h.tx != nil { // which was committed: that only ends the *sql.Tx
		if endErr := fault.UnlessGone(h.tx.Rollback()); err == nil {
			err = endErr
		}
	}
	if err == nil || errors.Is(err, txlock.ErrTxDoomed) {
		return unanswered(ctx, err)
	}
	discard := h.conn.Raw(func(any) error { return driver.ErrBadConn })
	return fault.Join(unanswered(ctx, err), fault.UnlessGone(discard))
}

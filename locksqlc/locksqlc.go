package locksqlc

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/txlock"
)

// inner is what package txlock does for this one.
var inner = txlock.Internal(bridge.Pass{})

// Open opens a guarded pool for a data source name of go-sql-driver/mysql. As with
// sql.Open, no connection is made yet. BeginTx of the pool sends nothing, unless SET TRANSACTION
// was sent before, or what may send it: BEGIN is sent with the first statement of the transaction,
// in one round trip with it if that is a lock. On MySQL that needs the procedures of package
// schema. Open returns an error for a name that can't be parsed.
func Open(dsn string, options ...txlock.PoolOption) (*sql.DB, error) {
	base, err := connectorOf(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(Connector(base, options...)), nil
}

// connectorOf returns a connector of go-sql-driver/mysql.
func connectorOf(dsn string) (driver.Connector, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("locksqlc: parse the data source name: %w", err)
	}
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("locksqlc: make a connector: %w", err)
	}
	return base, nil
}

// Connector returns the connector of a guarded pool, for sql.OpenDB, around one of
// go-sql-driver/mysql. Every statement, transaction and error passes through unchanged, with one
// exception: a transaction that the server has rolled back takes no further statement, and neither
// it nor one that has lost its locks is committed. Both return ErrTxDoomed. After a statement that
// may have ended the transaction (CALL, EXECUTE, DDL) the connector may send a query of its own in
// it, so SHOW WARNINGS, GET DIAGNOSTICS and ROW_COUNT() don't show that statement's results.
func Connector(base driver.Connector, options ...txlock.PoolOption) driver.Connector {
	return inner.Guarded(base, options...)
}

// Join returns the scope of an open transaction, which acquires its locks. It returns
// ErrNoTransaction if the transaction is nil or has ended, ErrTxDoomed if the server has ended it,
// and the errors of the driver. The transaction stays open.
func Join(ctx context.Context, tx *sql.Tx, options ...txlock.JoinOption) (*txlock.Scope, error) {
	if tx == nil {
		return nil, fmt.Errorf("%w: the *sql.Tx is nil", txlock.ErrNoTransaction)
	}
	return txlock.Join(ctx, tx, options...)
}

// JoinConn is Join for a transaction that the program has begun with BEGIN as a statement on a
// *sql.Conn.
func JoinConn(ctx context.Context, conn *sql.Conn, options ...txlock.JoinOption) (*txlock.Scope, error) {
	if conn == nil {
		return nil, fmt.Errorf("%w: the *sql.Conn is nil", txlock.ErrNoTransaction)
	}
	return txlock.Join(ctx, connTx{conn}, options...)
}

// connTx makes a connection a txlock.Tx. The program ends what it has begun by BEGIN with
// COMMIT or ROLLBACK sent as a statement, and txlock calls neither method.
type connTx struct{ *sql.Conn }

var errOwnEnd = errors.New("locksqlc: a transaction begun by BEGIN is ended by COMMIT or ROLLBACK sent as a statement")

// ExecContext sends a statement, unless rows are open on a plain connection: the driver
// would drop the connection, and database/sql would wait until the rows are closed. Every
// lock call begins with ExecContext.
func (c connTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := c.Raw(notBusy); err != nil {
		return nil, err
	}
	return c.Conn.ExecContext(ctx, query, args...)
}

// notBusy returns ErrOpenRows if a connection of go-sql-driver has unread data, or is
// closed. A guarded connection finds that out by itself.
func notBusy(driverConn any) error {
	if guarded(driverConn) {
		return nil
	}
	if v, ok := driverConn.(driver.Validator); ok && !v.IsValid() {
		return fmt.Errorf("%w (or the connection is closed)", txlock.ErrOpenRows)
	}
	return nil
}

// guarded reports whether a connection is that of a guarded pool.
func guarded(driverConn any) bool {
	_, is := driverConn.(interface{ OpenRows() int })
	return is
}

func (connTx) Commit() error   { return errOwnEnd }
func (connTx) Rollback() error { return errOwnEnd }

var (
	_ txlock.Tx = (*sql.Tx)(nil)
	_ txlock.Tx = connTx{}
)

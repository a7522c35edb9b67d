package memstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Pool returns the pool that stands for the store, see store.Of: the leases of
// lease.NewManager(pool) are those of the store. Its BeginTx begins a Tx, which Join finds
// behind the *sql.Tx. It takes no SQL. Close it in the end.
func (s *Store) Pool() *sql.DB {
	s.once.Do(func() {
		s.pool = sql.OpenDB(connector{s})
		// No other connection is open yet, so that no limit of the pool is in the way later.
		asks, _ := s.pool.PrepareContext(context.WithValue(context.Background(), askKey{}, true), "")
		s.asks.Store(asks)
	})
	return s.pool
}

// errNoSQL is the error of every statement.
var errNoSQL = errors.New("this pool has leases in memory, it takes no SQL")

// connector is the connector and the driver of a pool.
type connector struct{ store *Store }

func (c connector) Connect(context.Context) (driver.Conn, error) { return &conn{store: c.store}, nil }
func (c connector) Open(string) (driver.Conn, error)             { return &conn{store: c.store}, nil }
func (c connector) Driver() driver.Driver                        { return c }
func (c connector) LeaseStore() store.Store                      { return c.store }

// conn is a connection, with a transaction while the program has one.
type conn struct {
	store *Store
	tx    *Tx
}

// askKey is the key of what asks a connection for its transaction: a **Tx for the answer.
type askKey struct{}

func (c *conn) Close() error                        { return nil }
func (c *conn) Begin() (driver.Tx, error)           { return c.BeginTx(context.Background(), driver.TxOptions{}) }
func (c *conn) Prepare(string) (driver.Stmt, error) { return nil, errNoSQL }

// PrepareContext prepares what asks for the transaction, and nothing else.
func (c *conn) PrepareContext(ctx context.Context, _ string) (driver.Stmt, error) {
	if ctx.Value(askKey{}) == nil {
		return nil, errNoSQL
	}
	return asks{c}, nil
}

// Ping fails while the store is down.
func (c *conn) Ping(ctx context.Context) error {
	return c.store.perform(ctx, "Ping", store.Row{}, func() error { return nil })
}

func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	level := sql.IsolationLevel(o.Isolation)
	if o.ReadOnly || level != sql.LevelDefault && level != sql.LevelRepeatableRead && level != sql.LevelReadCommitted {
		return nil, fmt.Errorf("a transaction in memory is REPEATABLE READ or READ COMMITTED, and not read-only: it can't be %v, read-only %t", level, o.ReadOnly)
	}
	return driverTx{c}, c.store.perform(ctx, "Begin", store.Row{}, func() error {
		c.tx = c.store.begin(level != sql.LevelReadCommitted)
		return nil
	})
}

// driverTx is the transaction of a connection as database/sql knows it.
type driverTx struct{ *conn }

// Commit commits. After an error there is nobody to roll back: the connection would be
// closed.
func (d driverTx) Commit() error {
	err := d.tx.Commit()
	if err != nil {
		_ = d.tx.Rollback() // it may have ended
	}
	return err
}

func (d driverTx) Rollback() error {
	_ = d.tx.Rollback() // the server may have ended it, which is as good
	return nil
}

// asks is the statement that asks a connection for its transaction.
type asks struct{ *conn }

func (asks) NumInput() int                              { return 0 }
func (asks) Exec([]driver.Value) (driver.Result, error) { return nil, errNoSQL }
func (asks) Query([]driver.Value) (driver.Rows, error)  { return nil, errNoSQL }
func (a asks) ExecContext(ctx context.Context, _ []driver.NamedValue) (driver.Result, error) {
	*ctx.Value(askKey{}).(**Tx) = a.tx
	return driver.ResultNoRows, nil
}

// behind returns the Tx that is a transaction of the pool, or nil for that of another.
// Nothing is sent in that, which may be a mock: database/sql refuses a statement of one
// pool in the transaction of another.
func (s *Store) behind(ctx context.Context, tx *sql.Tx) (t *Tx, err error) {
	asks := s.asks.Load()
	if asks == nil {
		return nil, nil // there is no pool
	}
	ctx = context.WithValue(ctx, askKey{}, &t)
	asks = tx.StmtContext(ctx, asks)
	defer func() { _ = asks.Close() }() // nothing is open
	_, err = asks.ExecContext(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, sql.ErrTxDone):
		return nil, fmt.Errorf("%w: %w", txlock.ErrNoTransaction, err)
	}
	return t, nil
}

// noSQL refuses the statements of a transaction.
type noSQL struct{}

func (noSQL) ExecContext(context.Context, string, ...any) (sql.Result, error) { return nil, errNoSQL }
func (noSQL) PrepareContext(context.Context, string) (*sql.Stmt, error)       { return nil, errNoSQL }
func (noSQL) QueryContext(context.Context, string, ...any) (*sql.Rows, error) { return nil, errNoSQL }
func (noSQL) QueryRowContext(ctx context.Context, query string, _ ...any) *sql.Row {
	pool := sql.OpenDB(connector{})     // nothing else makes a Row
	defer func() { _ = pool.Close() }() // it has nothing open
	return pool.QueryRowContext(ctx, query)
}

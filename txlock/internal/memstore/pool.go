package memstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/dca00107/lockstep/txlock/internal/store"
)

// Pool returns a pool that stands for the store, see store.Of: the leases of
// lease.NewManager(pool) are those of the store. It takes no SQL. Close it in the end.
func (s *Store) Pool() *sql.DB { return sql.OpenDB(unconnected{s}) }

var errNoSQL = errors.New("memstore: leases in memory take no SQL")

// unconnected is the connector and the driver of a pool without connections.
type unconnected struct{ store *Store }

func (unconnected) Connect(context.Context) (driver.Conn, error) { return nil, errNoSQL }
func (unconnected) Open(string) (driver.Conn, error)             { return nil, errNoSQL }
func (u unconnected) Driver() driver.Driver                      { return u }
func (u unconnected) LeaseStore() store.Store                    { return u.store }

// noSQL refuses the statements of a transaction.
type noSQL struct{}

func (noSQL) ExecContext(context.Context, string, ...any) (sql.Result, error) { return nil, errNoSQL }
func (noSQL) PrepareContext(context.Context, string) (*sql.Stmt, error)       { return nil, errNoSQL }
func (noSQL) QueryContext(context.Context, string, ...any) (*sql.Rows, error) { return nil, errNoSQL }
func (noSQL) QueryRowContext(ctx context.Context, query string, _ ...any) *sql.Row {
	pool := sql.OpenDB(unconnected{})   // nothing else makes a Row
	defer func() { _ = pool.Close() }() // it has nothing open
	return pool.QueryRowContext(ctx, query)
}

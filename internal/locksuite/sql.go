package locksuite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// BeginSQL begins a transaction on a pool of database/sql.
type BeginSQL func(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (Session, error)

// OpenSQL is an Adapter's Open of pools of database/sql. To wrap is to make the pool a
// guarded one, nil for a plain one.
func OpenSQL(wrap func(driver.Connector) driver.Connector, begin BeginSQL) func(tb testing.TB, cfg *mysql.Config) Pool {
	return func(tb testing.TB, cfg *mysql.Config) Pool {
		tb.Helper()
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		if wrap != nil {
			connector = wrap(connector)
		}
		db := sql.OpenDB(connector)
		tb.Cleanup(func() {
			if err := db.Close(); err != nil {
				tb.Errorf("close the pool: %v", err)
			}
		})
		return sqlPool{db, begin}
	}
}

type sqlPool struct {
	db    *sql.DB
	begin BeginSQL
}

func (p sqlPool) DB() *sql.DB { return p.db }

func (p sqlPool) Begin(ctx context.Context, level sql.IsolationLevel) (Session, error) {
	return p.begin(ctx, p.db, level)
}

// Statements are a Session's statements on a *sql.Tx or *sql.Conn.
type Statements struct {
	On interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

// Exec is that of a Session.
func (s Statements) Exec(ctx context.Context, query string, args ...any) error {
	_, err := s.On.ExecContext(ctx, query, args...)
	return err
}

// Int is that of a Session.
func (s Statements) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.On.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// Rows are open rows.
func (s Statements) Rows(ctx context.Context, query string) (*sql.Rows, error) {
	return s.On.QueryContext(ctx, query)
}

// Savepoint is that of a Session.
func (s Statements) Savepoint(ctx context.Context, name string) error {
	return s.Exec(ctx, "SAVEPOINT "+name)
}

// RollbackTo is that of a Session.
func (s Statements) RollbackTo(ctx context.Context, name string) error {
	return s.Exec(ctx, "ROLLBACK TO SAVEPOINT "+name)
}

package locksuite

import (
	"context"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// BeginSQL begins a transaction on a pool of database/sql.
type BeginSQL func(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (Session, error)

// OpenSQL is an Adapter's Open of pools of database/sql.
func OpenSQL(guarded bool, begin BeginSQL) func(tb testing.TB, cfg *mysql.Config) Pool {
	return func(tb testing.TB, cfg *mysql.Config) Pool {
		tb.Helper()
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		if guarded {
			connector = locksqlc.Connector(connector)
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

// txSession joins a *sql.Tx.
type txSession struct {
	Statements
	tx *sql.Tx
}

// BeginTx begins a *sql.Tx.
func BeginTx(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (Session, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	return txSession{Statements{On: tx}, tx}, err
}

func (s txSession) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.Join(ctx, s.tx, options...)
}

func (s txSession) Commit() error   { return s.tx.Commit() }
func (s txSession) Rollback() error { return s.tx.Rollback() }

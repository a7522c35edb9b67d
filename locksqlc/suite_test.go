package locksqlc_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/locksuite"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestSuite(t *testing.T) {
	locksuite.Run(t,
		locksuite.Adapter{Name: "sqltx-guarded", Guarded: true, Open: open(true, beginTx)},
		locksuite.Adapter{Name: "sqltx-plain", Open: open(false, beginTx)},
		locksuite.Adapter{Name: "sqlconn-guarded", Guarded: true, Open: open(true, beginConn)},
		locksuite.Adapter{Name: "sqlconn-plain", Open: open(false, beginConn)},
	)
}

// pool is a pool of database/sql, with a way to begin.
type pool struct {
	db    *sql.DB
	begin func(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error)
}

func (p pool) DB() *sql.DB { return p.db }

func (p pool) Begin(ctx context.Context, level sql.IsolationLevel) (locksuite.Session, error) {
	return p.begin(ctx, p.db, level)
}

func open(guarded bool, begin func(context.Context, *sql.DB, sql.IsolationLevel) (locksuite.Session, error)) func(testing.TB, *mysql.Config) locksuite.Pool {
	return func(tb testing.TB, cfg *mysql.Config) locksuite.Pool {
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
		return pool{db, begin}
	}
}

// querier is what *sql.Tx and *sql.Conn have in common.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

type statements struct{ querier }

func (s statements) Exec(ctx context.Context, query string, args ...any) error {
	_, err := s.ExecContext(ctx, query, args...)
	return err
}

func (s statements) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

func (s statements) Rows(ctx context.Context, query string) (*sql.Rows, error) {
	return s.QueryContext(ctx, query)
}

func (s statements) Savepoint(ctx context.Context, name string) error {
	return s.Exec(ctx, "SAVEPOINT "+name)
}

func (s statements) RollbackTo(ctx context.Context, name string) error {
	return s.Exec(ctx, "ROLLBACK TO SAVEPOINT "+name)
}

// txSession joins a *sql.Tx.
type txSession struct {
	statements
	*sql.Tx
}

func beginTx(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	return txSession{statements{tx}, tx}, err
}

func (s txSession) Exec(ctx context.Context, query string, args ...any) error {
	return s.statements.Exec(ctx, query, args...)
}

func (s txSession) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.Join(ctx, s.Tx, options...)
}

// connSession joins a *sql.Conn on which BEGIN was sent.
type connSession struct {
	statements
	conn *sql.Conn
}

func beginConn(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := connSession{statements{conn}, conn}
	for _, text := range []string{"SET TRANSACTION ISOLATION LEVEL " + map[sql.IsolationLevel]string{
		sql.LevelRepeatableRead: "REPEATABLE READ", sql.LevelReadCommitted: "READ COMMITTED",
	}[level], "BEGIN"} {
		if err := s.Exec(ctx, text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s connSession) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.JoinConn(ctx, s.conn, options...)
}

func (s connSession) Commit() error   { return s.end("COMMIT") }
func (s connSession) Rollback() error { return s.end("ROLLBACK") }

// end ends the transaction and gives the connection back.
func (s connSession) end(text string) error {
	err := s.Exec(context.Background(), text)
	if closeErr := s.conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

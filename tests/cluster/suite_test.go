//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/locksuite"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// TestSuite shows the behaviours of locks through one node: there all hold, but for
// shared locks, which are refused.
func TestSuite(t *testing.T) {
	galera(t)
	locksuite.Run(t,
		locksuite.Adapter{Name: "guarded", Guarded: true, Open: open(true)},
		locksuite.Adapter{Name: "plain", Open: open(false)},
	)
}

func open(guarded bool) func(testing.TB, *mysql.Config) locksuite.Pool {
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
		return pool{db}
	}
}

type pool struct{ db *sql.DB }

func (p pool) DB() *sql.DB { return p.db }

func (p pool) Begin(ctx context.Context, level sql.IsolationLevel) (locksuite.Session, error) {
	tx, err := p.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	return session{tx}, err
}

// session joins a *sql.Tx.
type session struct{ *sql.Tx }

func (s session) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.Join(ctx, s.Tx, options...)
}

func (s session) Exec(ctx context.Context, query string, args ...any) error {
	_, err := s.ExecContext(ctx, query, args...)
	return err
}

func (s session) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

func (s session) Rows(ctx context.Context, query string) (*sql.Rows, error) {
	return s.QueryContext(ctx, query)
}

func (s session) Savepoint(ctx context.Context, name string) error {
	return s.Exec(ctx, "SAVEPOINT "+name)
}

func (s session) RollbackTo(ctx context.Context, name string) error {
	return s.Exec(ctx, "ROLLBACK TO SAVEPOINT "+name)
}

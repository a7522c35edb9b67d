//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
	if !guarded {
		return locksuite.OpenSQL(nil, begin)
	}
	return locksuite.OpenSQL(func(c driver.Connector) driver.Connector { return locksqlc.Connector(c) }, begin)
}

// session joins a *sql.Tx.
type session struct {
	locksuite.Statements
	tx *sql.Tx
}

func begin(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	return session{locksuite.Statements{On: tx}, tx}, err
}

func (s session) Join(ctx context.Context, options ...txlock.JoinOption) (*txlock.Scope, error) {
	return locksqlc.Join(ctx, s.tx, options...)
}

func (s session) Commit() error   { return s.tx.Commit() }
func (s session) Rollback() error { return s.tx.Rollback() }

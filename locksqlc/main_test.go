package locksqlc_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestSuite(t *testing.T) { locksuite.Run(t, adapters...) }

var adapters = []locksuite.Adapter{
	{Name: "sqltx-guarded", Guarded: true, Open: locksuite.OpenSQL(true, locksuite.BeginTx)},
	{Name: "sqltx-plain", Open: locksuite.OpenSQL(false, locksuite.BeginTx)},
	{Name: "sqlconn-guarded", Guarded: true, Open: locksuite.OpenSQL(true, beginConn)},
	{Name: "sqlconn-plain", Open: locksuite.OpenSQL(false, beginConn)},
}

// connSession joins a *sql.Conn on which BEGIN was sent.
type connSession struct {
	locksuite.Statements
	conn *sql.Conn
}

func beginConn(ctx context.Context, db *sql.DB, level sql.IsolationLevel) (locksuite.Session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := connSession{locksuite.Statements{On: conn}, conn}
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

// end ends the transaction and returns the connection.
func (s connSession) end(text string) error {
	err := s.Exec(context.Background(), text)
	if closeErr := s.conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

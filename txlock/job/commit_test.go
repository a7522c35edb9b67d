package job

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// lossy are connections on which the answer to COMMIT is lost: after it was executed, or
// before.
type lossy struct {
	driver.Connector
	before, after *bool
}

func (l lossy) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := l.Connector.Connect(ctx)
	return &lossyConn{c, l}, err
}

type lossyConn struct {
	driver.Conn
	lossy lossy
}

func (c *lossyConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	return lossyTx{tx, c.lossy}, err
}

func (c *lossyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *lossyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *lossyConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

type lossyTx struct {
	driver.Tx
	lossy lossy
}

func (tx lossyTx) Commit() error {
	switch {
	case *tx.lossy.before:
		return errors.Join(mysql.ErrInvalidConn, tx.Rollback())
	case *tx.lossy.after:
		return errors.Join(mysql.ErrInvalidConn, tx.Tx.Commit())
	}
	return tx.Tx.Commit()
}

// TestUnansweredCommit proves that TickTx finds out whether a COMMIT that was not answered
// was executed: fn is not called again then, and else it may be.
func TestUnansweredCommit(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ticks", "id BIGINT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(20)")
		connector, err := mysql.NewConnector(db.Config())
		must(t, err)
		var before, after bool
		pool := sql.OpenDB(lossy{connector, &before, &after})
		j := open(t, newPool(t, db, true))
		defer pool.Close()
		losing, err := New(pool, j.leases)
		must(t, err)
		key, at := newKey(), serverNow(t, j)
		fn := func(ctx context.Context, tx *sql.Tx, _ time.Time) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+table+" (what) VALUES ('done')")
			return err
		}
		before = true
		if ran, err := losing.TickTx(t.Context(), key, at, fn); !ran || !errors.Is(err, txlock.ErrUnknownOutcome) || !errors.Is(err, mysql.ErrInvalidConn) {
			t.Errorf("not executed: %v, %v", ran, err)
		}
		before, after = false, true
		if ran, err := losing.TickTx(t.Context(), key, at, fn); !ran || err != nil {
			t.Errorf("executed: %v, %v", ran, err)
		}
		if ran, err := j.TickTx(t.Context(), key, at, fn); ran || err != nil {
			t.Errorf("again: %v, %v", ran, err)
		}
		if n := count(t, db, "SELECT COUNT(*) FROM "+table); n != 1 {
			t.Errorf("%d rows", n)
		}
		s, err := j.Status(t.Context(), key)
		if err != nil || !s.Done.Equal(at) || s.Err != "" {
			t.Errorf("the table says %+v, %v", s, err)
		}
	})
}

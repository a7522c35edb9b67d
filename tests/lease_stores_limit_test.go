//go:build onecpu

package tests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/tests/faults"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestStoresWhileUsersAreChanged proves that a lease is waited for although MySQL denies its
// SELECT, as it does after a limit while users are changed; also in a bubble, whose time
// stands still meanwhile. That what is denied before the limit fails is fault.TestPastLimit's.
func TestStoresWhileUsersAreChanged(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				inBubble(t, func(t *testing.T) {
					if denied, err := denyWaiter(t, db, guarded); err != nil || denied < 2 {
						t.Errorf("a lease that is denied %d times after the limit: %v", denied, err)
					}
				})
			})
		}
	}
}

// denyWaiter acquires a lease while a transaction has its row locked: the SELECTs that wait
// for the row are denied after their limit. It ends the transaction after two of them, and
// returns how many were denied.
func denyWaiter(t *testing.T, db *testdb.DB, guarded bool) (times int32, err error) {
	t.Helper()
	var denied atomic.Int32
	base, err := mysql.NewConnector(db.Config())
	fatal(t, err)
	connector := driver.Connector(denying{base, &denied})
	if guarded {
		connector = locksqlc.Connector(connector)
	}
	pool := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, pool.Close()) }()
	m, err := lease.NewManager(pool, lease.Poll(poll, poll))
	fatal(t, err)
	key := txlock.Named("denied")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fatal(t, m.DoShared(ctx, key, func(context.Context, *lease.Lease) error { return nil }))
	tx, err := pool.BeginTx(ctx, nil)
	fatal(t, err)
	fatal(t, second(m.AcquireTx(ctx, tx, key)))
	done := make(chan error, 1)
	go func() {
		done <- m.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil })
	}()
	for denied.Load() < 2 && len(done) == 0 {
		time.Sleep(poll)
	}
	err = tx.Rollback()
	return denied.Load(), errors.Join(err, <-done, m.Close(ctx))
}

// denying denies the SELECTs that wait for the row of a lease, each after its limit.
type denying struct {
	driver.Connector
	denied *atomic.Int32
}

func (d denying) Connect(ctx context.Context) (driver.Conn, error) {
	base, err := d.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := base.(faults.Conn)
	if !ok {
		return nil, fmt.Errorf("%T lacks a method", base)
	}
	return &denyingConn{full, d}, nil
}

type denyingConn struct {
	faults.Conn
	denying
}

func (c *denyingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !strings.Contains(query, "-- name: LockLease ") {
		return c.Conn.QueryContext(ctx, query, args)
	}
	if _, err := c.ExecContext(ctx, "DO SLEEP(0.2)", nil); err != nil {
		return nil, err
	}
	c.denied.Add(1)
	return nil, &mysql.MySQLError{Number: 1142, Message: "SELECT with locking clause command denied"}
}

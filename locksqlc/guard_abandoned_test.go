package locksqlc_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// soon is far below innodb_lock_wait_timeout, 50 s: so long the server would keep the
// locks of a session whose client is gone.
const soon = 20 * time.Second

// waiter is a transaction that holds a key and waits for something that another
// holds.
type waiter struct {
	tx   *sql.Tx
	mine txlock.Key
	conn int64
}

// newWaiter begins one. Its key has a row: if the first lock of a key is rolled back, its
// waiters lock the gap beside it, which would disturb other tests.
func newWaiter(t *testing.T, pool *sql.DB) waiter {
	t.Helper()
	w := waiter{tx: begin(t, pool), mine: uniqueKey(t, "mine")}
	check(t, txlock.Ensure(t.Context(), pool, w.mine))
	w.conn = testdb.ConnID(t, w.tx)
	lock(t, join(t, w.tx), w.mine)
	return w
}

// isAbandoned fails the test unless the key of the waiter is free at once, and its
// transaction is doomed.
func (w waiter) isAbandoned(t *testing.T, db *testdb.DB) {
	t.Helper()
	begun := time.Now()
	next := begin(t, newPool(t, db.Config(), true))
	lock(t, join(t, next), w.mine)
	if took := time.Since(begun); took > soon {
		t.Errorf("the lock of the abandoned session was free after %v", took)
	}
	db.WaitGone(t, w.conn)
	wantDoomed(t, "the next statement", second(w.tx.ExecContext(t.Context(), "SELECT 1")), 0)
	wantDoomed(t, "Commit", w.tx.Commit(), 0)
}

func TestAbandonedStatementIsKilled(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "counters", counters)
		db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0)")
		pool := newPool(t, db.Config(), true)
		exec(t, begin(t, pool), "UPDATE "+table+" SET v = 1")
		w := newWaiter(t, pool)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		answered := db.Waiting(t, w.conn, func() error { return second(w.tx.ExecContext(ctx, "UPDATE "+table+" SET v = 2")) })
		cancel()
		err := <-answered
		slow := errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "end the abandoned session") // a busy server hasn't answered to the KILL within a second
		if err != context.Canceled && !slow {                                                                  //nolint:errorlint // unchanged, as a plain pool has it
			t.Errorf("the cancelled statement returned %#v, want context.Canceled itself", err)
		}
		w.isAbandoned(t, db)
	})
}

// TestAbandonedRowsAreKilled cancels a query that waits after its first rows.
func TestAbandonedRowsAreKilled(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "crossed", crossed)
		db.Exec(t, "INSERT INTO "+table+rowsOfIt)
		pool := newPool(t, db.Config(), true)
		exec(t, begin(t, pool), "UPDATE "+table+" SET v = 1 WHERE id = 4000")
		w := newWaiter(t, pool)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		answered := make(chan error, 1)
		go func() {
			rows, err := w.tx.QueryContext(ctx, "SELECT id, pad FROM "+table+" ORDER BY id FOR UPDATE")
			if err != nil {
				answered <- err
				return
			}
			for rows.Next() {
			}
			answered <- rows.Err()
			_ = rows.Close()
		}()
		db.WaitForLockWait(t, w.conn)
		cancel()
		isError(t, "the cancelled rows", <-answered, context.Canceled)
		w.isAbandoned(t, db)
	})
}

// TestReadTimeoutDooms has a readTimeout that is shorter than the wait: the driver closes
// the connection, and the server doesn't notice.
func TestReadTimeoutDooms(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		holder, theirs := begin(t, newPool(t, db.Config(), true)), uniqueKey(t, "theirs")
		lock(t, join(t, holder), theirs)
		w := newWaiter(t, newPool(t, db.Config(func(cfg *mysql.Config) { cfg.ReadTimeout = 3 * time.Second }), true))
		wantDoomed(t, "Lock", second(join(t, w.tx).Lock(t.Context(), theirs)), 0)
		w.isAbandoned(t, db)
	})
}

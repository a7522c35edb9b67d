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

const counters = "id INT PRIMARY KEY, v INT NOT NULL"

// oneSecond makes lock waits end soon.
func oneSecond(cfg *mysql.Config) {
	cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1"}
}

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
	holding(t, newPool(t, db.Config(), true), w.mine)
	if took := time.Since(begun); took > soon {
		t.Errorf("the lock of the abandoned session was free after %v", took)
	}
	db.WaitGone(t, w.conn)
	wantDoomed(t, "the next statement", second(w.tx.ExecContext(t.Context(), "SELECT 1")), 0)
	wantDoomed(t, "Commit", w.tx.Commit(), 0)
}

// TestAbandonedStatementIsKilled cancels a statement that waits, and a query that waits after its
// first rows.
func TestAbandonedStatementIsKilled(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "crossed", crossed)
		db.Exec(t, "INSERT INTO "+table+rowsOfIt)
		pool := newPool(t, db.Config(), true)
		exec(t, begin(t, pool), "UPDATE "+table+" SET v = 1 WHERE id = 4000")
		for _, by := range sendings[:2] {
			w := newWaiter(t, pool)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			text := "UPDATE " + table + " SET v = 2 WHERE id = 4000"
			if by == "rows" {
				text = "SELECT id, pad FROM " + table + " ORDER BY id FOR UPDATE"
			}
			answered := db.Waiting(t, w.conn, func() error { return sendBy(ctx, w.tx, by, text) })
			cancel()
			err := <-answered
			isError(t, text, err, context.Canceled)
			slow := errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "end the abandoned session") // a busy server hasn't answered to the KILL within a second
			if err != context.Canceled && !slow && by != "rows" {                                                  //nolint:errorlint // unchanged, as a plain pool has it
				t.Errorf("the cancelled statement returned %#v, want context.Canceled itself", err)
			}
			w.isAbandoned(t, db)
		}
	})
}

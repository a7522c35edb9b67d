package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// waitTimeout is how long the helpers wait for a state before the test fails: what takes
// longest, MySQL's wait that nothing shows, takes two seconds where the machine is idle.
const waitTimeout = 2 * time.Minute

// Queryer is a *sql.DB, *sql.Conn or *sql.Tx.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// ConnID returns the server's number of a connection. Take it from a
// *sql.Conn or *sql.Tx: that of a pool is any connection's.
func ConnID(tb testing.TB, q Queryer) int64 {
	tb.Helper()
	var id int64
	check(tb, q.QueryRowContext(tb.Context(), "SELECT CONNECTION_ID()").Scan(&id))
	return id
}

// WaitForLockWait returns when the connection waits for a row lock.
//
// It reads SHOW ENGINE INNODB STATUS, which both servers make anew for every
// reader: information_schema.innodb_trx is refreshed only when nobody has read it
// for 0.1 s, so that tests which poll it side by side would see nothing new.
// MySQL's status leaves out transactions that wait for a shared lock and have
// written nothing, and its performance schema now and then leaves out a wait for
// as long as it lasts: there both are asked, and a session that has been busy with
// one statement for two seconds, a thousand times what it needs, is taken to wait.
func (db *DB) WaitForLockWait(tb testing.TB, connID int64) {
	tb.Helper()
	db.wait(tb, fmt.Sprintf("connection %d waits for a row lock", connID), func(ctx context.Context) (bool, error) {
		return db.WaitsForLock(ctx, connID)
	})
}

// Waiting makes a call beside the test, returns when its session waits for a lock, and sends its error.
func (db *DB) Waiting(tb testing.TB, connID int64, call func() error) <-chan error {
	tb.Helper()
	answered := make(chan error, 1)
	go func() { answered <- call() }()
	db.WaitForLockWait(tb, connID)
	return answered
}

// Refresh pauses before another look at what a server shows of its transactions, which it
// refreshes only when nobody has read it for 0.1 s. The pause is never the same: tests that look
// by turns would keep each other from seeing anything new.
func Refresh() { time.Sleep(150*time.Millisecond + rand.N(200*time.Millisecond)) }

// KeepWaiting lets a transaction wait for what lock locks until the end of the test, and
// returns when it waits.
func (db *DB) KeepWaiting(tb testing.TB, tx *sql.Tx, lock func(ctx context.Context) error) {
	tb.Helper()
	id := ConnID(tb, tx)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan struct{})
	go func() {
		_ = lock(ctx) // it is cancelled, or granted at the end
		close(ended)
	}()
	tb.Cleanup(func() { cancel(); <-ended })
	db.WaitForLockWait(tb, id)
}

// WaitsForLock is WaitForLockWait that looks once, and also for a session that waits for something else.
func (db *DB) WaitsForLock(ctx context.Context, connID int64) (bool, error) {
	if db.Engine() == MySQL {
		var n int
		err := db.admin.QueryRowContext(ctx, `SELECT COUNT(*) FROM performance_schema.threads t
			WHERE t.processlist_id = ? AND (t.processlist_command IN ('Query', 'Execute') AND t.processlist_time >= 2
				OR t.thread_id IN (SELECT w.requesting_thread_id FROM performance_schema.data_lock_waits w))`, connID).Scan(&n)
		if err != nil || n > 0 {
			return n > 0, err
		}
	}
	status, err := db.innodbStatus(ctx)
	return statusHasWait(status, connID), err
}

// WaitForStatement returns when so many sessions execute a statement that begins so, in the
// database.
func (db *DB) WaitForStatement(tb testing.TB, begin string, sessions int) {
	tb.Helper()
	db.wait(tb, fmt.Sprintf("%s is executed by %d sessions", begin, sessions), func(ctx context.Context) (bool, error) {
		var n int
		err := db.admin.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+db.Engine().Processes()+" WHERE db = ? AND info LIKE CONCAT(?, '%')", db.Config().DBName, begin).Scan(&n)
		return n >= sessions, err
	})
}

// WaitGone returns when the server has forgotten the connection: its
// transaction is rolled back then, and its locks are free. The process list is
// not asked, since both servers leave out a connection as soon as its socket is
// closed.
func (db *DB) WaitGone(tb testing.TB, connID int64) {
	tb.Helper()
	db.wait(tb, fmt.Sprintf("connection %d is gone", connID), func(ctx context.Context) (bool, error) {
		if db.Engine() == MySQL {
			var n int
			err := db.admin.QueryRowContext(ctx, "SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_id = ?", connID).Scan(&n)
			return n == 0, err
		}
		status, err := db.innodbStatus(ctx)
		return err == nil && !strings.Contains(status, fmt.Sprintf("thread id %d,", connID)), err
	})
}

// Processes is a table of the sessions, with the columns id, user, db, time, in seconds,
// and info, the statement. MySQL's process list can't be read while a session executes a text
// that is no UTF-8.
func (e Engine) Processes() string {
	if e == MySQL {
		return "(SELECT processlist_id AS id, processlist_user AS user, processlist_db AS db, processlist_time AS time, processlist_info AS info FROM performance_schema.threads) processes"
	}
	return "information_schema.processlist"
}

// Kill ends the connection from the server's side. The server answers before
// the connection is gone: see WaitGone.
func (db *DB) Kill(tb testing.TB, connID int64) {
	tb.Helper()
	db.Exec(tb, fmt.Sprintf("KILL CONNECTION %d", connID))
}

// wait asks until the answer is yes, and fails the test when that takes
// longer than waitTimeout.
func (db *DB) wait(tb testing.TB, what string, ask func(context.Context) (bool, error)) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), waitTimeout)
	defer cancel()
	// An answer of MySQL takes some milliseconds of a processor: see Await.
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			status, err := db.innodbStatus(context.Background())
			tb.Fatalf("waited %s until %s, in vain (%v); InnoDB says:\n%s", waitTimeout, what, err, status)
		case <-time.After(pause):
		}
		yes, err := ask(ctx)
		if yes && err == nil {
			return
		}
		if err != nil && ctx.Err() == nil {
			tb.Fatalf("wait until %s: %v", what, err)
		}
	}
}

func (db *DB) innodbStatus(ctx context.Context) (string, error) {
	var kind, name, status string
	err := db.admin.QueryRowContext(ctx, "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status)
	return status, err
}

var threadID = regexp.MustCompile(`thread id (\d+),`)

// transactionOf returns what an InnoDB status says of the transaction of a connection, or "".
// Each begins with a line "---TRANSACTION", and names its connection in a later one.
func transactionOf(status string, connID int64) string {
	// An earlier section tells of the latest deadlock in the same words.
	_, transactions, _ := strings.Cut(status, "LIST OF TRANSACTIONS FOR EACH SESSION:")
	for transaction := range strings.SplitSeq(transactions, "---TRANSACTION") {
		if match := threadID.FindStringSubmatch(transaction); match != nil && match[1] == fmt.Sprint(connID) {
			return transaction
		}
	}
	return ""
}

// statusHasWait tells whether a connection waits: a line of its transaction begins with "LOCK
// WAIT" then.
func statusHasWait(status string, connID int64) bool {
	return strings.Contains(transactionOf(status, connID), "\nLOCK WAIT ")
}

// LockStructs returns how many structures of locks the transaction of a connection has in
// InnoDB, or 0 if it has none.
func (db *DB) LockStructs(tb testing.TB, connID int64) int {
	tb.Helper()
	status, err := db.innodbStatus(tb.Context())
	if err != nil {
		tb.Fatalf("read InnoDB's status: %v", err)
	}
	return lockStructsOf(transactionOf(status, connID))
}

func lockStructsOf(transaction string) int {
	structs := lockStructs.FindStringSubmatch(transaction)
	if structs == nil {
		return 0
	}
	n, _ := strconv.Atoi(structs[1]) // digits
	return n
}

var lockStructs = regexp.MustCompile(`\b(\d+) lock struct\(s\)`)

// RowLocks returns the application's sessions that wait for the lock of a row, and
// those that have one in an open transaction and execute nothing.
func (db *DB) RowLocks(tb testing.TB) (waiting, idle []int64) {
	tb.Helper()
	status, err := db.innodbStatus(tb.Context())
	if err != nil {
		tb.Fatalf("read InnoDB's status: %v", err)
	}
	return rowLocks(status, db.Config().User)
}

// rowLocks reads an InnoDB status. A transaction's line of the connection ends with the
// user where it executes nothing, else a state and the statement follow.
func rowLocks(status, user string) (waiting, idle []int64) {
	_, transactions, _ := strings.Cut(status, "LIST OF TRANSACTIONS FOR EACH SESSION:")
	for transaction := range strings.SplitSeq(transactions, "---TRANSACTION") {
		match := threadID.FindStringSubmatch(transaction)
		_, executes, ours := strings.Cut(transaction, " "+user)
		if match == nil || !ours || !holdsRows.MatchString(transaction) {
			continue
		}
		id, _ := strconv.ParseInt(match[1], 10, 64)  // digits
		executes, _, _ = strings.Cut(executes, "\n") // locks follow, while another test has the server show them
		switch {
		case strings.Contains(transaction, "\nLOCK WAIT "):
			waiting = append(waiting, id)
		case strings.TrimSpace(executes) == "":
			idle = append(idle, id)
		}
	}
	return waiting, idle
}

var holdsRows = regexp.MustCompile(`\b[1-9]\d* row lock\(s\)`)

// Await asks until the answer is yes, and tells whether it was before the limit. What is
// waited for takes a moment, and to ask a server takes a processor: it is asked ever more
// rarely.
func Await(limit time.Duration, ask func() bool) bool {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; !ask(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Delays returns what tells how much longer than it takes by itself something may have taken
// since then on this machine: twice what a goroutine that only sleeps was late for. A limit
// of time in a test is one above that, which a busy machine and a quiet one can keep.
func Delays(t testing.TB) (since func() time.Duration) {
	const nap = 20 * time.Millisecond
	var late atomic.Int64
	go func() {
		for t.Context().Err() == nil {
			begun := time.Now()
			time.Sleep(nap)
			late.Add(int64(time.Since(begun) - nap))
		}
	}()
	return func() time.Duration { return 2 * time.Duration(late.Load()) }
}

// InUse returns how many connections of a pool are in use, 0 as soon as none is: one
// that is being opened counts, too, and what a cancelled context has left is ended
// in the background.
func InUse(pool *sql.DB) int {
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(time.Millisecond) {
		if n := pool.Stats().InUse; n == 0 || time.Now().After(deadline) {
			return n
		}
	}
}

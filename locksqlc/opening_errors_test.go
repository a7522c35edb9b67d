package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// opening is a transaction whose first statement is a lock: its BEGIN goes with that, or
// before it.
type opening struct {
	db   *testdb.DB
	pool *sql.DB
	conn *sql.Conn
	id   int64 // of its session
	tx   *sql.Tx
	*txlock.Scope
	free, busy txlock.Key
	holder     *sql.Tx // has the busy key
	table      string
}

// keptPool is a guarded pool that prepares what begins a transaction at its first use.
func keptPool(t *testing.T, cfg *mysql.Config) *sql.DB {
	t.Helper()
	return openPool(t, cfg, func(base driver.Connector) driver.Connector {
		return guard.Wrap(base, guard.Options{PrepareAtOnce: true})
	})
}

// onOpenings runs a test with all ways to begin, which must not be told apart.
func onOpenings(t *testing.T, options *sql.TxOptions, test func(t *testing.T, o *opening), configure ...func(*mysql.Config)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, way := range []string{"merged", "separate", "kept"} {
			if way == "kept" && db.Engine() != testdb.MariaDB {
				continue
			}
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				cfg := db.Config(configure...)
				open := func(t *testing.T, cfg *mysql.Config) *sql.DB { return newPool(t, cfg, true) }
				if way == "kept" {
					open = keptPool
				}
				o := &opening{db: db, pool: open(t, cfg), free: uniqueKey(t, "free"), busy: uniqueKey(t, "busy")}
				o.table = db.CreateTable(t, "opening", "id INT PRIMARY KEY")
				plain := newPool(t, db.Config(), true)
				check(t, txlock.Ensure(t.Context(), plain, o.free, o.busy))
				o.holder = begin(t, plain)
				lock(t, join(t, o.holder), o.busy)
				o.conn = takeConn(t, o.pool)
				o.id = testdb.ConnID(t, o.conn)
				o.tx = begin(t, o.conn, options)
				o.Scope = join(t, o.tx)
				if way == "separate" {
					check(t, o.Verify(t.Context()))
				}
				test(t, o)
			})
		}
	})
}

// goesOn fails the test unless the transaction can still lock, write and commit, at the
// level that it was begun with.
func (o *opening) goesOn(t *testing.T, level sql.IsolationLevel) {
	t.Helper()
	lock(t, o.Scope, o.free)
	exec(t, o.tx, "INSERT INTO "+o.table+" VALUES (1)")
	all := "SELECT COUNT(*) FROM " + o.table
	before := count(t, o.tx, all)
	wantCount(t, o.db.Admin(), 0, all)
	o.db.Exec(t, "INSERT INTO "+o.table+" VALUES (2)")
	if seen := count(t, o.tx, all) > before; seen != (level == sql.LevelReadCommitted) {
		t.Errorf("it sees what was committed since: %t, at the wrong level", seen)
	}
	wantLocked(t, "the lock doesn't exclude", o.db, o.free)
	check(t, o.tx.Commit())
	wantCount(t, o.db.Admin(), 2, all)
	wantFree(t, o.db, o.free)
	o.closed(t)
}

// closed fails the test unless the session is outside of transactions.
func (o *opening) closed(t *testing.T) {
	t.Helper()
	exec(t, o.conn, "SET TRANSACTION READ WRITE") // refused inside of one
}

// wants fails the test unless the error is this one.
func wants(t *testing.T, err, want error, why uint16) {
	t.Helper()
	if !errors.Is(err, want) || errors.Is(err, txlock.ErrTxDoomed) || why != 0 && number(err) != why {
		t.Errorf("%v, want %v of a transaction that goes on", err, want)
	}
}

// TestOpeningIsRefused has the server refuse the lock that begins a transaction. Nothing of
// that shows: the transaction goes on as one that was begun before.
func TestOpeningIsRefused(t *testing.T) {
	const brief = 10 * time.Millisecond
	readCommitted, ctx := &sql.TxOptions{Isolation: sql.LevelReadCommitted}, t.Context()
	for _, c := range []struct {
		name    string
		options *sql.TxOptions
		level   sql.IsolationLevel
		call    func(o *opening) error
		want    error
	}{
		{"busy", nil, sql.LevelRepeatableRead, func(o *opening) error { return second(o.TryLock(ctx, o.busy)) }, txlock.ErrBusy},
		{"busy, at another level", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return second(o.TryLock(ctx, o.busy)) }, txlock.ErrBusy},
		{"all are busy", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return second(o.LockAny(ctx, o.busy, o.busy, o.busy)) }, txlock.ErrBusy},
		{"busy, and then free", nil, sql.LevelRepeatableRead, func(o *opening) error {
			_, err := o.TryLock(ctx, o.busy)
			check(t, o.holder.Rollback())
			lock(t, o.Scope, o.busy)
			return err
		}, txlock.ErrBusy},
		{"too late", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return second(o.WaitAtMost(brief).Lock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for several", nil, sql.LevelRepeatableRead, func(o *opening) error { return second(o.WaitAtMost(brief).LockAll(ctx, o.free, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for the server", nil, sql.LevelRepeatableRead, func(o *opening) error { return second(o.Lock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"busy for readers", nil, sql.LevelRepeatableRead, func(o *opening) error { return second(o.TryRLock(ctx, o.busy)) }, txlock.ErrBusy},
		{"too late for a reader", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return second(o.WaitAtMost(brief).RLock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for a reader and the server", nil, sql.LevelRepeatableRead, func(o *opening) error { return second(o.RLock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for Once", readCommitted, sql.LevelReadCommitted, func(o *opening) error {
			check(t, second(join(t, o.holder).Once(ctx, o.free)))
			return second(o.Once(ctx, o.free))
		}, txlock.ErrWaitTimeout},
		{"another version", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return o.CompareAndBump(ctx, o.free, 7) }, txlock.ErrConflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			onOpenings(t, c.options, func(t *testing.T, o *opening) {
				wants(t, c.call(o), c.want, 0)
				o.goesOn(t, c.level)
			}, oneSecond)
		})
	}
}

// TestOpeningIsInterrupted ends the statement that begins a transaction by KILL QUERY.
func TestOpeningIsInterrupted(t *testing.T) {
	onOpenings(t, nil, func(t *testing.T, o *opening) {
		answered := o.db.Waiting(t, o.id, func() error { return second(o.Lock(t.Context(), o.busy)) })
		o.db.Exec(t, fmt.Sprintf("KILL QUERY %d", o.id))
		if err := <-answered; number(err) != 1317 || errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("Lock: %v, want 1317", err)
		}
		o.goesOn(t, sql.LevelRepeatableRead)
	})
}

// TestOpeningReadOnly begins a read-only transaction by a lock, which writes.
func TestOpeningReadOnly(t *testing.T) {
	readOnly := func(t *testing.T, o *opening) {
		wants(t, second(o.Lock(t.Context(), o.free)), txlock.ErrReadOnly, 1792)
		wantCount(t, o.tx, 7, "SELECT 7")
		if _, err := o.tx.ExecContext(t.Context(), "UPDATE lockstep_locks SET token = 0"); number(err) != 1792 {
			t.Errorf("a write: %v, want 1792", err)
		}
		check(t, o.tx.Commit())
		o.closed(t)
	}
	t.Run("transaction", func(t *testing.T) { onOpenings(t, &sql.TxOptions{ReadOnly: true}, readOnly) })
	t.Run("with a level", func(t *testing.T) {
		onOpenings(t, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelSerializable}, readOnly)
	})
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		for _, engine := range testdb.Engines() {
			t.Run(string(engine), func(t *testing.T) {
				variable := map[testdb.Engine]string{testdb.MariaDB: "tx_read_only", testdb.MySQL: "transaction_read_only"}[engine]
				db := testdb.Open(t, engine)
				pool := newPool(t, db.Config(func(c *mysql.Config) { c.Params = map[string]string{variable: "1"} }), true)
				tx := begin(t, pool)
				wants(t, second(join(t, tx).Lock(t.Context(), uniqueKey(t, "read-only"))), txlock.ErrReadOnly, 1792)
				wantCount(t, tx, 7, "SELECT 7")
				check(t, tx.Commit())
			})
		}
	})
}

// TestOpeningWithoutTables begins a transaction by a lock where the tables are missing.
func TestOpeningWithoutTables(t *testing.T) {
	onEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Open(t, engine)
		other := db.CreateTable(t, "other", "id INT PRIMARY KEY")
		cfg := db.AdminConfig(func(c *mysql.Config) { c.DBName = "mysql" })
		tx, scope := joined(t, newPool(t, cfg, true))
		for range 2 {
			wants(t, second(scope.Lock(t.Context(), uniqueKey(t, "missing"))), txlock.ErrSchema, 1146)
		}
		exec(t, tx, "INSERT INTO "+db.Name()+"."+other+" VALUES (1)")
		check(t, tx.Commit())
		wantCount(t, db.Admin(), 1, "SELECT COUNT(*) FROM "+other)
	})
}

// TestOpeningIsTheVictim lets the lock that begins a transaction end in a deadlock.
func TestOpeningIsTheVictim(t *testing.T) {
	onOpenings(t, nil, func(t *testing.T, o *opening) {
		first, last := o.free, o.busy
		if first.String() > last.String() {
			first, last = last, first
			check(t, o.holder.Rollback())
			o.holder = begin(t, newPool(t, o.db.Config(), true))
			lock(t, join(t, o.holder), last)
		}
		// The server rolls back the transaction that has written less.
		exec(t, o.holder, "INSERT INTO "+o.table+" WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT i FROM n")
		answered := o.db.Waiting(t, o.id, func() error { return second(o.LockAll(t.Context(), first, last)) })
		exec(t, o.holder, "SELECT 1 FROM lockstep_locks WHERE name = ? FOR UPDATE", []byte(first.String()))
		if err := <-answered; !errors.Is(err, txlock.ErrDeadlock) || !txlock.Retryable(err) {
			t.Errorf("LockAll: %v, want ErrDeadlock", err)
		}
		wantDoomed(t, "the next statement", second(o.tx.ExecContext(t.Context(), "SELECT 1")), 1213)
		wantDoomed(t, "Commit", o.tx.Commit(), 1213)
		o.closed(t)
	})
}

// TestOpeningIsCancelled ends the context while the lock that begins a transaction waits:
// the server doesn't keep what was locked.
func TestOpeningIsCancelled(t *testing.T) {
	onOpenings(t, nil, func(t *testing.T, o *opening) {
		ctx, cancel := context.WithCancel(t.Context())
		answered := o.db.Waiting(t, o.id, func() error { return second(o.LockAll(ctx, o.free, o.busy)) })
		cancel()
		err := <-answered
		if !errors.Is(err, context.Canceled) || !errors.Is(err, txlock.ErrTxDoomed) {
			t.Errorf("LockAll: %v, want the end of the context", err)
		}
		o.db.WaitGone(t, o.id)
		wantFree(t, o.db, o.free)
		isError(t, "Commit", o.tx.Commit(), txlock.ErrTxDoomed)
	})
}

// TestOpeningIsKilled ends the session while the lock that begins a transaction waits, and
// before anything was sent.
func TestOpeningIsKilled(t *testing.T) {
	t.Run("while it waits", func(t *testing.T) {
		onOpenings(t, nil, func(t *testing.T, o *opening) {
			answered := o.db.Waiting(t, o.id, func() error { return second(o.Lock(t.Context(), o.busy)) })
			o.db.Kill(t, o.id)
			err := <-answered
			if !errors.Is(err, txlock.ErrTxDoomed) && number(err) == 0 {
				t.Errorf("Lock: %v", err)
			}
			o.db.WaitGone(t, o.id)
			o.over(t)
		})
	})
	t.Run("before a lock", func(t *testing.T) {
		onOpenings(t, nil, func(t *testing.T, o *opening) {
			o.db.Kill(t, o.id)
			o.db.WaitGone(t, o.id)
			wantOver(t, "Lock", second(o.Lock(t.Context(), o.free)), true)
			o.over(t)
		})
	})
}

// over fails the test unless the transaction is doomed, and could be run again.
func (o *opening) over(t *testing.T) {
	t.Helper()
	if _, err := o.tx.ExecContext(t.Context(), "SELECT 1"); err == nil {
		t.Error("the next statement succeeded")
	}
	wantOver(t, "Commit", o.tx.Commit(), true)
}

// TestRunOpensAgain has Run begin on a connection that dies before its first statement.
func TestRunOpensAgain(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := single(newPool(t, db.Config(), true))
		id := testdb.ConnID(t, pool)
		table := db.CreateTable(t, "again", "id INT PRIMARY KEY")
		calls := 0
		check(t, locksqlc.Run(t.Context(), pool, nil, func(tx *sql.Tx) error {
			if calls++; calls == 1 {
				db.Kill(t, id)
				db.WaitGone(t, id)
			}
			_, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)")
			if calls == 1 && !txlock.Retryable(err) {
				t.Errorf("the first statement: %v", err)
			}
			return err
		}))
		if n := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table); n != 1 || calls != 2 {
			t.Errorf("%d rows after %d calls", n, calls)
		}
	})
}

package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/guard"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// begun is a transaction of a guarded pool that counts its round trips.
type begun struct {
	db    *testdb.DB
	trips *testdb.Trips
	conn  *sql.Conn
	tx    *sql.Tx
	table string
}

// onBegun runs a test in a new transaction.
func onBegun(t *testing.T, options *sql.TxOptions, test func(t *testing.T, b *begun)) {
	t.Helper()
	onServers(t, func(t *testing.T, db *testdb.DB) {
		b := &begun{db: db, table: db.CreateTable(t, "begun", "id INT PRIMARY KEY")}
		trips, count := testdb.CountTrips(t)
		b.trips = trips
		b.conn = takeConn(t, newPool(t, db.AdminConfig(count), true))
		before := trips.Count()
		b.tx = begin(t, b.conn, options)
		testdb.Equal(t, "round trips of BeginTx", trips.Count()-before, 0)
		test(t, b)
		exec(t, b.conn, "SET TRANSACTION READ WRITE") // refused inside a transaction
	})
}

// TestFirstStatement begins a transaction by each kind of statement, and rolls it back.
func TestFirstStatement(t *testing.T) {
	for name, send := range map[string]func(t *testing.T, b *begun){
		"write": func(*testing.T, *begun) {},
		"read":  func(t *testing.T, b *begun) { count(t, b.tx, "SELECT COUNT(*) FROM "+b.table) },
		"savepoint": func(t *testing.T, b *begun) {
			exec(t, b.tx, "SAVEPOINT a")
			exec(t, b.tx, "INSERT INTO "+b.table+" VALUES (7)")
			exec(t, b.tx, "ROLLBACK TO SAVEPOINT a")
			exec(t, b.tx, "RELEASE SAVEPOINT a")
		},
		"prepared by it": func(t *testing.T, b *begun) {
			stmt := testdb.Got(b.tx.PrepareContext(t.Context(), "INSERT INTO "+b.table+" VALUES (?)"))(t)
			check(t, errors.Join(testdb.Err(stmt.ExecContext(t.Context(), 7)), stmt.Close()))
		},
		"prepared before": func(t *testing.T, b *begun) {
			stmt := testdb.Got(b.conn.PrepareContext(t.Context(), "INSERT INTO "+b.table+" VALUES (?)"))(t)
			check(t, errors.Join(testdb.Err(b.tx.StmtContext(t.Context(), stmt).ExecContext(t.Context(), 7)), stmt.Close()))
		},
		"an argument":       func(t *testing.T, b *begun) { exec(t, b.tx, "INSERT INTO "+b.table+" VALUES (?)", 7) },
		"a wrong one":       func(t *testing.T, b *begun) { _, _ = b.tx.ExecContext(t.Context(), "INSERT INTO nowhere VALUES (7)") },
		"a temporary table": func(t *testing.T, b *begun) { exec(t, b.tx, "CREATE TEMPORARY TABLE temporary (id INT)") },
		"Verify":            func(t *testing.T, b *begun) { check(t, join(t, b.tx).Verify(t.Context())) },
		"by the driver": func(t *testing.T, b *begun) {
			check(t, b.conn.Raw(func(conn any) error {
				return testdb.Err(conn.(driver.ExecerContext).ExecContext(t.Context(), "INSERT INTO "+b.table+" VALUES (7)", nil))
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBegun(t, nil, func(t *testing.T, b *begun) {
				send(t, b)
				exec(t, b.tx, "INSERT INTO "+b.table+" VALUES (1)")
				lock(t, join(t, b.tx), uniqueKey(t, "first"))
				check(t, b.tx.Rollback())
				wantCount(t, b.db.Admin(), 0, "SELECT COUNT(*) FROM "+b.table)
			})
		})
	}
}

// TestOptimisticEnd proves what is left of a transaction when its last statement both compares the version and commits.
func TestOptimisticEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT, v INT")
		write := func(tx *sql.Tx) error {
			return testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" (v) VALUES (1)"))
		}
		rows := func() int { return count(t, db.Admin(), "SELECT COUNT(*) FROM "+table) }
		for _, key := range []txlock.Key{uniqueKey(t, "ended"), txlock.NewFamily[string]("ended", txlock.Exact()).Key(uniqueKey(t, "x").String())} {
			pool := newPool(t, db.Config(func(c *mysql.Config) { c.ParseTime = true }), true)
			before := rows()
			for range 3 { // of a new key, and of one with a row
				check(t, locksqlc.Optimistic(t.Context(), pool, key, write))
			}
			testdb.Equal(t, "rows", rows()-before, 3)
			cancelled, cancel := context.WithCancel(t.Context())
			holder := holding(t, pool, key)
			err := locksqlc.Optimistic(cancelled, pool, key, func(tx *sql.Tx) error {
				id := testdb.ConnID(t, tx)
				go func() {
					db.WaitForLockWait(t, id)
					cancel()
				}()
				return write(tx)
			})
			testdb.ErrorIf(t, !errors.Is(err, context.Canceled) || txlock.Retryable(err), "cancelled while it waits to commit: %v", err)
			check(t, holder.Rollback())
			wantFree(t, db, key)
			testdb.Equal(t, "rows after it was cancelled", rows()-before, 3)
		}
	})
}

// TestBeginTxEndsATransaction: BeginTx commits a transaction that is open on its connection, as BEGIN does, also if nothing is sent in the new one.
func TestBeginTxEndsATransaction(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ended", "id INT PRIMARY KEY")
		db.CreateProcedure(t, "begin_"+table, "BEGIN START TRANSACTION; INSERT INTO "+table+" VALUES (2); END")
		for i, first := range [][]string{{"BEGIN", "INSERT INTO " + table + " VALUES (1)"}, {"CALL begin_" + table + "()"}, {"SET autocommit = 0", "INSERT INTO " + table + " VALUES (3)"}} {
			conn := takeConn(t, newPool(t, db.AdminConfig(), true))
			for _, query := range first {
				exec(t, conn, query)
			}
			check(t, begin(t, conn).Rollback())
			testdb.Equal(t, fmt.Sprintf("%s: rows that BeginTx commits", first), count(t, db.Admin(), "SELECT COUNT(*) FROM "+table), i+1)
		}
	})
}

// TestPoolAfterARefusedLock: the next user of a connection whose first lock was refused, or waited in vain, is in no transaction.
func TestPoolAfterARefusedLock(t *testing.T) {
	onSides(t, func(t *testing.T, db *testdb.DB, guarded bool) {
		table := db.CreateTable(t, "behind", "id INT PRIMARY KEY AUTO_INCREMENT")
		insert := "INSERT INTO " + table + " VALUES ()"
		pool, key, calls := single(newPool(t, db.Config(oneSecond), guarded)), uniqueKey(t, "refused"), 0
		committed := func() {
			t.Helper()
			calls++
			exec(t, pool, insert)
			wantCount(t, db.Admin(), calls, "SELECT COUNT(*) FROM "+table)
		}
		check(t, txlock.Ensure(t.Context(), db.Admin(), key))
		holding(t, newPool(t, db.Config(), true), key)
		err := locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error { return testdb.Err(tx.ExecContext(t.Context(), insert)) })
		isError(t, "Optimistic", err, txlock.ErrWaitTimeout)
		committed()
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelSerializable} {
				tx, scope := joined(t, pool, &sql.TxOptions{Isolation: level})
				wants(t, testdb.Err(scope.Lock(t.Context(), key)), txlock.ErrWaitTimeout, 1205)
				check(t, end(tx))
				committed()
			}
		}
	})
}

// TestOpeningShared begins a read-only transaction by a shared lock, which may have to make the row, and fails then.
func TestOpeningShared(t *testing.T) {
	onOpenings(t, &sql.TxOptions{ReadOnly: true}, func(t *testing.T, o *opening) {
		unknown := uniqueKey(t, "unknown")
		check(t, testdb.Err(o.db.Admin().ExecContext(t.Context(), "INSERT INTO lockstep_locks VALUES (?, 7, '-', 0, 0)", unknown.String())))
		for _, key := range []txlock.Key{unknown, o.free} {
			check(t, testdb.Err(o.RLock(t.Context(), key)))
			wantLocked(t, "the lock doesn't exclude", o.db, key)
		}
		wants(t, testdb.Err(o.RLock(t.Context(), uniqueKey(t, "missing"))), txlock.ErrReadOnly, 1792)
		check(t, o.tx.Commit())
		wantFree(t, o.db, unknown, o.free)
		o.closed(t)
	})
}

// opening is a transaction whose first statement is a lock: its BEGIN goes with that, or before it.
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

// goesOn fails the test unless the transaction can still lock, write and commit, at the level that it was begun with.
func (o *opening) goesOn(t *testing.T, level sql.IsolationLevel) {
	t.Helper()
	lock(t, o.Scope, o.free)
	exec(t, o.tx, "INSERT INTO "+o.table+" VALUES (1)")
	all := "SELECT COUNT(*) FROM " + o.table
	before := count(t, o.tx, all)
	wantCount(t, o.db.Admin(), 0, all)
	o.db.Exec(t, "INSERT INTO "+o.table+" VALUES (2)")
	testdb.Equal(t, "it sees what was committed since", count(t, o.tx, all) > before, level == sql.LevelReadCommitted)
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
	testdb.ErrorIf(t, !errors.Is(err, want) || errors.Is(err, txlock.ErrTxDoomed) || why != 0 && number(err) != why,
		"%v, want %v of a transaction that goes on", err, want)
}

// TestOpeningIsRefused: a transaction whose first lock the server refuses goes on as one that was begun before.
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
		{"busy", nil, sql.LevelRepeatableRead, func(o *opening) error { return testdb.Err(o.TryLock(ctx, o.busy)) }, txlock.ErrBusy},
		{"busy, at another level", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return testdb.Err(o.TryLock(ctx, o.busy)) }, txlock.ErrBusy},
		{"all are busy", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return testdb.Err(o.LockAny(ctx, o.busy, o.busy, o.busy)) }, txlock.ErrBusy},
		{"busy, and then free", nil, sql.LevelRepeatableRead, func(o *opening) error {
			_, err := o.TryLock(ctx, o.busy)
			check(t, o.holder.Rollback())
			lock(t, o.Scope, o.busy)
			return err
		}, txlock.ErrBusy},
		{"too late", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return testdb.Err(o.WaitAtMost(brief).Lock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for several", nil, sql.LevelRepeatableRead, func(o *opening) error { return testdb.Err(o.WaitAtMost(brief).LockAll(ctx, o.free, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for the server", nil, sql.LevelRepeatableRead, func(o *opening) error { return testdb.Err(o.Lock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"busy for readers", nil, sql.LevelRepeatableRead, func(o *opening) error { return testdb.Err(o.TryRLock(ctx, o.busy)) }, txlock.ErrBusy},
		{"too late for a reader", readCommitted, sql.LevelReadCommitted, func(o *opening) error { return testdb.Err(o.WaitAtMost(brief).RLock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for a reader and the server", nil, sql.LevelRepeatableRead, func(o *opening) error { return testdb.Err(o.RLock(ctx, o.busy)) }, txlock.ErrWaitTimeout},
		{"too late for Once", readCommitted, sql.LevelReadCommitted, func(o *opening) error {
			check(t, testdb.Err(join(t, o.holder).Once(ctx, o.free)))
			return testdb.Err(o.Once(ctx, o.free))
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
		answered := o.db.Waiting(t, o.id, func() error { return testdb.Err(o.Lock(t.Context(), o.busy)) })
		o.db.Exec(t, fmt.Sprintf("KILL QUERY %d", o.id))
		err := <-answered
		testdb.ErrorIf(t, number(err) != 1317 || errors.Is(err, txlock.ErrTxDoomed), "Lock: %v, want 1317", err)
		o.goesOn(t, sql.LevelRepeatableRead)
	})
}

// TestOpeningReadOnly begins a read-only transaction by a lock, which writes.
func TestOpeningReadOnly(t *testing.T) {
	readOnly := func(t *testing.T, o *opening) {
		wants(t, testdb.Err(o.Lock(t.Context(), o.free)), txlock.ErrReadOnly, 1792)
		wantCount(t, o.tx, 7, "SELECT 7")
		_, err := o.tx.ExecContext(t.Context(), "UPDATE lockstep_locks SET token = 0")
		testdb.ErrorIf(t, number(err) != 1792, "a write: %v, want 1792", err)
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
				wants(t, testdb.Err(join(t, tx).Lock(t.Context(), uniqueKey(t, "read-only"))), txlock.ErrReadOnly, 1792)
				wantCount(t, tx, 7, "SELECT 7")
				check(t, tx.Commit())
			})
		}
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
		answered := o.db.Waiting(t, o.id, func() error { return testdb.Err(o.LockAll(t.Context(), first, last)) })
		exec(t, o.holder, "SELECT 1 FROM lockstep_locks WHERE name = ? FOR UPDATE", []byte(first.String()))
		err := <-answered
		testdb.ErrorIf(t, !errors.Is(err, txlock.ErrDeadlock) || !txlock.Retryable(err), "LockAll: %v, want ErrDeadlock", err)
		wantDoomed(t, "the next statement", testdb.Err(o.tx.ExecContext(t.Context(), "SELECT 1")), 1213)
		wantDoomed(t, "Commit", o.tx.Commit(), 1213)
		o.closed(t)
	})
}

// TestOpeningIsCancelled ends the context while the lock that begins a transaction waits: the server doesn't keep what was locked.
func TestOpeningIsCancelled(t *testing.T) {
	onOpenings(t, nil, func(t *testing.T, o *opening) {
		err := cancelled(t, o.db, o.id, func(ctx context.Context) error { return testdb.Err(o.LockAll(ctx, o.free, o.busy)) })
		testdb.ErrorIf(t, !errors.Is(err, context.Canceled) || !errors.Is(err, txlock.ErrTxDoomed), "LockAll: %v, want the end of the context", err)
		o.db.WaitGone(t, o.id)
		wantFree(t, o.db, o.free)
		isError(t, "Commit", o.tx.Commit(), txlock.ErrTxDoomed)
	})
}

// TestOpeningIsKilled ends the session while the lock that begins a transaction waits, and before anything was sent.
func TestOpeningIsKilled(t *testing.T) {
	for _, waits := range []bool{true, false} {
		t.Run(fmt.Sprintf("waits=%t", waits), func(t *testing.T) {
			onOpenings(t, nil, func(t *testing.T, o *opening) {
				if !waits {
					o.db.Kill(t, o.id)
					o.db.WaitGone(t, o.id)
					wantOver(t, "Lock", testdb.Err(o.Lock(t.Context(), o.free)), true)
					o.over(t)
					return
				}
				answered := o.db.Waiting(t, o.id, func() error { return testdb.Err(o.Lock(t.Context(), o.busy)) })
				o.db.Kill(t, o.id)
				err := <-answered
				testdb.ErrorIf(t, !errors.Is(err, txlock.ErrTxDoomed) && number(err) == 0, "Lock: %v", err)
				o.db.WaitGone(t, o.id)
				o.over(t)
			})
		})
	}
}

// over fails the test unless the transaction is doomed, and could be run again.
func (o *opening) over(t *testing.T) {
	t.Helper()
	_, err := o.tx.ExecContext(t.Context(), "SELECT 1")
	testdb.ErrorIf(t, err == nil, "the next statement succeeded")
	wantOver(t, "Commit", o.tx.Commit(), true)
}

// reset has the server reset the session of a connection that is idle, behind the back of its driver, as proxies do (COM_RESET_CONNECTION).
func reset(t *testing.T, conn net.Conn) {
	t.Helper()
	const comResetConnection = 0x1f
	check(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	check(t, testdb.Err(conn.Write([]byte{1, 0, 0, 0, comResetConnection})))
	var header [4]byte
	check(t, testdb.Err(io.ReadFull(conn, header[:])))
	reply := make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	check(t, errors.Join(testdb.Err(io.ReadFull(conn, reply)), conn.SetDeadline(time.Time{})))
	testdb.FatalIf(t, reply[0] != 0, "COM_RESET_CONNECTION is answered %q", reply)
}

// wired has the driver dial connections that it stores.
func wired(t *testing.T, wire *net.Conn) func(*mysql.Config) {
	return testdb.Dialled(t, func(conn *net.TCPConn) net.Conn { *wire = conn; return conn })
}

// TestOpeningIsReset: a session that is reset behind a refused lock goes on, one behind a granted lock is lost, and says so.
func TestOpeningIsReset(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "reset", "id INT PRIMARY KEY")
		for i, granted := range []bool{false, true} {
			t.Run(fmt.Sprintf("granted=%t", granted), func(t *testing.T) {
				var wire net.Conn
				key := uniqueKey(t, "key")
				check(t, txlock.Ensure(t.Context(), db.Admin(), key))
				holder := begin(t, newPool(t, db.Config(), true))
				if !granted {
					lock(t, join(t, holder), key)
				}
				tx, scope := joined(t, newPool(t, db.Config(oneSecond, wired(t, &wire)), true))
				insert := fmt.Sprintf("INSERT INTO %s VALUES (%d)", table, i)
				_, err := scope.Lock(t.Context(), key)
				if granted {
					check(t, err)
					reset(t, wire)
					wantDoomed(t, "a lock", testdb.Err(scope.Lock(t.Context(), uniqueKey(t, "another"))), 0)
					isError(t, "Commit", tx.Commit(), txlock.ErrTxDoomed)
					wantFree(t, db, key)
					return
				}
				wants(t, err, txlock.ErrWaitTimeout, 1205)
				reset(t, wire)
				check(t, holder.Rollback())
				if !hasProcedures(db.Engine()) && db.Engine() == testdb.MySQL { // BEGIN was sent before
					wantDoomed(t, "the lock", testdb.Err(scope.Lock(t.Context(), key)), 0)
					return
				}
				lock(t, scope, key)
				exec(t, tx, insert)
				wantLocked(t, "the lock doesn't exclude", db, key)
				check(t, tx.Rollback())
				wantCount(t, db.Admin(), 0, fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE id = %d", table, i))
				wantFree(t, db, key)
			})
		}
	})
}

// TestRefusedOnClusters: what can't exclude on a cluster is refused, and the transaction goes on. A MariaDB with wsrep_on works alone.
func TestRefusedOnClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			continue
		}
		db := testdb.Dedicated(t, engine, testdb.Args("--wsrep-on=ON", "--binlog-format=ROW")).OpenNamed(t)
		for name, guarded := range map[string]bool{"guarded": true, "plain": false} {
			t.Run(name, func(t *testing.T) {
				pool := locksuite.OpenSQL(guarded, locksuite.BeginTx)(t, db.Config()).DB()
				key := txlock.Named(t.Name())
				err := locksqlc.Do(t.Context(), pool, key, func(context.Context) error {
					t.Error("Do has called its function")
					return nil
				})
				says(t, "Do", err, schema.ErrMultiPrimary, "use a lease")
				tx, scope := joined(t, pool)
				for _, verb := range []string{"RLock", "TryRLock"} {
					says(t, verb, verbs[verb](t.Context(), scope, key), schema.ErrMultiPrimary, "lock exclusively")
				}
				other, free := joined(t, pool)
				isError(t, "a try beside what was refused", testdb.Err(free.TryLock(t.Context(), key)), nil)
				check(t, other.Rollback())
				isError(t, "Lock after that", testdb.Err(scope.Lock(t.Context(), key)), nil)
				grant, err := scope.RLock(t.Context(), key)
				testdb.ErrorIf(t, err != nil || grant.Shared(), "RLock of what is held exclusively: %+v, %v", grant, err)
				check(t, tx.Commit())
			})
		}
	}
}

// onMariaDB runs a test on that server.
func onMariaDB(t *testing.T, test func(t *testing.T, db *testdb.DB)) {
	t.Helper()
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		t.Skip("needs MariaDB")
	}
	test(t, testdb.Open(t, testdb.MariaDB))
}

// runs runs transactions with the lock of a key, each of which writes a row, and returns their tokens, which must rise.
func runs(t *testing.T, pool *sql.DB, table string, key txlock.Key, n int) (last uint64) {
	t.Helper()
	for range n {
		var grant txlock.Grant
		check(t, locksqlc.Run(t.Context(), pool, []txlock.Key{key}, func(tx *sql.Tx) error {
			grant, _ = join(t, tx).Held(key)
			return testdb.Err(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ()"))
		}))
		testdb.FatalIf(t, grant.Token() <= last, "token %d after %d", grant.Token(), last)
		last = grant.Token()
	}
	return last
}

// TestOpenerStaysPrepared: what begins a transaction, when a connection has sent it often, is prepared once, and costs no round trip more.
func TestOpenerStaysPrepared(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "kept")
		trips, counting := testdb.CountTrips(t)
		pool := single(newPool(t, db.Config(counting), true))
		prepared := func() int { return sessionStatus(t, pool, "Com_stmt_prepare") }
		check(t, txlock.Ensure(t.Context(), db.Admin(), key))
		runs(t, pool, table, key, 4)
		testdb.Equal(t, "statements that are prepared at once", prepared(), 0)
		runs(t, pool, table, key, 1)
		before := trips.Count()
		token := runs(t, pool, table, key, 20)
		testdb.Equal(t, "round trips of 20 transactions", trips.Count()-before, 3*20)
		testdb.Equal(t, "statements that were prepared", prepared(), 1)
		behind := time.Now().UnixMicro() - int64(token)
		testdb.ErrorIf(t, behind < 0 || behind > time.Hour.Microseconds(), "the token is %d us behind the clock", behind)
		wantCount(t, db.Admin(), 25, "SELECT COUNT(*) FROM "+table)
		before = trips.Count()
		for i := range 20 { // the first lock of a key is another opener
			runs(t, pool, table, txlock.Named(key.String()+string(rune(0x80+i))), 1)
		}
		testdb.Equal(t, "round trips of 20 transactions with new keys", trips.Count()-before, 3*20+1)
		testdb.Equal(t, "statements that were prepared", prepared(), 2)
	})
}

// TestOpenersStayFew: a connection keeps some of the statements that begin its transactions, and neither all nor always others.
func TestOpenersStayFew(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		pool := single(newPool(t, db.Config(), true))
		const most, often = 16, 5
		for range 2 {
			keys := []txlock.Key{uniqueKey(t, "few")}
			for range most + 4 { // each number of keys has a statement of its own
				keys = append(keys, uniqueKey(t, "few"))
				for range often {
					check(t, locksqlc.Run(t.Context(), pool, keys, func(*sql.Tx) error { return nil }))
				}
			}
			testdb.Equal(t, "statements that are prepared", sessionStatus(t, pool, "Com_stmt_prepare"), most)
		}
	})
}

// TestOpenersOfAResetSession: a lock is taken where the session has forgotten the statements that were prepared.
func TestOpenersOfAResetSession(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		var wire net.Conn
		table, key := db.CreateTable(t, "forgotten", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "forgotten")
		pool := single(keptPool(t, db.Config(wired(t, &wire))))
		runs(t, pool, table, key, 2)
		reset(t, wire)
		runs(t, pool, table, key, 3)
		// the first lock has found that nothing is prepared any more
		testdb.Equal(t, "statements that were prepared and are executed", sessionStatus(t, pool, "Com_stmt_execute"), 2)
	})
}

// TestOpenerSeesOtherTables: a lock goes to the database of the pool, and to tables that were made anew or changed since it was prepared.
func TestOpenerSeesOtherTables(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Shared(t, testdb.MariaDB).OpenNamed(t)
		table, key := other.Name()+"."+other.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "moved")
		pool := single(keptPool(t, db.AdminConfig()))
		runs(t, pool, table, key, 2)
		for _, choose := range []string{"USE " + other.Name(), "/*! USE " + other.Name() + " */", "EXECUTE IMMEDIATE 'USE " + other.Name() + "'"} {
			if _, err := pool.ExecContext(t.Context(), choose); err != nil {
				t.Log(err) // MariaDB may not take it, then it has chosen nothing
			}
			runs(t, pool, table, key, 2)
		}
		wantCount(t, other.Admin(), 0, "SELECT COUNT(*) FROM lockstep_locks WHERE token > 0")
		pool = single(keptPool(t, other.AdminConfig()))
		runs(t, pool, table, key, 2)
		for _, change := range []string{
			"ALTER TABLE lockstep_locks ADD COLUMN note INT FIRST",
			"RENAME TABLE lockstep_locks TO lockstep_old",
			"CREATE TABLE lockstep_locks LIKE lockstep_old",
			"ALTER TABLE lockstep_locks DROP COLUMN note",
			"TRUNCATE TABLE lockstep_locks",
		} {
			other.Exec(t, change)
			if change[0] != 'R' {
				runs(t, pool, table, key, 2)
			}
		}
	})
}

// TestOpenerIsIndifferentToModes: what was prepared under one sql_mode works under another.
func TestOpenerIsIndifferentToModes(t *testing.T) {
	onMariaDB(t, func(t *testing.T, db *testdb.DB) {
		table, key := db.CreateTable(t, "kept", "id INT PRIMARY KEY AUTO_INCREMENT"), uniqueKey(t, "modes")
		pool := single(keptPool(t, db.Config()))
		last := uint64(0)
		for _, mode := range []string{"", "ORACLE,EMPTY_STRING_IS_NULL", "ANSI", "TRADITIONAL,SIMULTANEOUS_ASSIGNMENT", ""} {
			exec(t, pool, "SET SESSION sql_mode = '"+mode+"'")
			runs(t, pool, table, uniqueKey(t, "new under "+mode), 1)
			token := runs(t, pool, table, key, 2)
			testdb.ErrorIf(t, token <= last, "under %q: token %d after %d", mode, token, last)
			last = token
			cfg := db.Config()
			cfg.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			runs(t, newPool(t, cfg, true), table, uniqueKey(t, "new in a session under "+mode), 1)
		}
	})
}

// TestCommitWithElsewhere: the last statement is executed in the database that the program has chosen, however often its text was sent before.
func TestCommitWithElsewhere(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		other := testdb.Shared(t, db.Engine()).OpenNamed(t)
		for _, at := range []*testdb.DB{db, other} {
			at.Exec(t, "CREATE TABLE elsewhere (id INT PRIMARY KEY, n INT)")
			at.Exec(t, "INSERT INTO elsewhere VALUES (1, 0)")
		}
		for _, interpolate := range []bool{true, false} {
			cfg := db.AdminConfig()
			cfg.InterpolateParams = interpolate
			pool := single(newPool(t, cfg, true))
			sell := func(tx *sql.Tx, s *txlock.Scope) error {
				return testdb.Err(tx.ExecContext(s.CommitWith(t.Context(), 1), "UPDATE elsewhere SET n = n + ? WHERE id = ?", 1, 1))
			}
			for range 8 {
				check(t, lastly(t, pool, sell))
			}
			check(t, lastly(t, pool, func(tx *sql.Tx, s *txlock.Scope) error {
				exec(t, tx, "USE "+other.Name())
				return sell(tx, s)
			}))
		}
		here, there := count(t, db.Admin(), "SELECT n FROM elsewhere"), count(t, other.Admin(), "SELECT n FROM elsewhere")
		testdb.ErrorIf(t, here != 16 || there != 2, "%d here, want 16, and %d there, want 2", here, there)
	})
}

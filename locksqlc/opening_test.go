package locksqlc_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
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
		if n := trips.Count() - before; n != 0 {
			t.Errorf("BeginTx has %d round trips", n)
		}
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
			stmt, err := b.tx.PrepareContext(t.Context(), "INSERT INTO "+b.table+" VALUES (?)")
			check(t, err)
			check(t, errors.Join(second(stmt.ExecContext(t.Context(), 7)), stmt.Close()))
		},
		"prepared before": func(t *testing.T, b *begun) {
			stmt, err := b.conn.PrepareContext(t.Context(), "INSERT INTO "+b.table+" VALUES (?)")
			check(t, err)
			check(t, errors.Join(second(b.tx.StmtContext(t.Context(), stmt).ExecContext(t.Context(), 7)), stmt.Close()))
		},
		"an argument":       func(t *testing.T, b *begun) { exec(t, b.tx, "INSERT INTO "+b.table+" VALUES (?)", 7) },
		"a wrong one":       func(t *testing.T, b *begun) { _, _ = b.tx.ExecContext(t.Context(), "INSERT INTO nowhere VALUES (7)") },
		"a temporary table": func(t *testing.T, b *begun) { exec(t, b.tx, "CREATE TEMPORARY TABLE temporary (id INT)") },
		"Verify":            func(t *testing.T, b *begun) { check(t, join(t, b.tx).Verify(t.Context())) },
		"by the driver": func(t *testing.T, b *begun) {
			check(t, b.conn.Raw(func(conn any) error {
				return second(conn.(driver.ExecerContext).ExecContext(t.Context(), "INSERT INTO "+b.table+" VALUES (7)", nil))
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

// TestFirstStatementCommits begins a transaction by DDL, which commits it, and its locks
// don't hold: as in one that was begun before.
func TestFirstStatementCommits(t *testing.T) {
	onBegun(t, nil, func(t *testing.T, b *begun) {
		scope := join(t, b.tx)
		exec(t, b.tx, "ALTER TABLE "+b.table+" ADD COLUMN v INT")
		wantOver(t, "Lock", second(scope.Lock(t.Context(), uniqueKey(t, "committed"))), false)
		_ = b.tx.Rollback()
	})
}

// TestOptimisticEnd proves what is left of a transaction when its last statement both
// compares the version and commits.
func TestOptimisticEnd(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		table := db.CreateTable(t, "ended", "id INT PRIMARY KEY AUTO_INCREMENT, v INT")
		write := func(tx *sql.Tx) error {
			return second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" (v) VALUES (1)"))
		}
		rows := func() int { return count(t, db.Admin(), "SELECT COUNT(*) FROM "+table) }
		for _, key := range []txlock.Key{uniqueKey(t, "ended"), txlock.NewFamily[string]("ended", txlock.Exact()).Key(uniqueKey(t, "x").String())} {
			pool := newPool(t, db.Config(func(c *mysql.Config) { c.ParseTime = true }), true)
			before := rows()
			for range 3 { // of a new key, and of one with a row
				check(t, locksqlc.Optimistic(t.Context(), pool, key, write))
			}
			if n := rows() - before; n != 3 {
				t.Errorf("%d rows, want 3", n)
			}
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
			if !errors.Is(err, context.Canceled) || txlock.Retryable(err) {
				t.Errorf("cancelled while it waits to commit: %v", err)
			}
			check(t, holder.Rollback())
			wantFree(t, db, key)
			if n := rows() - before; n != 3 {
				t.Errorf("%d rows after it was cancelled, want 3", n)
			}
		}
	})
}

// TestBeginTxEndsATransaction begins a transaction while another is open on its connection,
// which commits that, as BEGIN does, also if nothing is sent in the new one.
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
			if n := count(t, db.Admin(), "SELECT COUNT(*) FROM "+table); n != i+1 {
				t.Errorf("%s: %d rows are committed by BeginTx, want %d", first, n, i+1)
			}
		}
	})
}

// TestPoolAfterARefusedLock: where the lock that a transaction begins with was refused, and nothing else
// was sent in it, or where the comparison of Optimistic waits in vain, the next user of the connection is
// in no transaction.
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
		err := locksqlc.Optimistic(t.Context(), pool, key, func(tx *sql.Tx) error { return second(tx.ExecContext(t.Context(), insert)) })
		isError(t, "Optimistic", err, txlock.ErrWaitTimeout)
		committed()
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelSerializable} {
				tx, scope := joined(t, pool, &sql.TxOptions{Isolation: level})
				wants(t, second(scope.Lock(t.Context(), key)), txlock.ErrWaitTimeout, 1205)
				check(t, end(tx))
				committed()
			}
		}
	})
}

// TestOpeningShared begins a read-only transaction by a shared lock, which writes only where
// the row is missing, or where the process doesn't know it yet, and may fail to.
func TestOpeningShared(t *testing.T) {
	onOpenings(t, &sql.TxOptions{ReadOnly: true}, func(t *testing.T, o *opening) {
		unknown := uniqueKey(t, "unknown")
		check(t, second(o.db.Admin().ExecContext(t.Context(), "INSERT INTO lockstep_locks VALUES (?, 7, '-', 0, 0)", unknown.String())))
		for _, key := range []txlock.Key{unknown, o.free} {
			check(t, second(o.RLock(t.Context(), key)))
			wantLocked(t, "the lock doesn't exclude", o.db, key)
		}
		wants(t, second(o.RLock(t.Context(), uniqueKey(t, "missing"))), txlock.ErrReadOnly, 1792)
		check(t, o.tx.Commit())
		wantFree(t, o.db, unknown, o.free)
		o.closed(t)
	})
}

// TestOpeningAgain begins a transaction by a key of Once that was used before.
func TestOpeningAgain(t *testing.T) {
	onOpenings(t, nil, func(t *testing.T, o *opening) {
		check(t, second(join(t, o.holder).Once(t.Context(), o.free)))
		check(t, o.holder.Commit())
		first, err := o.Once(t.Context(), o.free)
		if err != nil || first {
			t.Errorf("Once is first: %t, %v", first, err)
		}
		o.goesOn(t, sql.LevelRepeatableRead)
	})
}

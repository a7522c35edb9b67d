package locksqlc_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
)

// Why a transaction can be gone, other than by a deadlock, and what state the pool is in
// afterwards.

const counters = "id INT PRIMARY KEY, v INT NOT NULL"

// oneSecond makes lock waits end soon.
func oneSecond(cfg *mysql.Config) {
	cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1"}
}

// timesOut begins a transaction that has written row 1, and whose wait for row 2 has
// timed out.
func timesOut(t *testing.T, db *testdb.DB, pool *sql.DB) (tx *sql.Tx, table string, err error) {
	t.Helper()
	table = db.CreateTable(t, "counters", counters)
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
	holder := begin(t, newPool(t, db.Config(), false))
	exec(t, holder, "UPDATE "+table+" SET v = 5 WHERE id = 2")
	tx = begin(t, pool)
	exec(t, tx, "UPDATE "+table+" SET v = 5 WHERE id = 1")
	_, err = tx.ExecContext(t.Context(), "UPDATE "+table+" SET v = 6 WHERE id = 2")
	return tx, table, err
}

func TestWaitTimeoutLeavesTransactionAlive(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := newPool(t, db.Config(oneSecond), true)
		tx, table, err := timesOut(t, db, pool)
		if number(err) != 1205 || errors.Is(err, txlock.ErrTxDoomed) {
			t.Fatalf("the wait ended with %v, want 1205 as the driver has it", err)
		}
		exec(t, tx, "INSERT INTO "+table+" VALUES (3, 5)")
		isError(t, "Commit", tx.Commit(), nil)
		wantCount(t, pool, 2, "SELECT COUNT(*) FROM "+table+" WHERE v = 5")
	})
}

func TestWaitTimeoutDooms(t *testing.T) {
	onEngines(t, func(t *testing.T, engine testdb.Engine) {
		db := testdb.Dedicated(t, engine, testdb.Args("--innodb-rollback-on-timeout=ON")).OpenNamed(t)

		plain := newPool(t, db.Config(oneSecond), false)
		tx, table, err := timesOut(t, db, plain)
		if number(err) != 1205 {
			t.Fatalf("the wait ended with %v, want 1205", err)
		}
		exec(t, tx, "INSERT INTO "+table+" VALUES (3, 5)")
		check(t, tx.Commit())
		wantCount(t, plain, 1, "SELECT COUNT(*) FROM "+table+" WHERE v = 5")

		guarded := newPool(t, db.Config(oneSecond), true)
		tx, table, err = timesOut(t, db, guarded)
		if number(err) != 1205 || errors.Is(err, txlock.ErrTxDoomed) {
			t.Fatalf("the wait ended with %v, want 1205 as the driver has it", err)
		}
		wantDoomed(t, "the next write", second(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3, 5)")), 1205)
		wantDoomed(t, "Commit", tx.Commit(), 1205)
		wantCount(t, guarded, 0, "SELECT COUNT(*) FROM "+table+" WHERE v = 5")
	})
}

func TestStaleRowDooms(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if !db.HasSnapshotIsolation(t) {
			return // it updates the row as it is now
		}
		pool := newPool(t, db.Config(func(cfg *mysql.Config) {
			cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
		}), true)
		table := db.CreateTable(t, "counters", counters)
		db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
		tx := begin(t, pool)
		exec(t, tx, "UPDATE "+table+" SET v = 5 WHERE id = 2")
		count(t, tx, "SELECT COUNT(*) FROM "+table)
		db.Exec(t, "UPDATE "+table+" SET v = 1 WHERE id = 1")
		_, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET v = v + 1 WHERE id = 1")
		if number(err) != 1020 {
			t.Fatalf("the update of a row that has changed was answered %v", err)
		}
		_, err = tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (3, 5)")
		wantDoomed(t, "the next write", err, 1020)
		isError(t, "the next write", err, txlock.ErrStaleSnapshot)
		wantDoomed(t, "Commit", tx.Commit(), 1020)
		wantCount(t, pool, 0, "SELECT COUNT(*) FROM "+table+" WHERE v = 5")
	})
}

func TestKilledConnectionDooms(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, joined := range []bool{false, true} {
			t.Run(fmt.Sprintf("joined=%t", joined), func(t *testing.T) {
				t.Parallel()
				pool, key := newPool(t, db.Config(), true), uniqueKey(t, "killed")
				table := db.CreateTable(t, "counters", counters)
				tx := begin(t, pool)
				exec(t, tx, "INSERT INTO "+table+" VALUES (1, 5)")
				var scope *txlock.Scope
				if joined {
					scope = join(t, tx)
					lock(t, scope, key)
				}
				id := testdb.ConnID(t, tx)
				db.Kill(t, id)
				db.WaitGone(t, id)

				write := "INSERT INTO " + table + " VALUES (2, 5)"
				_, err := tx.ExecContext(t.Context(), write)
				if err == nil || errors.Is(err, txlock.ErrTxDoomed) {
					t.Errorf("the first statement was answered %v, want the driver's error", err)
				}
				wantDoomed(t, "the second statement", second(tx.ExecContext(t.Context(), write)), 0)
				wantDoomed(t, "a query", tx.QueryRowContext(t.Context(), "SELECT 1").Scan(new(int)), 0)
				stmt, err := tx.PrepareContext(t.Context(), "SELECT ?")
				check(t, err)
				wantDoomed(t, "a prepared query", stmt.QueryRowContext(t.Context(), 1).Scan(new(int)), 0)
				if joined {
					wantDoomed(t, "Lock", second(scope.Lock(t.Context(), key)), 0)
					wantFree(t, db, key)
				}
				err = tx.Commit()
				wantDoomed(t, "Commit", err, 0)
				if !txlock.Retryable(err) {
					t.Errorf("Commit: %v, want it to be run again", err)
				}
				wantCount(t, pool, 0, "SELECT COUNT(*) FROM "+table)
			})
		}
	})
}

// textDeadlock does what deadlock does, for a transaction that was begun by BEGIN.
func textDeadlock(t *testing.T, db *testdb.DB, pool *sql.DB) (conn *sql.Conn, table string) {
	t.Helper()
	table = db.CreateTable(t, "counters", counters)
	db.Exec(t, "INSERT INTO "+table+" VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)")
	other := begin(t, newPool(t, db.Config(), false))
	exec(t, other, "UPDATE "+table+" SET v = 1 WHERE id > 1")
	conn = takeConn(t, pool)
	id := testdb.ConnID(t, conn)
	exec(t, conn, "BEGIN")
	exec(t, conn, "UPDATE "+table+" SET v = 1 WHERE id = 1")
	answered := db.Waiting(t, id, func() error { return second(conn.ExecContext(t.Context(), "UPDATE "+table+" SET v = 2 WHERE id = 2")) })
	exec(t, other, "UPDATE "+table+" SET v = 2 WHERE id = 1")
	if err := <-answered; number(err) != 1213 {
		t.Fatalf("the statement was answered %v, want the deadlock", err)
	}
	check(t, other.Rollback())
	return conn, table
}

// TestTextTransactionDooms ends a doomed transaction that was begun by BEGIN in every
// way.
func TestTextTransactionDooms(t *testing.T) {
	ends := map[string]func(t *testing.T, conn *sql.Conn) error{
		"COMMIT": func(t *testing.T, conn *sql.Conn) error { return second(conn.ExecContext(t.Context(), "COMMIT")) },
		"COMMIT by Query": func(t *testing.T, conn *sql.Conn) error {
			rows, err := conn.QueryContext(t.Context(), "COMMIT")
			if err != nil {
				return err
			}
			return errors.Join(rows.Err(), rows.Close())
		},
		"COMMIT prepared": func(t *testing.T, conn *sql.Conn) error {
			stmt, err := conn.PrepareContext(t.Context(), "COMMIT")
			if err != nil {
				return err
			}
			_, err = stmt.ExecContext(t.Context())
			return errors.Join(err, stmt.Close())
		},
		"COMMIT by Raw": func(_ *testing.T, conn *sql.Conn) error {
			return conn.Raw(func(driverConn any) error {
				_, err := driverConn.(driver.Execer).Exec("COMMIT", nil) //nolint:staticcheck // what users of Raw call
				return err
			})
		},
	}
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, db.Config(), true)
				conn, table := textDeadlock(t, db, pool)
				wantDoomed(t, "the next write", second(conn.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (9, 1)")), 1213)
				wantDoomed(t, "JoinConn", second(locksqlc.JoinConn(t.Context(), conn)), 1213)
				wantDoomed(t, name, end(t, conn), 1213)
				exec(t, conn, "INSERT INTO "+table+" VALUES (10, 1)") // the connection is as good as new
				wantCount(t, conn, 1, "SELECT SUM(v) FROM "+table)
			})
		}
		for _, again := range []string{"ROLLBACK", "BEGIN", "START TRANSACTION"} {
			t.Run(again, func(t *testing.T) {
				t.Parallel()
				conn, table := textDeadlock(t, db, newPool(t, db.Config(), true))
				exec(t, conn, again)
				exec(t, conn, "INSERT INTO "+table+" VALUES (10, 1)")
				exec(t, conn, "COMMIT")
			})
		}
		t.Run("back to the pool", func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, db.Config(), true)
			pool.SetMaxOpenConns(1)
			conn, table := textDeadlock(t, db, pool)
			check(t, conn.Close())
			exec(t, pool, "INSERT INTO "+table+" VALUES (10, 1)") // somebody else's
		})
	})
}

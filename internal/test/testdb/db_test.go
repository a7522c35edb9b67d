package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

func TestAppUserHasFewRights(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		db := Open(t, engine)
		table := db.CreateTable(t, "rights", "id INT PRIMARY KEY, v INT NOT NULL")
		app := db.Connect(t)
		for _, allowed := range []string{
			"INSERT INTO " + table + " VALUES (1, 1), (2, 2)",
			"UPDATE " + table + " SET v = 3 WHERE id = 1",
			"DELETE FROM " + table + " WHERE id = 2",
			"SELECT COUNT(*) FROM lockstep_locks",
			"SELECT COUNT(*) FROM lockstep_centers",
			"SELECT COUNT(*) FROM lockstep_leases",
		} {
			if _, err := app.ExecContext(t.Context(), allowed); err != nil {
				t.Errorf("%s: %v", allowed, err)
			}
		}
		for _, refused := range []string{
			"CREATE TABLE more (id INT PRIMARY KEY)",
			"CREATE TEMPORARY TABLE more (id INT PRIMARY KEY)",
			"ALTER TABLE " + table + " ADD COLUMN w INT",
			"DROP TABLE " + table,
			"TRUNCATE TABLE lockstep_locks",
			"LOCK TABLES " + table + " WRITE",
			"SELECT COUNT(*) FROM mysql.user",
			"CREATE DATABASE more",
			"SET GLOBAL innodb_lock_wait_timeout = 1",
		} {
			_, err := app.ExecContext(t.Context(), refused)
			if !isDenied(err) {
				t.Errorf("%s: %v, want it refused for want of rights", refused, err)
			}
		}
	})
}

// isDenied knows the servers' errors for a missing right: of a database, a
// command on a table, a privilege.
func isDenied(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && (server.Number == 1044 || server.Number == 1142 || server.Number == 1227)
}

func TestFreshIsEmptyAndDropped(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		var name, user string
		t.Run("fresh", func(t *testing.T) {
			db := Fresh(t, engine)
			name, user = db.Name(), db.user
			has(t, db.Admin(), "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()", "0")
			table := db.CreateTable(t, "one", "id INT PRIMARY KEY")
			has(t, db.Connect(t), "SELECT COUNT(*) FROM "+table, "0")
		})
		admin := Pool(t, Shared(t, engine).Config())
		has(t, admin, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '"+name+"'", "0")
		has(t, admin, "SELECT COUNT(*) FROM mysql.user WHERE user = '"+user+"'", "0")
	})
}

func TestOpenIsShared(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		db := Open(t, engine)
		if Open(t, engine) != db {
			t.Error("Open makes a second database")
		}
		dsn := db.DSN(func(cfg *mysql.Config) { cfg.ClientFoundRows = true })
		if !strings.Contains(dsn, "clientFoundRows=true") || !strings.Contains(dsn, "/"+db.Name()) || strings.Contains(db.DSN(), "clientFoundRows") {
			t.Errorf("DSN = %s, and the next one %s", dsn, db.DSN())
		}
	})
}

// lockTable makes a table with one row and returns two connections to it.
func lockTable(t *testing.T, db *DB) (table string, holder, waiter *sql.Conn) {
	t.Helper()
	table = db.CreateTable(t, "lock", "id INT PRIMARY KEY, v INT NOT NULL")
	pool := db.Connect(t, func(cfg *mysql.Config) { cfg.Logger = &mysql.NopLogger{} })
	conn := func() *sql.Conn {
		c, err := pool.Conn(t.Context())
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	holder, waiter = conn(), conn()
	mustExec(t, holder, "INSERT INTO "+table+" VALUES (1, 0)")
	return table, holder, waiter
}

func mustExec(t *testing.T, c *sql.Conn, text string) {
	t.Helper()
	if _, err := c.ExecContext(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// start runs a statement in the background. The result comes when that has
// got its locks, or an error.
func start(ctx context.Context, c *sql.Conn, text string) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := c.ExecContext(ctx, text)
		result <- err
	}()
	return result
}

func TestWaitForLockWait(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		db := Open(t, engine)
		for _, statement := range []string{
			"UPDATE %s SET v = v + 1 WHERE id = 1",
			"SELECT v FROM %s WHERE id = 1 FOR UPDATE",
			"SELECT v FROM %s WHERE id = 1 LOCK IN SHARE MODE",
			"INSERT INTO %s VALUES (1, 0) ON DUPLICATE KEY UPDATE v = v + 1",
		} {
			for range 3 { // side by side, which is what a cached view cannot do
				t.Run(strings.Fields(statement)[0], func(t *testing.T) {
					t.Parallel()
					testLockWait(t, db, statement)
				})
			}
		}
	})
}

func testLockWait(t *testing.T, db *DB, statement string) {
	table, holder, waiter := lockTable(t, db)
	mustExec(t, holder, "BEGIN")
	mustExec(t, holder, "UPDATE "+table+" SET v = v + 1 WHERE id = 1")
	holderID, waiterID := ConnID(t, holder), ConnID(t, waiter)
	mustExec(t, waiter, "BEGIN")
	if waits, err := db.WaitsForLock(t.Context(), waiterID); waits || err != nil {
		t.Errorf("before its statement the waiter waits: %v, %v", waits, err)
	}
	result := start(t.Context(), waiter, fmt.Sprintf(statement, table))
	db.WaitForLockWait(t, waiterID)
	if waits, err := db.WaitsForLock(t.Context(), holderID); waits || err != nil {
		t.Errorf("the holder waits: %v, %v", waits, err)
	}
	select {
	case err := <-result:
		t.Fatalf("the waiter did not wait: %v", err)
	default:
	}
	mustExec(t, holder, "COMMIT")
	if err := <-result; err != nil {
		t.Errorf("the waiter, after the holder's commit: %v", err)
	}
	mustExec(t, waiter, "COMMIT")
}

func TestKillReallyKills(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		db := Open(t, engine)
		table, holder, waiter := lockTable(t, db)
		mustExec(t, holder, "BEGIN")
		mustExec(t, holder, "UPDATE "+table+" SET v = v + 1 WHERE id = 1")
		holderID, waiterID := ConnID(t, holder), ConnID(t, waiter)
		result := start(t.Context(), waiter, "UPDATE "+table+" SET v = v + 1 WHERE id = 1")
		db.WaitForLockWait(t, waiterID)

		db.Kill(t, holderID)
		if err := <-result; err != nil {
			t.Errorf("the waiter, after the holder was killed: %v", err)
		}
		db.WaitGone(t, holderID)
		if _, err := holder.ExecContext(t.Context(), "SELECT 1"); err == nil {
			t.Error("the killed connection answers")
		}
		has(t, db.Connect(t), "SELECT v FROM "+table, "1") // the killed transaction was rolled back
	})
}

// TestRowLocks proves that a session that has a row locked and executes nothing is
// told from one that waits for it, and that sessions without locks are left out.
func TestRowLocks(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		db := Shared(t, engine).Open(t) // whose sessions are this test's alone
		table := db.CreateTable(t, "rowlocks", "id INT PRIMARY KEY")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1)")
		if engine == MariaDB { // as another test may have it
			db.Exec(t, "SET GLOBAL innodb_status_output_locks = ON")
			defer db.Exec(t, "SET GLOBAL innodb_status_output_locks = OFF")
		}
		pool := db.Connect(t)
		begin := func() *sql.Tx {
			tx, err := pool.BeginTx(t.Context(), nil)
			check(t, err)
			return tx
		}
		holder, waiter, reader := begin(), begin(), begin()
		var id int
		lock := "SELECT id FROM " + table + " WHERE id = 1"
		check(t, holder.QueryRowContext(t.Context(), lock+" FOR UPDATE").Scan(&id))
		check(t, reader.QueryRowContext(t.Context(), lock).Scan(&id))
		holds, waits := ConnID(t, holder), ConnID(t, waiter)
		var waiting, idle []int64
		db.wait(t, fmt.Sprintf("connection %d alone has a row locked and is idle", holds), func(context.Context) (bool, error) {
			waiting, idle = db.RowLocks(t) // the server may still be about to end its statement
			return len(waiting) == 0 && slices.Equal(idle, []int64{holds}), nil
		})
		locked := make(chan error, 1)
		go func() { locked <- waiter.QueryRowContext(context.Background(), lock+" FOR UPDATE").Scan(&id) }()
		db.WaitForLockWait(t, waits)
		if waiting, idle := db.RowLocks(t); !slices.Equal(waiting, []int64{waits}) || !slices.Equal(idle, []int64{holds}) {
			t.Errorf("%v wait and %v are idle, want %d to wait for %d", waiting, idle, waits, holds)
		}
		check(t, holder.Rollback())
		check(t, <-locked)
		check(t, waiter.Rollback())
		check(t, reader.Rollback())
	})
}

package testdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"
)

func TestMain(m *testing.M) { Main(m) }

func TestAppUserHasFewRights(t *testing.T) {
	OnServers(t, func(t *testing.T, engine Engine) {
		db := Open(t, engine)
		table := db.CreateTable(t, "rights", "id INT PRIMARY KEY, v INT NOT NULL")
		app := db.Connect(t)
		check(t, execAll(t.Context(), app, []string{
			"INSERT INTO " + table + " VALUES (1, 1), (2, 2)", "UPDATE " + table + " SET v = 3 WHERE id = 1", "DELETE FROM " + table + " WHERE id = 2",
		}))
		for _, refused := range []string{
			"CREATE TABLE more (id INT PRIMARY KEY)", "CREATE TEMPORARY TABLE more (id INT PRIMARY KEY)", "CREATE DATABASE more",
			"ALTER TABLE " + table + " ADD COLUMN w INT", "DROP TABLE " + table, "TRUNCATE TABLE lockstep_locks",
			"LOCK TABLES " + table + " WRITE", "SELECT COUNT(*) FROM mysql.user", "SET GLOBAL innodb_lock_wait_timeout = 1",
		} {
			_, err := app.ExecContext(t.Context(), refused)
			var server *mysql.MySQLError // of a database, a command on a table, a privilege
			if !errors.As(err, &server) || !slices.Contains([]uint16{1044, 1142, 1227}, server.Number) {
				t.Errorf("%s: %v, want it refused for want of rights", refused, err)
			}
		}
	})
}

// TestWaits proves that a session that waits for a row is told from one that holds it, from one that
// reads, and from one that does nothing, and that Kill ends a holder.
func TestWaits(t *testing.T) {
	OnServers(t, func(t *testing.T, engine Engine) {
		db := Shared(t, engine).Open(t) // whose sessions are this test's alone
		table := db.CreateTable(t, "waits", "id INT PRIMARY KEY")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1)")
		pool := db.Connect(t, func(cfg *mysql.Config) { cfg.Logger = &mysql.NopLogger{} })
		var ids [3]int64
		var locks [3]func(how string) error
		for i := range ids { // the holder, the waiter, a reader
			tx, err := pool.BeginTx(context.WithoutCancel(t.Context()), nil)
			check(t, err)
			defer func() { _ = tx.Rollback() }()
			ids[i] = ConnID(t, tx)
			locks[i] = func(how string) error {
				return tx.QueryRowContext(context.Background(), "SELECT id FROM "+table+" WHERE id = 1"+how).Scan(new(int))
			}
		}
		sees := func(what string, wantWaiting, wantIdle []int64) {
			t.Helper()
			db.wait(t, what, func(context.Context) (bool, error) { // the server may be about to end a statement
				waiting, idle := db.RowLocks(t)
				return slices.Equal(waiting, wantWaiting) && slices.Equal(idle, wantIdle), nil
			})
			for i, id := range ids {
				if waits, err := db.WaitsForLock(t.Context(), id); err != nil || waits != slices.Contains(wantWaiting, id) {
					t.Errorf("%s: session %d waits: %t, %v", what, i, waits, err)
				}
			}
		}
		check(t, locks[0](" FOR UPDATE"))
		check(t, locks[2](""))
		sees(fmt.Sprintf("connection %d alone has a row locked", ids[0]), nil, ids[:1])
		locked := make(chan error, 1)
		go func() { locked <- locks[1](" FOR UPDATE") }()
		db.WaitForLockWait(t, ids[1])
		sees(fmt.Sprintf("connection %d waits for %d", ids[1], ids[0]), ids[1:2], ids[:1])
		if len(locked) > 0 {
			t.Fatalf("the waiter did not wait: %v", <-locked)
		}
		db.Kill(t, ids[0])
		check(t, <-locked)
		db.WaitGone(t, ids[0])
		ErrorIf(t, locks[0]("") == nil, "the killed connection answers")
	})
}

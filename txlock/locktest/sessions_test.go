package locktest_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock/locktest"
)

// bothPools runs a test with each pool of a Kit over a program's database: the guarded one, and one that isn't.
func bothPools(t *testing.T, program *sql.DB, test func(t *testing.T, pool *sql.DB)) {
	t.Helper()
	k := locktest.Open(t, program)
	plain := sql.OpenDB(k.Connector())
	t.Cleanup(func() { must(t, plain.Close()) })
	for name, pool := range map[string]*sql.DB{"guarded": k.DB(), "plain": plain} {
		t.Run(name, func(t *testing.T) { test(t, pool) })
	}
}

// inUse checks how many connections of a program's database are in use.
func inUse(t *testing.T, what string, program *sql.DB, want int) {
	t.Helper()
	if got := program.Stats().InUse; got != want {
		t.Errorf("%s: %d connections of the program's database are in use, want %d", what, got, want)
	}
}

// TestOneConnection has a program's database with one connection. Nothing that has ended keeps it.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	program := sql.OpenDB(&numbers{all: map[string]int64{"orders": 7}})
	t.Cleanup(func() { must(t, program.Close()) })
	program.SetMaxOpenConns(1)
	bothPools(t, program, func(t *testing.T, pool *sql.DB) {
		ctx := t.Context()
		_, err := pool.ExecContext(ctx, "DELETE FROM orders")
		must(t, err)
		inUse(t, "a statement", program, 0)
		rows, err := pool.QueryContext(ctx, "SELECT n FROM orders")
		must(t, err)
		inUse(t, "open rows", program, 1)
		must(t, errors.Join(rows.Close(), rows.Err()))
		inUse(t, "closed rows", program, 0)
		must(t, pool.PingContext(ctx))
		inUse(t, "a ping", program, 0)
		if err := pool.QueryRowContext(ctx, "SELECT n FROM missing").Err(); err == nil {
			t.Error("a query of no table returns no error")
		}
		inUse(t, "a query that fails", program, 0)

		tx, err := pool.BeginTx(ctx, nil)
		must(t, err)
		_, err = tx.ExecContext(ctx, "UPDATE orders SET n = 8")
		must(t, err)
		before, done := program.Stats().WaitCount, make(chan error)
		go func() {
			_, err := pool.ExecContext(ctx, "DELETE FROM orders")
			done <- err
		}()
		for program.Stats().WaitCount == before {
			runtime.Gosched()
		}
		must(t, tx.Commit())
		must(t, <-done)
		inUse(t, "two who take turns", program, 0)
	})
}

// TestSessionOfConn has a sql.Conn, which keeps the session of the program's database until it is closed.
func TestSessionOfConn(t *testing.T) {
	t.Parallel()
	program := sql.OpenDB(&numbers{all: map[string]int64{"orders": 7}})
	t.Cleanup(func() { must(t, program.Close()) })
	program.SetMaxIdleConns(0) // one that returns is closed
	bothPools(t, program, func(t *testing.T, pool *sql.DB) {
		ctx, before := t.Context(), program.Stats().MaxIdleClosed
		conn, err := pool.Conn(ctx)
		must(t, err)
		for range 2 {
			_, err = conn.ExecContext(ctx, "SET @n = 1")
			must(t, err)
			if err := conn.QueryRowContext(ctx, "SELECT n FROM missing").Err(); err == nil {
				t.Error("a query of no table returns no error")
			}
			rows, err := conn.QueryContext(ctx, "SELECT n FROM orders")
			must(t, err)
			if _, err := conn.PrepareContext(ctx, "SELECT n FROM orders"); err == nil {
				t.Error("a database that prepares nothing returns no error")
			}
			must(t, errors.Join(rows.Close(), rows.Err(), conn.PingContext(ctx)))
			for _, query := range []string{"DELETE FROM orders", ""} {
				tx, err := conn.BeginTx(ctx, nil)
				must(t, err)
				if query != "" {
					_, err = tx.ExecContext(ctx, query)
				}
				must(t, errors.Join(err, tx.Commit()))
			}
		}
		if n := program.Stats().MaxIdleClosed - before; n != 0 {
			t.Errorf("%d connections have returned before the sql.Conn is closed", n)
		}
		must(t, conn.Close())
		if n := program.Stats().MaxIdleClosed - before; n != 1 {
			t.Errorf("%d connections have returned, want 1", n)
		}
	})
}

// TestPreparedKeepsConnection has prepared statements, which keep their connection of the program's database
// until they are closed, so that each is prepared once. The mock can be closed in the test.
func TestPreparedKeepsConnection(t *testing.T) {
	t.Parallel()
	program, mock, err := sqlmock.New()
	must(t, err)
	program.SetMaxOpenConns(1)
	bothPools(t, program, func(t *testing.T, pool *sql.DB) {
		ctx := t.Context()
		pool.SetMaxOpenConns(1)
		prepared := func() *sql.Stmt {
			update := mock.ExpectPrepare("UPDATE orders").WillBeClosed()
			for range 2 {
				update.ExpectExec().WillReturnResult(sqlmock.NewResult(0, 1))
			}
			stmt, err := pool.PrepareContext(ctx, "UPDATE orders SET n = 1")
			must(t, err)
			for range 2 {
				_, err = stmt.ExecContext(ctx)
				must(t, err)
				inUse(t, "a prepared statement", program, 1)
			}
			return stmt
		}
		must(t, prepared().Close())
		inUse(t, "one that is closed", program, 0)
		stmt := prepared()
		conn, err := pool.Conn(ctx)
		must(t, err)
		must(t, stmt.Close())
		must(t, conn.Close())
		inUse(t, "one that was closed while its connection was in use", program, 0)
		conn, err = pool.Conn(ctx)
		must(t, err)
		mock.ExpectPrepare("DELETE FROM orders").WillBeClosed()
		stmt, err = conn.PrepareContext(ctx, "DELETE FROM orders")
		must(t, err)
		must(t, stmt.Close())
		inUse(t, "a sql.Conn", program, 1)
		must(t, conn.Close())
		inUse(t, "a sql.Conn that is closed", program, 0)
	})
	mock.ExpectClose()
	must(t, program.Close())
	must(t, mock.ExpectationsWereMet())
}

// TestSlowBegin begins a transaction in a program's database that doesn't answer: the wait ends with the context
// of the statement. The end of the context behind that ends no transaction.
func TestSlowBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, mock := onMock(t)
		mock.ExpectBegin().WillDelayFor(time.Hour)
		mock.ExpectBegin()
		mock.ExpectExec("UPDATE orders").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		for slow := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			tx, _ := begin(t.Context(), t, k)
			began := time.Now()
			_, err := tx.ExecContext(ctx, "UPDATE orders SET n = 1")
			if took := time.Since(began); (err != nil) != (slow == 0) || took > time.Second {
				t.Errorf("%v after %v", err, took)
			}
			cancel()
			synctest.Wait()
			if end := tx.Commit(); (end != nil) != (err != nil) {
				t.Errorf("Commit: %v", end)
			}
		}
	})
}

package testdb

import (
	"context"
	"database/sql"
	"testing"
)

// Err returns the error of a call whose other result plays no part.
func Err[T any](_ T, err error) error { return err }

// Executor is a pool, a connection or a transaction.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Exec executes a statement, and ends the test if it fails.
func Exec(tb testing.TB, on Executor, query string, args ...any) {
	tb.Helper()
	err := Err(on.ExecContext(context.WithoutCancel(tb.Context()), query, args...))
	FatalIf(tb, err != nil, "%s: %v", query, err)
}

// Number returns the number that a query selects, and ends the test if it fails.
func Number(tb testing.TB, on Queryer, query string, args ...any) (n int64) {
	tb.Helper()
	err := on.QueryRowContext(context.WithoutCancel(tb.Context()), query, args...).Scan(&n)
	FatalIf(tb, err != nil, "%s: %v", query, err)
	return n
}

// Count returns the number that a query selects as an int, and ends the test if it fails.
func Count(tb testing.TB, on Queryer, query string, args ...any) int {
	tb.Helper()
	return int(Number(tb, on, query, args...))
}

// Beginner is a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
}

// Begin begins a transaction. It is rolled back at the end of the test at the latest, and not by
// the end of the test's context.
func Begin(tb testing.TB, on Beginner, options ...*sql.TxOptions) *sql.Tx {
	tb.Helper()
	tx, err := on.BeginTx(context.WithoutCancel(tb.Context()), append(options, nil)[0])
	FatalIf(tb, err != nil, "begin: %v", err)
	tb.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// Taken takes a connection from a pool. It is returned at the end of the test at the latest.
func Taken(tb testing.TB, pool *sql.DB) *sql.Conn {
	tb.Helper()
	conn, err := pool.Conn(tb.Context())
	FatalIf(tb, err != nil, "connect: %v", err)
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

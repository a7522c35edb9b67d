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

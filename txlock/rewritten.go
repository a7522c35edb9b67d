package txlock

import (
	"context"
	"database/sql"
)

func (r rewritten) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return r.Tx.ExecContext(ctx, r.rewrite(query), args...)
}

func (r rewritten) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return r.Tx.PrepareContext(ctx, r.rewrite(query))
}

func (r rewritten) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return r.Tx.QueryContext(ctx, r.rewrite(query), args...)
}

func (r rewritten) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return r.Tx.QueryRowContext(ctx, r.rewrite(query), args...)
}

package txlock

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/rawsql"
)

// NotPrepared tells whether a server has refused to prepare a statement because of too
// many that are prepared, by anybody (max_prepared_stmt_count). It was not executed; its
// text can be.
func NotPrepared(err error) bool {
	if err == nil {
		return false // without an allocation
	}
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 1461 // ER_MAX_PREPARED_STMT_COUNT_REACHED
}

// unprepared is a transaction whose statements are sent as text where the server has no
// room for another prepared one.
type unprepared struct{ Tx }

func (u *unprepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	result, err := u.Tx.ExecContext(ctx, query, args...)
	if NotPrepared(err) {
		if text, ok := rawsql.Inline(query, args); ok {
			return u.Tx.ExecContext(ctx, text)
		}
	}
	return result, err
}

func (u *unprepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := u.Tx.QueryContext(ctx, query, args...)
	if NotPrepared(err) {
		if text, ok := rawsql.Inline(query, args); ok {
			return u.Tx.QueryContext(ctx, text)
		}
	}
	return rows, err
}

func (u *unprepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	row := u.Tx.QueryRowContext(ctx, query, args...)
	if NotPrepared(row.Err()) {
		if text, ok := rawsql.Inline(query, args); ok {
			return u.Tx.QueryRowContext(ctx, text)
		}
	}
	return row
}

// TakesText tells whether a pool is known to be of go-sql-driver/mysql, guarded or not,
// which sends a statement without arguments in one round trip, and with arguments in two
// or three unless it interpolates them.
func TakesText(pool *sql.DB) bool {
	_, ok := pool.Driver().(*mysql.MySQLDriver)
	return ok
}

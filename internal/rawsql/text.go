package rawsql

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
)

// DBTX is what statements are sent on, as sqlc calls it.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Text changes the text of statements on their way. Where the server has no room for
// another prepared statement, it sends them again with the arguments in the text.
type Text struct {
	DBTX
	// Rewrite adds what sqlc can't write: a prefix, or a hint. Nil adds nothing.
	Rewrite func(query string) string
	// Inline writes the arguments into the text at once, wherever they can be: that is one
	// round trip, and prepares nothing. The context has the statement's Source.
	Inline bool
}

// Source is a statement before its arguments were written into its text.
type Source struct {
	context.Context
	Query string
	Args  []any
	Text  string // with the arguments in it
}

// Unchanged tells whether no wrapper has changed the statement on its way.
func (s *Source) Unchanged(text string) bool { return s != nil && s.Text == text }

type sourceKey struct{}

// Value returns the source itself for its key.
func (s *Source) Value(key any) any {
	if key == (sourceKey{}) {
		return s
	}
	return s.Context.Value(key)
}

// SourceOf returns the source of the statement that the context is of, or nil.
func SourceOf(ctx context.Context) *Source {
	source, _ := ctx.Value(sourceKey{}).(*Source)
	return source
}

// ExecContext sends a statement.
func (t *Text) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx, query, args = t.written(ctx, query, args)
	result, err := t.DBTX.ExecContext(ctx, query, args...)
	if text, ok := unprepared(err, query, args); ok {
		return t.DBTX.ExecContext(ctx, text)
	}
	return result, err
}

// QueryContext sends a statement that answers with rows.
func (t *Text) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx, query, args = t.written(ctx, query, args)
	rows, err := t.DBTX.QueryContext(ctx, query, args...)
	if text, ok := unprepared(err, query, args); ok {
		return t.DBTX.QueryContext(ctx, text)
	}
	return rows, err
}

// QueryRowContext sends a statement that answers with a row.
func (t *Text) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx, query, args = t.written(ctx, query, args)
	row := t.DBTX.QueryRowContext(ctx, query, args...)
	if text, ok := unprepared(row.Err(), query, args); ok {
		return t.DBTX.QueryRowContext(ctx, text)
	}
	return row
}

// written returns the statement as it is to be sent, and its context.
func (t *Text) written(ctx context.Context, query string, args []any) (context.Context, string, []any) {
	if t.Rewrite != nil {
		query = t.Rewrite(query)
	}
	if t.Inline {
		if text, ok := Inline(query, args); ok {
			return &Source{ctx, query, args, text}, text, nil
		}
	}
	return ctx, query, args
}

// unprepared returns the text of a statement which the server has refused to prepare.
func unprepared(err error, query string, args []any) (text string, ok bool) {
	if !NotPrepared(err) {
		return "", false
	}
	return Inline(query, args)
}

// NotPrepared tells whether a server has refused to prepare a statement because of too
// many that are prepared, by anybody (max_prepared_stmt_count), or to execute one that it
// doesn't know, because something between has changed the session. It was not executed; its
// text can be.
func NotPrepared(err error) bool {
	if err == nil {
		return false // without an allocation
	}
	var server *mysql.MySQLError
	return errors.As(err, &server) && (server.Number == 1461 || server.Number == 1243) // ER_MAX_PREPARED_STMT_COUNT_REACHED, ER_UNKNOWN_STMT_HANDLER
}

// TakesText tells whether a pool is known to be of go-sql-driver/mysql, guarded or not,
// which sends a statement without arguments in one round trip, and with arguments in two
// or three unless it interpolates them.
func TakesText(pool *sql.DB) bool {
	_, ok := pool.Driver().(*mysql.MySQLDriver)
	return ok
}

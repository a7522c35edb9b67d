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

// Text renders statements on their way. Where the server has no room for another prepared
// statement, it sends them again with the arguments in the text.
type Text struct {
	DBTX
	// Rewrite adds what sqlc can't write: variables, or a hint. Nil adds nothing.
	Rewrite func(Statement) Statement
	// Inline writes the arguments into the text at once, wherever they can be: that is one
	// round trip, and prepares nothing. The context has what was Rendered.
	Inline bool
}

// Edited is a Rewrite that edits the text.
func Edited(edit func(query string) string) func(Statement) Statement {
	return func(s Statement) Statement {
		s.Query = edit(s.Query)
		return s
	}
}

// Editing sends statements with edited texts.
func Editing(db DBTX, edit func(query string) string) *Text {
	return &Text{DBTX: db, Rewrite: Edited(edit)}
}

// Under is a Rewrite that sets variables of MariaDB.
func Under(variables ...string) func(Statement) Statement {
	return func(s Statement) Statement {
		s.Variables = variables
		return s
	}
}

// Rendered is a statement, and the text that it was rendered to.
type Rendered struct {
	context.Context
	Statement
	text string
}

type renderedKey struct{}

// Value returns what was rendered itself for its key.
func (r *Rendered) Value(key any) any {
	if key == (renderedKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// RenderedOf returns the statement that a text under the context was rendered from. It returns
// false if there is none, or if a wrapper has changed the text on its way.
func RenderedOf(ctx context.Context, text string) (Statement, bool) {
	r, ok := ctx.Value(renderedKey{}).(*Rendered)
	if !ok || r.text != text {
		return Statement{}, false
	}
	return r.Statement, true
}

// ExecContext sends a statement.
func (t *Text) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.Exec(ctx, Statement{Query: query, Args: args})
}

// Exec sends a statement.
func (t *Text) Exec(ctx context.Context, s Statement) (sql.Result, error) {
	ctx, query, args := t.render(ctx, s)
	result, err := t.DBTX.ExecContext(ctx, query, args...)
	if text, ok := unprepared(err, query, args); ok {
		return t.DBTX.ExecContext(ctx, text)
	}
	return result, err
}

// QueryContext sends a statement that answers with rows.
func (t *Text) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.Query(ctx, Statement{Query: query, Args: args})
}

// Query sends a statement that answers with rows.
func (t *Text) Query(ctx context.Context, s Statement) (*sql.Rows, error) {
	ctx, query, args := t.render(ctx, s)
	rows, err := t.DBTX.QueryContext(ctx, query, args...)
	if text, ok := unprepared(err, query, args); ok {
		return t.DBTX.QueryContext(ctx, text)
	}
	return rows, err
}

// QueryRowContext sends a statement that answers with a row.
func (t *Text) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx, query, args = t.render(ctx, Statement{Query: query, Args: args})
	row := t.DBTX.QueryRowContext(ctx, query, args...)
	if text, ok := unprepared(row.Err(), query, args); ok {
		return t.DBTX.QueryRowContext(ctx, text)
	}
	return row
}

// render returns a statement as it is to be sent, and its context.
func (t *Text) render(ctx context.Context, s Statement) (context.Context, string, []any) {
	if t.Rewrite != nil {
		s = t.Rewrite(s)
	}
	query, args := s.SQL()
	if t.Inline {
		if text, ok := Inline(query, args); ok {
			return &Rendered{ctx, s, text}, text, nil
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

// NotPrepared reports whether a server has refused to prepare a statement because of too
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

// TakesText reports whether a pool is known to be of go-sql-driver/mysql, guarded or not,
// which sends a statement without arguments in one round trip, and with arguments in two
// or three unless it interpolates them.
func TakesText(pool *sql.DB) bool {
	switch d := pool.Driver().(type) {
	case *mysql.MySQLDriver:
		return true
	case interface{ TakesText() bool }: // that of locksqlc.DriverName
		return d.TakesText()
	default:
		return false
	}
}

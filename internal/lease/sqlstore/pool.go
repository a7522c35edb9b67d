package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
)

// prepared is a pool on which the statements that acquire and release stay prepared,
// because parsing is most of their cost. Other statements are sent by text, and so are
// these when the server has no room for another prepared statement (error 1461).
type prepared struct {
	*sql.DB
	renewConn *renewConn
	s         *Store
	inline    bool // arguments are written into the text: see text
	mu        sync.Mutex
	stmts     map[string]*sql.Stmt
}

var _ gen.DBTX = (*prepared)(nil)

// keptPrepared are how the statements begin that stay prepared.
var keptPrepared = []string{
	"-- name: AcquireLease ", "-- name: ReleaseLease ", refusal + "-- name: AcquireNoWait ", refusal + "-- name: ReleaseNoWait ",
	"-- name: ShareLease ", "-- name: AcquirePermit ",
}

func (p *prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if p.s.clock.engine().Waits {
		return alone{p.text(p.textual()), p, p.s}.ExecContext(ctx, query, args...)
	}
	stmt, spare, err := p.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	if stmt != nil {
		result, err := stmt.ExecContext(ctx, args...)
		if !rawsql.NotPrepared(err) {
			return result, err
		}
	}
	return p.text(spare).ExecContext(ctx, query, args...)
}

func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return p.text(p.textual()).QueryContext(ctx, query, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return p.text(p.textual()).QueryRowContext(ctx, query, args...)
}

// BeginTx begins a transaction.
func (p *prepared) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return p.textual().BeginTx(ctx, opts)
}

// textual returns the sql.DB on which text is sent.
func (p *prepared) textual() *sql.DB {
	if spare := p.renewConn.spare(); spare != nil {
		return spare
	}
	return p.DB
}

// statement prepares a query on its first use, if it is one of keptPrepared and the pool
// isn't closed. Else it returns the sql.DB on which its text is sent.
func (p *prepared) statement(ctx context.Context, query string) (*sql.Stmt, *sql.DB, error) {
	pool := p.textual()
	if pool != p.DB || !slices.ContainsFunc(keptPrepared, func(name string) bool { return strings.HasPrefix(query, name) }) {
		return nil, pool, nil
	}
	p.mu.Lock()
	stmt, closed := p.stmts[query], p.stmts == nil
	p.mu.Unlock()
	if stmt != nil || closed {
		return stmt, pool, nil
	}
	fresh, err := p.PrepareContext(ctx, query)
	if rawsql.NotPrepared(err) {
		return nil, pool, nil
	}
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	stmt = p.stmts[query]
	if stmt == nil && p.stmts != nil {
		stmt, p.stmts[query] = fresh, fresh
	}
	p.mu.Unlock()
	if stmt == fresh {
		return stmt, pool, nil
	}
	return stmt, pool, fresh.Close() // another call has prepared it, or the pool was closed
}

// close closes the statements. None is prepared afterwards.
func (p *prepared) close() error {
	p.mu.Lock()
	stmts := p.stmts
	p.stmts = nil
	p.mu.Unlock()
	var err error
	for _, stmt := range stmts {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

// text sends statements that don't stay prepared. Inline, their arguments stand in the
// text.
func (p *prepared) text(db gen.DBTX) *rawsql.Text { return &rawsql.Text{DBTX: db, Inline: p.inline} }

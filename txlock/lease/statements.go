package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

var queries = gen.New()

// The replies of AcquireLease and its likes that are no token.
const (
	replyAbsent  = 0 // the row is locked by somebody or missing
	replyRefused = 1 // it is somebody else's
	replyFull    = 2 // the list of holds is full (AcquireLease)
	replyExpired = 2 // released, but it had expired (ReleaseLease)
	replyLate    = 3 // the statement came too late
	replyOther   = 4 // the key is used for something else
	firstToken   = 16

	sharedBit  = 1 << 62 // of a token: there may be readers
	permitBits = 52      // of a token, above which is the slot of a permit
	usedFor    = 100000  // the reply of MarkGate for intent 0
)

// The slots of the rows of a key.
const (
	unknownSlot   = -2 // of a permit whose grant was not answered
	turnstileSlot = -1
	leaseSlot     = 0
)

// prepared is a pool on which the statements that take and give back stay prepared:
// most of their cost is being parsed. See text for the others, and for where the server
// has no room for another prepared statement (error 1461).
type prepared struct {
	*sql.DB
	lane   *lane
	inline bool // see text
	mu     sync.Mutex
	stmts  map[string]*sql.Stmt
}

var _ gen.DBTX = (*prepared)(nil)

// keptPrepared are the statements that stay prepared, in whatever form.
var keptPrepared = []string{"-- name: AcquireLease ", "-- name: ReleaseLease ", "-- name: ShareLease ", "-- name: AcquirePermit "}

func (p *prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, spare, err := p.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	if stmt != nil {
		result, err := stmt.ExecContext(ctx, args...)
		if !txlock.NotPrepared(err) {
			return result, err
		}
	}
	return text{spare, p.inline}.ExecContext(ctx, query, args...)
}

func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return text{p.textual(), p.inline}.QueryContext(ctx, query, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return text{p.textual(), p.inline}.QueryRowContext(ctx, query, args...)
}

// BeginTx begins a transaction.
func (p *prepared) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return p.textual().BeginTx(ctx, opts)
}

// textual returns the pool to send text on.
func (p *prepared) textual() *sql.DB {
	if spare := p.lane.spare(); spare != nil {
		return spare
	}
	return p.DB
}

// full tells whether the pool has no connection left at the moment.
func (p *prepared) full() bool { return full(p.DB) }

// statement prepares a query on first use, if it is one to be kept, and else returns the
// pool to send its text on, as it does once they are closed.
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
	if txlock.NotPrepared(err) {
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
	return stmt, pool, fresh.Close() // another call was first, or the last
}

// close closes the statements; none is prepared afterwards.
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

// errPoolClosed is what database/sql says of a pool that was closed, and stays so. It has
// no name there.
var errPoolClosed = func() error {
	pool := sql.OpenDB(nil)
	_ = pool.Close() // it has nothing open
	return pool.PingContext(context.Background())
}()

// text sends statements that don't stay prepared. Inline, their arguments stand in the
// text, which is one round trip and prepares nothing; else only where the server prepares
// nothing more.
type text struct {
	gen.DBTX
	inline bool
}

func (t text) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	whole, ok := rawsql.Inline(query, args)
	if t.inline && ok {
		return t.DBTX.ExecContext(ctx, whole)
	}
	result, err := t.DBTX.ExecContext(ctx, query, args...)
	if ok && txlock.NotPrepared(err) {
		return t.DBTX.ExecContext(ctx, whole)
	}
	return result, err
}

func (t text) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	whole, ok := rawsql.Inline(query, args)
	if t.inline && ok {
		return t.DBTX.QueryContext(ctx, whole)
	}
	rows, err := t.DBTX.QueryContext(ctx, query, args...)
	if ok && txlock.NotPrepared(err) {
		return t.DBTX.QueryContext(ctx, whole)
	}
	return rows, err
}

func (t text) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	whole, ok := rawsql.Inline(query, args)
	if t.inline && ok {
		return t.DBTX.QueryRowContext(ctx, whole)
	}
	row := t.DBTX.QueryRowContext(ctx, query, args...)
	if ok && txlock.NotPrepared(row.Err()) {
		return t.DBTX.QueryRowContext(ctx, whole)
	}
	return row
}

// beginner begins transactions.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// inTx runs f in a transaction of our own. At READ COMMITTED its locks close no gap.
func inTx(ctx context.Context, db beginner, f func(tx gen.DBTX) error) error {
	return inTxAs(ctx, db, sql.TxOptions{Isolation: sql.LevelReadCommitted}, f)
}

// uncommitted reads what others have not committed yet.
func uncommitted(ctx context.Context, db beginner, read func(tx gen.DBTX) error) error {
	return inTxAs(ctx, db, sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true}, read)
}

func inTxAs(ctx context.Context, db beginner, options sql.TxOptions, f func(tx gen.DBTX) error) error {
	tx, err := db.BeginTx(ctx, &options)
	if err != nil {
		return err
	}
	own, _ := db.(*prepared)
	if err := f(text{tx, own != nil && own.inline}); err != nil {
		rollback := tx.Rollback()
		if errors.Is(rollback, sql.ErrTxDone) || errors.Is(rollback, driver.ErrBadConn) {
			rollback = nil // database/sql has rolled back, or the connection is gone
		}
		return errors.Join(err, rollback)
	}
	return tx.Commit()
}

// discard throws away a connection whose state is not that of the pool's.
func discard(conn *sql.Conn) {
	// Raw hands on the error that makes database/sql do so, and Close has nothing left
	// to say then.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// database is what transactions are begun on, and statements sent.
type database interface {
	gen.DBTX
	beginner
}

// withRow waits for a row in the server's queue, which bounds the wait, so that
// nothing of ours is left waiting there, and sends what then is to be done with it.
func (m *Manager) withRow(ctx context.Context, db database, at row, limit time.Duration, send func(tx gen.DBTX) error) error {
	if err := m.clock.fresh(ctx, db); err != nil { // which tells how to bound the wait
		return err
	}
	return inTx(ctx, db, func(tx gen.DBTX) error {
		bounded := boundedTx{DBTX: tx, limit: limit, mariaDB: m.clock.onMariaDB()}
		began := time.Now()
		_, err := queries.LockLease(ctx, bounded, gen.LockLeaseParams{Name: []byte(at.key), Slot: at.slot})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return txlock.PastLimit(err, began, limit)
		}
		return send(tx)
	})
}

// boundedTx bounds the wait of a SELECT on the server.
type boundedTx struct {
	gen.DBTX
	limit   time.Duration
	mariaDB bool
}

func (b boundedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if b.mariaDB {
		return b.DBTX.QueryRowContext(ctx, rawsql.For(rawsql.AtMost(b.limit))+query, args...)
	}
	return b.DBTX.QueryRowContext(ctx, rawsql.HintAtMost(query, b.limit), args...)
}

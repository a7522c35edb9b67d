package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
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

// prepared is a pool whose statements stay prepared on its connections: most of
// their cost is being parsed.
type prepared struct {
	*sql.DB
	mu    sync.Mutex
	stmts map[string]*sql.Stmt
}

var _ gen.DBTX = (*prepared)(nil)

func (p *prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, err := p.statement(ctx, query)
	switch {
	case err != nil:
		return nil, err
	case stmt == nil:
		return p.DB.ExecContext(ctx, query, args...)
	}
	return stmt.ExecContext(ctx, args...)
}

func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := p.statement(ctx, query)
	switch {
	case err != nil:
		return nil, err
	case stmt == nil:
		return p.DB.QueryContext(ctx, query, args...)
	}
	return stmt.QueryContext(ctx, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	stmt, err := p.statement(ctx, query)
	if err != nil || stmt == nil {
		return p.DB.QueryRowContext(ctx, query, args...) // which has the error
	}
	return stmt.QueryRowContext(ctx, args...)
}

// full tells whether the pool has no connection left at the moment.
func (p *prepared) full() bool {
	stats := p.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}

// statement prepares a query on first use. Once they are closed there is none.
func (p *prepared) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	p.mu.Lock()
	stmt, closed := p.stmts[query], p.stmts == nil
	p.mu.Unlock()
	if stmt != nil || closed {
		return stmt, nil
	}
	fresh, err := p.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	stmt = p.stmts[query]
	if stmt == nil && p.stmts != nil {
		stmt, p.stmts[query] = fresh, fresh
	}
	p.mu.Unlock()
	if stmt == fresh {
		return stmt, nil
	}
	return stmt, fresh.Close() // another call was first, or the last
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

// inTx runs f in a transaction of our own. At READ COMMITTED its locks close no gap.
func inTx(ctx context.Context, db interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
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

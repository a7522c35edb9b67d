package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

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

// database is what transactions are begun on, and statements sent.
type database interface {
	gen.DBTX
	beginner
}

// Queued is that of store.Store.
func (s *Store) Queued(ctx context.Context, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	return s.queued(ctx, s.pool, at, atMost, send)
}

// Wait is that of store.Store.
func (s *Store) Wait(ctx context.Context, at store.Row, limit func(brief bool) (atMost time.Duration, goOn bool), send func(store.Session) error) error {
	conn, own, giveBack, err := s.lane.another(ctx)
	if err != nil {
		return err
	}
	defer giveBack()
	atMost, goOn := limit(!own)
	if !goOn {
		return nil
	}
	return s.queued(ctx, conn, at, atMost, send)
}

// queued waits for a row in the server's queue, which bounds the wait, so that nothing of
// ours is left waiting there, and sends what then is to be done with it.
func (s *Store) queued(ctx context.Context, db database, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	if err := s.clock.fresh(ctx, db); err != nil { // which tells how to bound the wait
		return err
	}
	err := inTx(ctx, db, func(tx gen.DBTX) error {
		bounded := boundedTx{DBTX: tx, limit: atMost, mariaDB: s.clock.onMariaDB()}
		began := time.Now()
		_, err := queries.LockLease(ctx, bounded, gen.LockLeaseParams{Name: []byte(at.Key), Slot: at.Slot})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return txlock.PastLimit(err, began, atMost)
		}
		return send(session{tx, s})
	})
	if explained := txlock.Explain("", err); errors.Is(explained, txlock.ErrWaitTimeout) {
		return fmt.Errorf("%w: %w", store.ErrLocked, explained)
	}
	return err
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

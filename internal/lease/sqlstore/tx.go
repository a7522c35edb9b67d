package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

// inTx runs f in a transaction of our own. At READ COMMITTED it locks no gaps. Where the server
// doesn't skip locked rows, these are errors: see refused.
func (s *Store) inTx(ctx context.Context, db rawsql.Beginner, f func(tx gen.DBTX) error) error {
	return inTxAs(ctx, db, sql.TxOptions{Isolation: sql.LevelReadCommitted}, func(tx gen.DBTX) error {
		if s.clock.engine().Waits {
			tx = rawsql.Editing(tx, s.clock.engine().Refusing)
		}
		return f(tx)
	})
}

// alone sends statements to a server that doesn't skip locked rows: it would wait for the row, and
// change it after its client has given up. One that skips rows has a transaction of its own.
type alone struct {
	gen.DBTX
	on rawsql.Beginner
	s  *Store
}

// ExecContext sends a statement.
func (a alone) ExecContext(ctx context.Context, query string, args ...any) (result sql.Result, err error) {
	if a.s.clock.engine().Refusing(query) == query {
		return a.DBTX.ExecContext(ctx, query, args...)
	}
	err = a.s.inTx(ctx, a.on, func(tx gen.DBTX) (err error) {
		result, err = tx.ExecContext(ctx, query, args...)
		return err
	})
	return result, err
}

// uncommitted runs read in a transaction that sees what others have not committed yet.
func uncommitted(ctx context.Context, db rawsql.Beginner, read func(tx gen.DBTX) error) error {
	return inTxAs(ctx, db, sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true}, read)
}

func inTxAs(ctx context.Context, db rawsql.Beginner, options sql.TxOptions, f func(tx gen.DBTX) error) error {
	return rawsql.InTx(ctx, db, options, func(tx *sql.Tx) error {
		if own, ok := db.(*prepared); ok {
			return f(own.text(tx))
		}
		return f(&rawsql.Text{DBTX: tx})
	})
}

// discard closes a connection whose state is not that of the pool's other connections.
func discard(conn *sql.Conn) {
	// ErrBadConn makes database/sql close the connection, so Close has nothing more to
	// report.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// database begins transactions and sends statements.
type database interface {
	gen.DBTX
	rawsql.Beginner
}

// Queued waits in the server's queue for a row, and calls send with the row locked.
func (s *Store) Queued(ctx context.Context, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	return s.queued(ctx, s.pool, at, atMost, send)
}

// Wait waits for a row as Queued does, on another connection than the one for renewals.
func (s *Store) Wait(ctx context.Context, at store.Row, limit func(brief bool) (atMost time.Duration, goOn bool), send func(store.Session) error) error {
	conn, own, release, err := s.renewConn.another(ctx)
	if err != nil {
		return err
	}
	defer release()
	atMost, goOn := limit(!own)
	if !goOn {
		return nil
	}
	return s.queued(ctx, conn, at, atMost, send)
}

// limited returns a connection whose waits for locks the session's timeout limits. It isn't used again.
func (s *Store) limited(ctx context.Context, db database, atMost time.Duration) (conn *sql.Conn, err error) {
	conn, own := db.(*sql.Conn)
	if !own {
		conn, err = s.pool.textual().Conn(ctx)
	}
	if err != nil {
		return nil, err
	}
	if _, err = conn.ExecContext(ctx, rawsql.SetLockWait(rawsql.LockWait(atMost))); err != nil {
		discard(conn)
	}
	return conn, err
}

// queued waits for a row in the server's queue, and calls send with the row locked. The
// server bounds the wait, so that nothing of ours stays in the queue.
func (s *Store) queued(ctx context.Context, db database, at store.Row, atMost time.Duration, send func(store.Session) error) error {
	if err := s.clock.fresh(ctx, db); err != nil { // tells the kind of server, on which the bound depends
		return err
	}
	if s.clock.engine().WholeSeconds {
		conn, err := s.limited(ctx, db, atMost)
		if err != nil {
			return err
		}
		defer discard(conn)
		db = conn
	}
	err := s.inTx(ctx, db, func(tx gen.DBTX) error {
		bounded := &rawsql.Text{DBTX: tx, Rewrite: s.clock.engine().Limited(atMost)}
		began := now()
		_, err := queries.LockLease(ctx, bounded, gen.LockLeaseParams{Name: []byte(at.Key), Slot: at.Slot})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fault.PastLimit(err, began.Until(now()), atMost)
		}
		return send(session{db: tx, s: s})
	})
	if errors.Is(fault.Explain("", err), txlock.ErrWaitTimeout) {
		return store.ErrLocked
	}
	return err
}

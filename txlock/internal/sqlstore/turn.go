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
	"github.com/dca00107/lockstep/txlock/internal/store"
)

const (
	// turnSilence is after how many seconds the server ends the session of a turn that
	// says nothing: its process is stopped, or its host gone.
	turnSilence = 2
	// turnPatience bounds what a turn waits for besides its place: a connection, and the
	// KILL of a session that has given up.
	turnPatience = time.Second
)

// turn is a place in the queue for a key: a transaction that waits for the row of the
// turnstile, or has it, on a connection of its own.
type turn struct {
	session
	conn *sql.Conn
	tx   *sql.Tx
	end  context.CancelFunc // of the transaction
	id   uint64             // of the session on the server
}

// MayTurn is that of store.Store.
func (s *Store) MayTurn() bool {
	kept := 1 // of a plain pool, by the manager who is granted the lease
	if s.lane.hasOrigin() {
		kept = 0
	}
	return taken.queue(s.pool.DB, kept)
}

// Turn is that of store.Store. The wait is one statement, which the server never ends: a
// new one would be a new place.
func (s *Store) Turn(ctx context.Context, key, owner string, before func() error) (store.Turn, error) {
	t, err := s.openTurn(ctx)
	if err != nil {
		taken.unqueue(s.pool.DB)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", store.ErrNoTurn, err)
	}
	for {
		if err := before(); err != nil {
			t.Leave()
			return nil, err
		}
		rows, err := queries.QueueForLease(ctx, t.db, gen.QueueForLeaseParams{Owner: []byte(owner), Name: []byte(key)})
		if err != nil {
			t.abandon(ctx.Err() != nil)
			return nil, err
		}
		if rows > 0 { // else the janitor has removed it meanwhile
			return t, nil
		}
	}
}

// openTurn begins the transaction, without waiting for a connection for long.
func (s *Store) openTurn(ctx context.Context) (t *turn, err error) {
	limited, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	t = new(turn)
	if t.conn, err = s.pool.Conn(limited); err != nil {
		return nil, err
	}
	if err = s.clock.fresh(limited, s.pool); err == nil {
		_, err = t.conn.ExecContext(limited, rawsql.SetTurnstile(turnSilence, s.clock.onMariaDB()))
	}
	if err == nil {
		err = t.conn.QueryRowContext(limited, rawsql.Session).Scan(&t.id)
	}
	if err == nil {
		err = t.begin(limited)
	}
	if err != nil {
		discard(t.conn)
		return nil, err
	}
	t.session = session{text{t.tx, s.pool.inline}, s}
	return t, nil
}

// begin begins the transaction, which the end of the context doesn't end once it is open.
func (t *turn) begin(ctx context.Context) (err error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	goOn := context.AfterFunc(ctx, end)
	t.end = end
	t.tx, err = t.conn.BeginTx(life, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if !goOn() && err == nil {
		err = errors.Join(ctx.Err(), t.tx.Rollback())
	}
	if err != nil {
		end()
	}
	return err
}

// Leave is that of store.Turn. It gives the session up: its variables are not those of
// the pool.
func (t *turn) Leave() {
	taken.unqueue(t.s.pool.DB)
	// That tells the server, and waits for no answer: it may be out of reach. Where the
	// connection is gone, so is the place.
	_ = t.conn.Raw(func(raw any) error {
		_ = raw.(driver.Conn).Close()
		return nil
	})
	_ = t.tx.Rollback() // of which nothing is sent any more
	t.end()
	discard(t.conn)
}

// abandon is Leave for a place that may still be waited for: the server would keep it
// until its turn.
func (t *turn) abandon(waiting bool) {
	if waiting {
		ctx, cancel := context.WithTimeout(context.Background(), turnPatience)
		defer cancel()
		// Without it the server finds out when the turn comes.
		_, _ = t.s.pool.DB.ExecContext(ctx, rawsql.Kill(t.id))
	}
	t.Leave()
}

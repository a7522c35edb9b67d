package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/rawsql"
)

const (
	// turnSilence is after how many seconds the server ends the session of a turn that
	// sends nothing: its process is stopped, or its host is gone.
	turnSilence = 2
	// turnPatience bounds other waits than that for the place: for a connection of a pool
	// that is used up, and for the KILL of a session that has given up.
	turnPatience = time.Second
	// slowTurn bounds those for the server: one that is slow doesn't cost the place. Where the pool
	// gives an idle connection, which may have been lost, staleTurn does.
	slowTurn, staleTurn = 15 * time.Second, 3 * time.Second
	// turnLook is the time between two looks whether the server still has the place.
	turnLook = 5 * time.Second
)

// turn is a place in the server's queue for a key: a transaction, on a connection of its
// own, that waits for the queue row or has it locked.
type turn struct {
	session
	conn *sql.Conn
	tx   *sql.Tx
	end  context.CancelFunc // of the transaction

	// The session, as its server lists it; "" where that doesn't.
	server, host string
	id           uint64
}

// MayTurn counts a place in the queue of Fair, if the pool has a connection for it.
func (s *Store) MayTurn() bool {
	kept := 1 // the manager that gets the lease keeps one of a plain pool
	if s.renewConn.hasOrigin() {
		kept = 0
	}
	return budgets.queue(s.pool.DB, kept)
}

// Turn waits for the queue row of a key, in one statement without a time limit on the
// server: a second statement would wait at the end of the queue.
func (s *Store) Turn(ctx context.Context, key, owner, label string, before func() error) (store.Turn, error) {
	t, err := s.openTurn(ctx)
	if err != nil {
		budgets.unqueue(s.pool.DB)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", store.ErrNoTurn, err)
	}
	waiting, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop(nil)
	watching.Go(func() { t.watch(waiting, stop) })
	for {
		if err := before(); err != nil {
			t.Leave()
			return nil, err
		}
		first, err := fault.Changed("QueueForLease")(queries.QueueForLease(waiting, t.db, gen.QueueForLeaseParams{Owner: filled(owner), Label: filled(label), Name: []byte(key)}))
		if err != nil {
			t.abandon(ctx.Err() != nil)
			if lost := context.Cause(waiting); errors.Is(lost, errPlaceLost) {
				err = lost
			}
			return nil, err
		}
		if first { // else the cleanup has removed the row meanwhile
			return t, nil
		}
	}
}

// filled adds spaces up to the size of the columns of the queue row, whose row must not
// change its size: see lockstep_leases.
func filled(text string) []byte {
	const size = 255
	return append([]byte(text), bytes.Repeat([]byte(" "), max(0, size-len(text)))...)
}

// openTurn begins the transaction.
func (s *Store) openTurn(ctx context.Context) (t *turn, err error) {
	patience := slowTurn
	if s.Full() {
		patience = turnPatience
	} else if s.pool.Stats().Idle > 0 {
		patience = staleTurn
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t = new(turn)
	if t.conn, err = s.pool.Conn(limited); err != nil {
		return nil, err
	}
	if err = s.clock.fresh(limited, s.pool); err == nil {
		_, err = t.conn.ExecContext(limited, s.clock.engine().SetQueueWait(turnSilence))
	}
	if err == nil {
		err = t.conn.QueryRowContext(limited, s.clock.engine().Process()).Scan(&t.server, &t.id, &t.host)
		if errors.Is(err, sql.ErrNoRows) || fault.Is(err, 1142, 1146) { // ER_TABLEACCESS_DENIED_ERROR, ER_NO_SUCH_TABLE
			err = nil
		}
	}
	if err == nil {
		err = t.begin(limited)
	}
	if err != nil {
		discard(t.conn)
		return nil, err
	}
	t.session = session{db: s.pool.text(t.tx), s: s}
	return t, nil
}

// begin begins the transaction. Once that is open, the end of the context doesn't end it.
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

// Leave ends the place and closes its connection, whose session variables are not those
// of the pool.
func (t *turn) Leave() {
	budgets.unqueue(t.s.pool.DB)
	// This tells the server without waiting for an answer, as it may be out of reach. If
	// the connection is gone, so is the place.
	_ = t.conn.Raw(func(raw any) error {
		_ = raw.(driver.Conn).Close()
		return nil
	})
	_ = t.tx.Rollback() // sends nothing any more
	t.end()
	discard(t.conn)
}

// abandon leaves a place. While the place is still waited for, it also ends the session
// by KILL: else the server would keep the place until its turn comes.
func (t *turn) abandon(waiting bool) {
	if waiting {
		// If it fails, the server finds out when the turn comes.
		_, _ = t.beside(context.Background(), func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, rawsql.Kill(t.id))
			return err
		})
	}
	t.Leave()
}

// errPlaceLost is returned where the server has ended the session of a place, and its connection hasn't
// told.
var errPlaceLost = fmt.Errorf("the server has ended the session of a place in the queue: %w", driver.ErrBadConn)

// watch ends the wait for a place that the server doesn't have any more. While a statement waits, only
// the keepalive of TCP would tell, after minutes.
func (t *turn) watch(ctx context.Context, stop context.CancelCauseFunc) {
	for pause := turnLook; t.server != ""; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		alive, err := t.beside(ctx, nil)
		switch pause = turnLook; {
		case err == nil && !alive:
			stop(errPlaceLost)
		case errors.Is(err, context.DeadlineExceeded): // its own connection may have been lost, too
			pause = turnPatience
		}
	}
}

// beside tells, by another connection to the same server, whether the session of the place is there, and
// makes a call on that connection if it is.
func (t *turn) beside(ctx context.Context, call func(context.Context, *sql.Conn) error) (alive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	conn, err := t.s.pool.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	server := ""
	err = t.s.pool.text(conn).QueryRowContext(ctx, t.s.clock.engine().HasProcess(), t.id, t.host).Scan(&server, &alive)
	switch {
	case err != nil:
		return false, err
	case server != t.server:
		return false, errElsewhere
	case alive && call != nil:
		return true, call(ctx, conn)
	}
	return alive, nil
}

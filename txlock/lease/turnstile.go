package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dca00107/lockstep/internal/rawsql"
	"github.com/dca00107/lockstep/txlock"
)

const (
	// turnstileSilence is after how many seconds the server ends the session of
	// a turnstile that says nothing: its process is stopped, or its host gone.
	turnstileSilence = 2
	// leastLook and mostLook bound the time between two looks of the first.
	leastLook = 2 * time.Millisecond
	mostLook  = 20 * time.Millisecond
	// turnstilePatience bounds what a turnstile waits for besides its turn: a
	// connection, and the KILL of a session that has given up.
	turnstilePatience = time.Second
)

// errNoTurnstile is returned where a waiter has to poll.
var errNoTurnstile = errors.New("no connection for the queue")

// turnstile is the place of a process in the queue for a key: a transaction that
// waits for the row of the turnstile, or has it, on a connection of its own.
type turnstile struct {
	m       *Manager
	conn    *sql.Conn
	tx      *sql.Tx
	session uint64
}

// turnstile takes a place in the queue and returns when it is the first. The wait
// is one statement, that the server never ends: a new one would be a new place.
func (m *Manager) turnstile(ctx context.Context, key txlock.Key) (*turnstile, error) {
	if !m.mayQueue() {
		return nil, errNoTurnstile
	}
	t, err := m.openTurnstile(ctx)
	if err != nil {
		m.unqueue()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", errNoTurnstile, err)
	}
	for {
		if err := m.ensureTurnstile(ctx, key); err != nil {
			t.leave()
			return nil, err
		}
		_, err = queries.QueueForLease(ctx, t.tx, []byte(key.String()))
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, sql.ErrNoRows) { // the janitor has removed it meanwhile
			t.abandon(ctx.Err() != nil)
			return nil, err
		}
	}
}

// places counts the turnstiles of each pool, whose managers share it.
var places = struct {
	sync.Mutex
	taken map[*sql.DB]int
}{taken: make(map[*sql.DB]int)}

// mayQueue tells whether half of the pool is left for others, and counts.
func (m *Manager) mayQueue() bool {
	most := m.db.Stats().MaxOpenConnections
	places.Lock()
	defer places.Unlock()
	if most > 0 && places.taken[m.db.DB] >= most/2 {
		return false
	}
	places.taken[m.db.DB]++
	return true
}

// unqueue counts a turnstile that has ended.
func (m *Manager) unqueue() {
	places.Lock()
	defer places.Unlock()
	if places.taken[m.db.DB]--; places.taken[m.db.DB] == 0 {
		delete(places.taken, m.db.DB)
	}
}

// openTurnstile begins the transaction, without waiting for a connection for long.
func (m *Manager) openTurnstile(ctx context.Context) (t *turnstile, err error) {
	limited, cancel := context.WithTimeout(ctx, turnstilePatience)
	defer cancel()
	t = &turnstile{m: m}
	if t.conn, err = m.db.Conn(limited); err != nil {
		return nil, err
	}
	if err = m.clock.fresh(limited, m.db); err == nil {
		_, err = t.conn.ExecContext(limited, rawsql.SetTurnstile(turnstileSilence, m.clock.onMariaDB()))
	}
	if err == nil {
		err = t.conn.QueryRowContext(limited, rawsql.Session).Scan(&t.session)
	}
	if err == nil {
		t.tx, err = t.conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	}
	if err != nil {
		discard(t.conn)
		return nil, err
	}
	return t, nil
}

// leave gives the place to the next, and the session up: its variables are not
// those of the pool.
func (t *turnstile) leave() {
	t.m.unqueue()
	// Where the connection is gone, so is the place.
	_ = t.tx.Rollback()
	discard(t.conn)
}

// abandon is leave for a place that may still be waited for: the server would keep
// it until its turn.
func (t *turnstile) abandon(waiting bool) {
	if waiting {
		ctx, cancel := context.WithTimeout(context.Background(), turnstilePatience)
		defer cancel()
		// Without it the server finds out when the turn comes.
		_, _ = t.m.db.DB.ExecContext(ctx, rawsql.Kill(t.session))
	}
	t.leave()
}

// watchInTurn waits for the lease as the first of all processes. It looks through
// the turnstile's own connection, which tells the server that it is alive, and takes
// the lease through another.
func (m *Manager) watchInTurn(ctx context.Context, q *request, w *waiter, t *turnstile) (*Lease, error) {
	defer t.leave()
	freed := false
	for d := leastLook; ; d = min(d*3/2, mostLook) {
		l, left, err := m.lookAndTry(ctx, q, t.tx, freed)
		if err == nil || !errors.Is(err, txlock.ErrBusy) {
			return l, err
		}
		if left > 0 {
			d = min(d, left+time.Millisecond)
		}
		if err := w.pause(ctx, d); err != nil {
			return nil, err
		}
		if _, freed, err = m.standing(q.key.String(), w); err != nil {
			return nil, err
		}
	}
}

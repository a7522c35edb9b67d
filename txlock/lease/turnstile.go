package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/gen"
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

// mostPlaces is how many of the waiters of a key in one manager queue on the server.
const mostPlaces = 16

// errNoTurnstile is returned where a waiter has to poll: the first of its process, for
// which there is no connection.
var errNoTurnstile = errors.New("no connection for the queue")

// turnstile is the place of a waiter in the queue for a key: a transaction that
// waits for the row of the turnstile, or has it, on a connection of its own.
type turnstile struct {
	m       *Manager
	conn    *sql.Conn
	tx      *sql.Tx
	end     context.CancelFunc // of the transaction
	session uint64
}

// watchInLine takes a place in the queue of all processes and waits there for its turn
// and for the lease.
func (m *Manager) watchInLine(ctx context.Context, q *request, w *waiter) (*Lease, error) {
	if err := m.awaitPlace(ctx, q, w); err != nil {
		return nil, err
	}
	defer m.unplace(w)
	t, err := m.turnstile(ctx, q, w)
	if err != nil {
		return nil, err
	}
	return m.watchInTurn(ctx, q, w, t)
}

// awaitPlace returns when the waiter may take a place, which is counted: those of its
// process that came before have theirs, and the bound allows it one. Where the bound
// doesn't allow one to the first of the process, it returns errNoTurnstile.
func (m *Manager) awaitPlace(ctx context.Context, q *request, w *waiter) error {
	for {
		may, err := m.mayPlace(q.queue(), w)
		if may || err != nil {
			return err
		}
		select {
		case <-w.signal:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mayPlace is awaitPlace that doesn't wait.
func (m *Manager) mayPlace(key string, w *waiter) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, ErrClosed
	}
	at := slices.Index(m.queues[key].waiters, w)
	for _, other := range m.queues[key].waiters[:at] {
		if !other.placed {
			return false, nil
		}
	}
	if at < mostPlaces && m.mayQueue() {
		return true, nil
	}
	w.late = true
	if at == 0 {
		return false, errNoTurnstile
	}
	return false, nil
}

// placed notes that the waiter asks for its place now: the next of its process may follow.
// Whoever came while it waited for a connection has waited for that, too.
func (m *Manager) placed(q *request, w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.placed, w.queued = true, true
	line := m.queues[q.queue()]
	if w.late {
		for _, other := range line.waiters[slices.Index(line.waiters, w):] {
			other.late = true
		}
	}
	line.wake()
}

// unplace notes that the place is given up.
func (m *Manager) unplace(w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.placed, w.head = false, false
}

// delayed notes that the waiter has to wait for a place.
func (m *Manager) delayed(w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.late = true
}

// inOrder tells whether the waiter was in the queue since it came.
func (m *Manager) inOrder(w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !w.late
}

// turnstile takes a place in the queue and returns when it is the first. The wait
// is one statement, that the server never ends: a new one would be a new place.
func (m *Manager) turnstile(ctx context.Context, q *request, w *waiter) (*turnstile, error) {
	t, err := m.openTurnstile(ctx)
	if err != nil {
		m.unqueue()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		m.delayed(w)
		return nil, fmt.Errorf("%w: %w", errNoTurnstile, err)
	}
	for {
		if err := m.ensureTurnstile(ctx, q.key); err != nil {
			t.leave()
			return nil, err
		}
		m.placed(q, w)
		rows, err := queries.QueueForLease(ctx, text{t.tx, m.db.inline}, gen.QueueForLeaseParams{Owner: []byte(q.owner), Name: []byte(q.key.String())})
		if err != nil {
			t.abandon(ctx.Err() != nil)
			return nil, err
		}
		if rows > 0 { // else the janitor has removed it meanwhile
			return t, nil
		}
	}
}

// mayQueue counts a turnstile, where enough of the pool is left for others.
func (m *Manager) mayQueue() bool {
	kept := 1 // of a plain pool, by the manager who is granted the lease
	if m.lane.hasOrigin() {
		kept = 0
	}
	return taken.queue(m.db.DB, kept)
}

// unqueue counts a turnstile that has ended.
func (m *Manager) unqueue() { taken.unqueue(m.db.DB) }

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
		err = t.begin(limited)
	}
	if err != nil {
		discard(t.conn)
		return nil, err
	}
	return t, nil
}

// begin begins the transaction, which the end of the context doesn't end once it is open.
func (t *turnstile) begin(ctx context.Context) (err error) {
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

// leave gives the place to the next, and the session up: its variables are not
// those of the pool.
func (t *turnstile) leave() {
	t.m.unqueue()
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
	m.mu.Lock()
	w.head = true
	m.mu.Unlock()
	freed := false
	for d := leastLook; ; d = min(d*3/2, mostLook) {
		l, left, err := m.lookAndTry(ctx, q, text{t.tx, m.db.inline}, freed)
		if err == nil || !errors.Is(err, txlock.ErrBusy) {
			return l, err
		}
		if left > 0 {
			d = min(d, left+time.Millisecond)
		}
		if err := w.pause(ctx, d); err != nil {
			return nil, err
		}
		if _, freed, err = m.standing(q.queue(), w); err != nil {
			return nil, err
		}
	}
}

// ensureTurnstile makes the turnstile of a key, which may be locked for long: so it
// looks first.
func (m *Manager) ensureTurnstile(ctx context.Context, key txlock.Key) error {
	seen, err := lookAt(ctx, m.db, key, turnstileSlot)
	if err != nil || seen.exists {
		return err
	}
	if err = m.ensureAlone(ctx, key, turnstileSlot); errors.Is(err, errLocked) {
		err = nil // it is there, then
	}
	return err
}

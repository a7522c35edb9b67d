package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

const (
	// leastLook and mostLook bound the time between two looks of the first.
	leastLook = 2 * time.Millisecond
	mostLook  = 20 * time.Millisecond
	// turnstilePatience bounds how long a waiter polls that has no place in the queue.
	turnstilePatience = time.Second
	// mostPlaces is how many of the waiters of a key in one manager queue on the server.
	mostPlaces = 16
)

// watchInLine takes a place in the queue of all processes and waits there for its turn
// and for the lease.
func (m *Manager) watchInLine(ctx context.Context, q *request, w *waiter) (*Lease, error) {
	if err := m.awaitPlace(ctx, q, w); err != nil {
		return nil, err
	}
	defer m.unplace(w)
	t, err := m.store.Turn(ctx, q.key.String(), q.owner, func() error {
		if err := m.ensureTurnstile(ctx, q.key); err != nil {
			return err
		}
		m.placed(q, w)
		return nil
	})
	if errors.Is(err, store.ErrNoTurn) {
		m.delayed(w)
	}
	if err != nil {
		return nil, err
	}
	return m.watchInTurn(ctx, q, w, t)
}

// awaitPlace returns when the waiter may take a place, which is counted: those of its
// process that came before have theirs, and the bound allows it one. Where the bound
// doesn't allow one to the first of the process, it returns store.ErrNoTurn.
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
	if at < mostPlaces && m.store.MayTurn() {
		return true, nil
	}
	w.late = true
	if at == 0 {
		return false, store.ErrNoTurn
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

// watchInTurn waits for the lease as the first of all processes. It looks through
// the turnstile's own connection, which tells the server that it is alive, and takes
// the lease through another.
func (m *Manager) watchInTurn(ctx context.Context, q *request, w *waiter, t store.Turn) (*Lease, error) {
	defer t.Leave()
	m.mu.Lock()
	w.head = true
	m.mu.Unlock()
	freed := false
	for d := leastLook; ; d = min(d*3/2, mostLook) {
		l, left, err := m.lookAndTry(ctx, q, t, freed)
		if err == nil || !errors.Is(err, txlock.ErrBusy) {
			return l, err
		}
		if errors.Is(err, errDrained) {
			_ = m.sleep(ctx, min(m.options.maxPoll, turnstilePatience)) // let readers in
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
	at := store.Row{Key: key.String(), Slot: store.TurnstileSlot}
	seen, err := m.store.Look(ctx, at)
	if err != nil || seen.Exists {
		return err
	}
	if err = m.makeAlone(ctx, at); errors.Is(err, store.ErrLocked) {
		err = nil // it is there, then
	}
	return err
}

package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

const (
	// leastLook and mostLook bound the time between two looks of the first waiter.
	leastLook = 2 * time.Millisecond
	mostLook  = 20 * time.Millisecond
	// queuePatience is how long a waiter without a place in the queue polls before it
	// asks for a place again.
	queuePatience = time.Second
	// mostPlaces is how many waiters for a key one manager has in the server's queue.
	mostPlaces = 16
)

// watchInLine takes a place in the queue of all processes, and waits there for its turn
// and for the lease.
func (m *Manager) watchInLine(ctx context.Context, q *request, w *waiter) (*Lease, error) {
	q.seen.old = true
	if err := m.awaitPlace(ctx, q, w); err != nil {
		return nil, err
	}
	defer m.unplace(w)
	t, err := m.store.Turn(ctx, q.key.String(), q.owner, q.label, func() error {
		if err := m.ensureQueueRow(ctx, q.key); err != nil {
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

// awaitPlace waits until the waiter may take a place, and counts it: the waiters before
// it in this manager have their places, and there is a connection for it. If there is
// none for the first waiter of the manager, it returns store.ErrNoTurn.
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

// mayPlace does what awaitPlace does, without waiting. It reports whether the waiter may
// take a place.
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

// placed notes that the waiter asks for its place now, so that the next one of this
// manager may follow. If the waiter had to wait for a connection, so had those behind it.
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

// unplace notes that the waiter has left its place.
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

// inOrder reports whether the waiter was in the queue of all processes from the beginning.
func (m *Manager) inOrder(w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !w.late
}

// watchInTurn waits for the lease as the first of all processes. It looks on the
// connection of its place, which tells the server that it is alive, and takes the lease
// on another.
func (m *Manager) watchInTurn(ctx context.Context, q *request, w *waiter, t store.Turn) (*Lease, error) {
	defer t.Leave()
	q.turn = t
	defer func() { q.turn = nil }()
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
			_ = m.sleep(ctx, min(m.options.maxPoll, queuePatience)) // let readers in
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

// ensureQueueRow makes the queue row of a key if it is missing.
func (m *Manager) ensureQueueRow(ctx context.Context, key txlock.Key) error {
	at := store.Row{Key: key.String(), Slot: store.QueueSlot}
	err := m.making(ctx, func() error { return ensureRow(ctx, m.store, at) })
	if errors.Is(err, store.ErrLocked) {
		err = nil // who asks for the queue row finds out whether it exists
	}
	return err
}

package lease

import (
	"context"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
)

// queue has the waiters for a key in this manager, first come, first served. Only the
// first asks the server. With Fair, those that have a place in the queue of all processes
// ask too, each at its turn.
type queue struct {
	waiters []*waiter
}

// waiter is one call that waits. Manager.mu guards its fields.
type waiter struct {
	// signal has an element when there is news: it may be the waiter's turn, a lease of
	// the key was released in this manager, or the manager is closed.
	signal chan struct{}
	placed bool // it has a place in the queue of all processes, or has asked for it
	queued bool // it has had such a place
	head   bool // it is the first of all processes
	late   bool // it had to wait for a place, because connections are bounded
	freed  bool // the lease was released in this manager since it looked last
}

func (w *waiter) wake() {
	select {
	case w.signal <- struct{}{}:
	default: // it has been told already
	}
}

// wake wakes the waiters that may go on: the first, and the first of those without a
// place.
func (q *queue) wake() {
	for i, w := range q.waiters {
		if i == 0 || !w.placed {
			w.wake()
		}
		if !w.placed {
			break
		}
	}
}

// close wakes all waiters. The caller holds Manager.mu.
func (q *queue) close() {
	for _, w := range q.waiters {
		w.wake()
	}
}

// enqueue appends a waiter, and reports whether it is the first.
func (m *Manager) enqueue(key string) (w *waiter, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[key]
	if q == nil {
		q = new(queue)
		m.queues[key] = q
	}
	w = &waiter{signal: make(chan struct{}, 1)}
	q.waiters = append(q.waiters, w)
	return w, len(q.waiters) == 1
}

// dequeue removes a waiter, and wakes the one behind it and the one that may have its
// place now.
func (m *Manager) dequeue(key string, w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[key]
	i := slices.Index(q.waiters, w)
	q.waiters = slices.Delete(q.waiters, i, i+1)
	if i < len(q.waiters) {
		q.waiters[i].wake()
	}
	if w.queued {
		q.wake()
	}
	if len(q.waiters) == 0 {
		delete(m.queues, key)
	}
}

// standing reports whether the waiter is the first, and whether the lease was released in
// this manager since the last call.
func (m *Manager) standing(key string, w *waiter) (first, freed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, false, ErrClosed
	}
	freed, w.freed = w.freed, false
	return m.queues[key].waiters[0] == w, freed, nil
}

// freed wakes the waiters that may look, after the lease of a key was released.
func (m *Manager) freed(key txlock.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range []string{key.String(), readersQueue(key)} {
		if q := m.queues[name]; q != nil {
			for i, w := range q.waiters {
				if i == 0 || w.head {
					w.freed = true
					w.wake()
				}
			}
		}
	}
}

// pause waits for a time, or until there is news.
func (w *waiter) pause(ctx context.Context, d time.Duration) error {
	return leaseutil.Pause(ctx, d, w.signal)
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// queue is who waits for a key in this manager, first come, first served. Only
// the first asks the server, and with Fair those that have a place in the queue of all
// processes, one after the other.
type queue struct {
	waiters []*waiter
}

// waiter is one call that waits. Its fields are used under Manager.mu.
type waiter struct {
	// signal is sent to when there is news: it may be its turn, a lease of the key has
	// ended here, or the manager is closed.
	signal chan struct{}
	placed bool // it has asked for its place in the queue of all processes, and has it
	queued bool // it has had one
	head   bool // it is the first of all processes
	late   bool // it had to wait for a place, since connections are bounded
	freed  bool // the lease was released here since it has looked
}

func (w *waiter) wake() {
	select {
	case w.signal <- struct{}{}:
	default: // it has been told already
	}
}

// wake tells who may go on: the first, and the first of those without a place.
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

// close tells all waiters, under Manager.mu.
func (q *queue) close() {
	for _, w := range q.waiters {
		w.wake()
	}
}

// enqueue appends a waiter, and tells whether it is the first.
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

// dequeue takes a waiter out, and tells the one behind it, and who may have its place.
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

// standing tells whether the waiter is the first, and whether the lease was released
// here since it was asked last.
func (m *Manager) standing(key string, w *waiter) (first, freed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, false, ErrClosed
	}
	freed, w.freed = w.freed, false
	return m.queues[key].waiters[0] == w, freed, nil
}

// freed wakes those of a key whose lease was released who may look.
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

// maxFailures is how often in a row a waiter's look may fail before it gives up.
const maxFailures = 3

// firstTries is how often a lease that nobody holds is tried again past the limit, whose
// row is locked for a moment: by others' attempts, or by who makes a row beside it.
const firstTries = 6

// wait takes the lease when it is this call's turn and the lease is free.
func (m *Manager) wait(ctx context.Context, q *request) (*Lease, error) {
	if l, err := m.local(q); l != nil || err != nil && !errors.Is(err, errReading) {
		return l, err
	}
	asking, end := m.untilClosed(ctx) // the first try is outside of the limit
	defer end()
	q.limit = m.store.Now().Add(q.atMost)
	waiting, stop := m.limited(asking, q)
	defer stop()
	w, first := m.enqueue(q.queue())
	defer m.dequeue(q.queue(), w)
	first, err := m.mayTry(asking, q, first)
	if err != nil {
		return nil, q.endOf(ctx, asking, err)
	}
	var left time.Duration
	if first {
		var l *Lease
		l, left, err = m.tryFirst(asking, waiting, q)
		if err == nil || !errors.Is(err, txlock.ErrBusy) && !errors.Is(err, errLimit) {
			return l, q.endOf(ctx, asking, err)
		}
		l, left, err = m.tryOwn(waiting, q, left, err)
		if err = m.unlessReading(waiting, q, err); !errors.Is(err, txlock.ErrBusy) {
			return l, q.endOf(ctx, waiting, err)
		}
		if errors.Is(err, errDrained) {
			_ = m.sleep(waiting, m.options.maxPoll) // let readers in; what ends it ends the watch
		}
	}
	l, fair, err := m.watch(waiting, q, w, left, first)
	err = q.blocked.named(q.endOf(ctx, waiting, err))
	m.observe(func(o txlock.Observer) {
		o.Waited(ctx, txlock.Event{Lease: true, Key: q.key, Owner: q.owner, Fair: fair, Took: q.asked.Until(m.store.Now()), Err: err})
	})
	return l, err
}

// tryFirst is the first try, outside of the limit of the wait.
func (m *Manager) tryFirst(asking, waiting context.Context, q *request) (l *Lease, left time.Duration, err error) {
	l, left, err = m.try(asking, q, q.fair, true)
	for tries := 1; tries <= firstTries && errors.Is(err, txlock.ErrBusy) && q.seen == rowLocked && waiting.Err() != nil; tries++ {
		if err = m.sleep(asking, time.Duration(tries)*leastLook); err == nil {
			l, left, err = m.try(asking, q, q.fair, true)
		}
	}
	return l, left, err
}

// tryOwn tries on for an owner who holds the lease elsewhere, and has found it locked for a
// moment: it must not queue behind those who wait for it.
func (m *Manager) tryOwn(ctx context.Context, q *request, left time.Duration, err error) (*Lease, time.Duration, error) {
	var l *Lease
	for d := leastLook; q.named && errors.Is(err, txlock.ErrBusy); d = min(d*3/2, mostLook) {
		if mine, lookErr := m.mayTry(ctx, q, false); !mine || lookErr != nil {
			break
		}
		if err := m.sleep(ctx, d); err != nil {
			return nil, 0, err
		}
		l, left, err = m.try(ctx, q, false, true)
	}
	return l, left, err
}

// mayTry tells whether a request may ask at once: the first, and an owner who holds
// the lease elsewhere, for whom nobody waits.
func (m *Manager) mayTry(ctx context.Context, q *request, first bool) (bool, error) {
	if first {
		return true, nil
	}
	if err := m.notReading(ctx, q); err != nil || !q.named {
		return false, err
	}
	seen, err := m.store.Look(ctx, leaseRow(q.key))
	return seen.Left > 0 && seen.Owner == q.owner, err
}

// endOf is the error of a wait: that of the caller's context, or the limit, where
// one of them has ended it.
func (q *request) endOf(ctx, waiting context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("while it waited: %w", ctx.Err())
	case errors.Is(err, errLimit), errors.Is(context.Cause(waiting), errLimit):
		return fmt.Errorf("%w: after %v %v", txlock.ErrWaitTimeout, q.atMost, q.seen)
	case waiting.Err() != nil:
		return context.Cause(waiting)
	}
	return err
}

// watch waits for the lease: in the queue of all processes if that is wanted and possible,
// else for its turn in this process first.
func (m *Manager) watch(ctx context.Context, q *request, w *waiter, left time.Duration, tried bool) (l *Lease, fair bool, err error) {
	if q.fair {
		return m.watchFair(ctx, q, w, left)
	}
	for {
		first, _, err := m.standing(q.queue(), w)
		if err != nil {
			return nil, false, err
		}
		if first {
			break
		}
		select {
		case <-w.signal:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	_, lease := q.target.(exclusive)
	l, err = m.poll(ctx, q, w, left, !tried && !lease, 0)
	return l, false, err
}

// watchFair waits in the queue of all processes, and polls for a while where there is no
// connection for that. It tells whether the order of the queue was kept.
func (m *Manager) watchFair(ctx context.Context, q *request, w *waiter, left time.Duration) (l *Lease, fair bool, err error) {
	for pause := leastLook; ; {
		l, err = m.watchInLine(ctx, q, w)
		first, _, closed := m.standing(q.queue(), w)
		if errors.Is(err, store.ErrNoTurn) && !first && closed == nil {
			if err := w.pause(ctx, mostLook); err != nil {
				return nil, false, err
			}
			continue
		}
		if errors.Is(err, store.ErrNoTurn) {
			l, err = m.poll(ctx, q, w, left, false, m.store.Now().Add(turnstilePatience))
			if errors.Is(err, errQueueAgain) {
				continue
			}
			return l, false, err
		}
		if err == nil || ctx.Err() != nil || !broken(err) {
			return l, m.inOrder(w), err
		}
		// The place is lost with its connection: take a new one. Where there is
		// no connection to be had, the wait goes on by Poll for a while, which
		// gives up when that fails too.
		if err := m.sleep(ctx, pause); err != nil {
			return nil, true, err
		}
		pause = min(2*pause, m.options.maxPoll)
	}
}

// errQueueAgain is returned where it is time to try the queue of all processes again.
var errQueueAgain = errors.New("try to queue again")

// poll waits for the lease to look free. It looks by a plain SELECT and writes only
// then: attempts of many waiters would keep the row from being renewed.
// Readers and permits have no reason to pause before they ask for the first time. Past
// the moment until, if there is one, it returns errQueueAgain.
func (m *Manager) poll(ctx context.Context, q *request, w *waiter, left time.Duration, atOnce bool, until instant) (*Lease, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = m.options.minPoll, m.options.maxPoll
	failures := 0
	for {
		d := pause.NextBackOff()
		if left > 0 {
			d = min(d, left+time.Millisecond) // then it is free if its holder is dead
		}
		if !atOnce {
			if err := w.pause(ctx, d); err != nil {
				return nil, err
			}
		}
		atOnce = false
		if until > 0 && m.store.Now() > until {
			return nil, errQueueAgain
		}
		_, freed, err := m.standing(q.queue(), w)
		if err != nil {
			return nil, err
		}
		var l *Lease
		l, left, err = m.lookAndTry(ctx, q, m.store, freed)
		switch {
		case err == nil || ctx.Err() != nil:
			return l, err
		case errors.Is(err, errDrained):
			left, failures = 0, 0
			if err := m.sleep(ctx, m.options.maxPoll); err != nil { // let readers in
				return nil, err
			}
		case errors.Is(err, txlock.ErrBusy):
			failures = 0
		case broken(err) && failures+1 < maxFailures:
			failures++
		default:
			return nil, err
		}
	}
}

// pause waits for a time, or for news.
func (w *waiter) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.signal:
	case <-timer.C:
	}
	return nil
}

// lookAndTry takes the lease if it looks free, or is known to have been freed. One
// that is held for longer than its TTL, as a clock set back leaves it, is asked for
// too: the refusal cuts that.
func (m *Manager) lookAndTry(ctx context.Context, q *request, s store.Session, freed bool) (*Lease, time.Duration, error) {
	if l, err := m.local(q); l != nil || err != nil {
		return l, 0, err
	}
	if !freed {
		seen, err := q.target.look(ctx, s, q)
		if err != nil {
			return nil, 0, err
		}
		q.seen.look(q, seen)
		if seen.Held() {
			return nil, seen.Left, txlock.ErrBusy
		}
	}
	l, left, err := m.try(ctx, q, false, true)
	return l, left, m.unblock(ctx, q, err)
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// maxFailures is after how many failed looks in a row a waiter gives up.
const maxFailures = 3

// firstTries is how often a free lease is tried again after the limit of the wait if its
// row is locked for a moment, by other attempts or by somebody who makes a row beside it.
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
	q.later = m.slowly(ctx, q)
	defer func() { _ = q.later.End() }()
	w, first := m.enqueue(q.queue())
	defer m.dequeue(q.queue(), w)
	first, err := m.mayTry(asking, q, first)
	if err = q.unlessSilent(asking, err); err != nil && !errors.Is(err, txlock.ErrBusy) {
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
		if err = m.unlessReading(waiting, m.store, q, err); !errors.Is(err, txlock.ErrBusy) {
			return l, q.endOf(ctx, waiting, err)
		}
		if errors.Is(err, errDrained) {
			_ = m.sleep(waiting, m.options.maxPoll) // let readers in; what ends it ends the watch
		}
	}
	l, fair, err := m.watch(waiting, q, w, left, first)
	err = q.blocked.named(q.endOf(ctx, waiting, err))
	m.tell(ctx, l, txlock.Event{Kind: txlock.Waited, Lease: true, Key: q.key, Owner: q.owner, Fair: fair, Took: q.asked.Until(m.store.Now()), Err: err, Held: q.inTheWay()})
	return l, err
}

// tryFirst is the first try, which the limit of the wait doesn't bound.
func (m *Manager) tryFirst(asking, waiting context.Context, q *request) (l *Lease, left time.Duration, err error) {
	l, left, err = m.tryWaiting(asking, q, q.fair)
	for tries := 1; tries <= firstTries && errors.Is(err, txlock.ErrBusy) && q.seen == rowLocked && waiting.Err() != nil; tries++ {
		if err = m.sleep(asking, time.Duration(tries)*leastLook); err == nil {
			l, left, err = m.tryWaiting(asking, q, q.fair)
		}
	}
	return l, left, err
}

// tryOwn tries again for an owner that holds the lease in another manager, and has found
// its row locked for a moment: it must not queue behind those who wait for it.
func (m *Manager) tryOwn(ctx context.Context, q *request, left time.Duration, err error) (*Lease, time.Duration, error) {
	var l *Lease
	for d := leastLook; q.named && errors.Is(err, txlock.ErrBusy); d = min(d*3/2, mostLook) {
		if mine, lookErr := m.mayTry(ctx, q, false); !mine || lookErr != nil {
			break
		}
		if err := m.sleep(ctx, d); err != nil {
			return nil, 0, err
		}
		l, left, err = m.tryWaiting(ctx, q, false)
	}
	return l, left, err
}

// mayTry reports whether a request may ask at once: if it is the first, or if its owner
// holds the lease in another manager and so need not queue.
func (m *Manager) mayTry(ctx context.Context, q *request, first bool) (bool, error) {
	if first {
		return true, nil
	}
	if err := m.notReading(ctx, m.store, q); err != nil || !q.named {
		return false, err
	}
	seen, err := m.lookAtLease(ctx, q)
	return q.own(seen), err
}

// own reports whether the owner of a request holds the lease already.
func (q *request) own(seen store.Glance) bool {
	return q.named && seen.Left > 0 && seen.Owner == q.owner
}

// endOf is the error of a wait: that of the caller's context or of WaitAtMost, if one of
// these has ended the wait.
func (q *request) endOf(ctx, waiting context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("while it waited: %w", q.seen.named(ctx.Err()))
	case errors.Is(err, errLimit), errors.Is(context.Cause(waiting), errLimit):
		switch { // NameHolders looks who has it now
		case q.seen.old && q.names:
			q.seen = sight{what: "other waiters of the queue were first"}
		case q.seen.unsure && q.names:
			return fmt.Errorf("%w: after %v", txlock.ErrWaitTimeout, q.atMost)
		}
		if q.seen.mute {
			return unanswered(fmt.Sprintf("after %v %s", q.atMost, q.seen.what))
		}
		return fmt.Errorf("%w: after %v %w", txlock.ErrWaitTimeout, q.atMost, q.seen.why())
	case waiting.Err() != nil:
		return context.Cause(waiting)
	}
	return err
}

// watch waits for the lease: with Fair in the queue of all processes, else until it is
// the first of this manager, and then by polling.
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

// watchFair waits in the queue of all processes, and polls for a while if there is no
// connection for that. It reports whether the order of the queue was kept.
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
			l, err = m.poll(ctx, q, w, left, false, m.store.Now().Add(queuePatience))
			if errors.Is(err, errQueueAgain) {
				continue
			}
			return l, false, err
		}
		if err == nil || ctx.Err() != nil || !broken(err) {
			return l, m.inOrder(w), err
		}
		// The place is lost with its connection: take a new one. If there is no
		// connection, the waiter polls for a while, and gives up if that fails too.
		if err := m.sleep(ctx, pause); err != nil {
			return nil, true, err
		}
		pause = min(2*pause, m.options.maxPoll)
	}
}

// errQueueAgain is returned when it is time to try the queue of all processes again.
var errQueueAgain = errors.New("try to queue again")

// poll waits until the lease looks free, and then takes it. It looks by a plain SELECT
// and writes only then: attempts by many waiters would keep the row from being renewed.
// With atOnce, for readers and permits, it looks before the first pause. After the moment
// until, if there is one, it returns errQueueAgain.
func (m *Manager) poll(ctx context.Context, q *request, w *waiter, left time.Duration, atOnce bool, until instant) (*Lease, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = m.options.minPoll, m.options.maxPoll
	failures := 0
	for {
		d := pause.NextBackOff()
		if left > 0 {
			d = min(d, left+time.Millisecond) // when it is free if its holder is dead
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

// lookAndTry takes the lease if it looks free or is its owner's already, or was released in
// this manager. It also asks for a lease that seems to be held for longer than its TTL, which
// a clock that was set back causes: the refused statement shortens that.
func (m *Manager) lookAndTry(ctx context.Context, q *request, s store.Session, freed bool) (*Lease, time.Duration, error) {
	if l, err := m.local(q); l != nil || err != nil {
		return l, 0, err
	}
	if !freed {
		seen, err := m.look(ctx, q, s)
		if err != nil {
			return nil, 0, q.unlessSilent(ctx, err)
		}
		q.seen.look(q, seen)
		if seen.Held() && !q.own(seen) {
			return nil, seen.Left, txlock.ErrBusy
		}
	}
	l, left, err := m.tryWaiting(ctx, q, false)
	return l, left, m.unblock(ctx, q, err)
}

// tryWaiting is try for a wait. In turn it waits for no readers: those who come later would have the first
// places in the queue.
func (m *Manager) tryWaiting(ctx context.Context, q *request, inTurn bool) (*Lease, time.Duration, error) {
	l, left, err := m.try(ctx, q, inTurn, !inTurn)
	return l, left, q.unlessSilent(ctx, err)
}

// unlessSilent returns the error of a statement of a wait, or txlock.ErrBusy if the server
// has not answered: a wait asks again then. So it does if the server was silent for so long
// that the lease was lost under which it waited for readers to go.
func (q *request) unlessSilent(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, errLimit):
	case errors.As(err, new(unanswered)), q.drains && errors.Is(err, txlock.ErrLost):
		return txlock.ErrBusy
	}
	return err
}

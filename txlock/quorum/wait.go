package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
)

const (
	// leastPause and mostPause bound the pauses of a waiter, before a random part of up
	// to a half is added or subtracted: so one of several that have split the nodes
	// among them comes first.
	leastPause = 5 * time.Millisecond
	mostPause  = 250 * time.Millisecond
	// maxFailures is after how many tries in a row without a majority a waiter gives up.
	maxFailures = 3
)

// turn decides which request of this manager may ask for a key: of those that wait, only
// one does.
type turn struct {
	mine  chan struct{} // has an element while a request has the turn; the others wait to send, in order
	freed chan struct{} // has an element when the lease was released in this manager
	users int
}

// queue returns the turn of a key, and counts its caller.
func (m *Manager) queue(key txlock.Key) *turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.turns[key.String()]
	if t == nil {
		t = &turn{mine: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
		m.turns[key.String()] = t
	}
	t.users++
	return t
}

// unqueue is called once by each caller of queue, when it has ended.
func (m *Manager) unqueue(key txlock.Key, t *turn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(m.turns, key.String())
	}
}

// freed wakes a waiter of this manager after the lease was released.
func (m *Manager) freed(key txlock.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.turns[key.String()]; t != nil {
		select {
		case t.freed <- struct{}{}:
		default: // it was told already
		}
	}
}

// wait takes the lease when it is this call's turn and a majority is free.
func (m *Manager) wait(ctx context.Context, q *request) (*Lease, error) {
	if l := m.local(q); l != nil {
		return l, nil
	}
	asking, end := context.WithCancelCause(ctx) // the first try is outside of the limit
	defer end(nil)
	defer context.AfterFunc(m.closing, func() { end(ErrClosed) })()
	waiting := asking
	if limit := q.terms.WaitAtMost; limit > 0 {
		limited, cancel := context.WithTimeoutCause(asking, limit, errLimit)
		defer cancel()
		waiting = limited
	}
	t := m.queue(q.key)
	defer m.unqueue(q.key, t)
	l, err := m.inTurn(asking, waiting, q, t)
	switch {
	case err == nil:
		return l, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("while it waited: %w", ctx.Err())
	case errors.Is(context.Cause(waiting), errLimit) && isAny(err, context.DeadlineExceeded, context.Canceled):
		return nil, fmt.Errorf("%w: after %v: %v", txlock.ErrWaitTimeout, q.terms.WaitAtMost, cmp.Or(q.seen, errOthers)) //nolint:errorlint // it is what was seen, not the answer
	case asking.Err() != nil:
		return nil, context.Cause(asking)
	}
	return nil, err
}

var (
	// errLimit is the cause of a context that ends by the limit of a wait.
	errLimit = errors.New("the limit of WaitAtMost")
	// errOthers is the reason for a request that had no turn.
	errOthers = errors.New("other waiters of this manager were first")
)

// inTurn waits for the turn of the request, and tries until a majority is free. The first
// try is under the context asking, which has no limit. It notes the error of the last
// try.
func (m *Manager) inTurn(asking, ctx context.Context, q *request, t *turn) (*Lease, error) {
	select {
	case t.mine <- struct{}{}:
	default: // another request has the turn
		asking = ctx
		select {
		case t.mine <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer func() { <-t.mine }()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = leastPause, mostPause
	failures := 0
	for {
		l, err := m.try(asking, q)
		asking = ctx
		if isAny(err, txlock.ErrBusy, txlock.ErrNoQuorum) {
			q.seen = err
		}
		switch {
		case errors.Is(err, txlock.ErrNoQuorum) && failures+1 < maxFailures:
			failures++
		case !errors.Is(err, txlock.ErrBusy):
			return l, err
		default:
			failures = 0
		}
		for left := time.Duration(0); ; {
			d := pause.NextBackOff()
			if left > 0 {
				d = min(d, left+time.Millisecond) // when it is free if its holder is dead
			}
			if err := leaseutil.Pause(ctx, d, t.freed); err != nil {
				return nil, err
			}
			if left = m.held(ctx, q); left == 0 {
				break
			}
		}
	}
}

// held returns for how much longer a majority is not free, as far as is known, or 0. It
// looks without locks: asking for leases that others hold would keep them from being
// renewed.
func (m *Manager) held(ctx context.Context, q *request) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, m.options.timeout(q.ttl))
	defer cancel()
	lefts := make([]time.Duration, len(m.nodes))
	each(len(m.nodes), func(i int) error {
		info, err := m.nodes[i].Inspect(ctx, q.key)
		if err == nil && info.Held {
			lefts[i] = info.Remaining
		}
		return err // the next try finds out
	})
	slices.Sort(lefts)
	return lefts[m.majority-1]
}

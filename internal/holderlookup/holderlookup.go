// Package holderlookup bounds a look at who holds what somebody else wants: it must not hold up
// who waits.
package holderlookup

import (
	"context"
	"time"
)

// Limit is how long a look may take.
const Limit = 100 * time.Millisecond

// Now looks, under a context that ends after Limit at the latest.
func Now[T any](ctx context.Context, look func(context.Context) T) T {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return look(ctx)
}

// Later is one look in the middle of a wait. A nil one never looks.
type Later[T any] struct {
	timer  *time.Timer
	cancel context.CancelFunc
	done   chan struct{}
	seen   T
}

// After looks, once, when so much time has passed. End must be called when the wait is over.
func After[T any](ctx context.Context, d time.Duration, look func(context.Context) T) *Later[T] {
	ctx, cancel := context.WithCancel(ctx)
	l := &Later[T]{cancel: cancel, done: make(chan struct{})}
	l.timer = time.AfterFunc(d, func() {
		defer close(l.done)
		l.seen = Now(ctx, look)
	})
	return l
}

// End ends the look, or sees to it that it doesn't begin, and returns what it has shown.
func (l *Later[T]) End() (seen T) {
	if l == nil {
		return seen
	}
	if l.timer.Stop() {
		close(l.done)
	}
	l.cancel()
	<-l.done
	return l.seen
}

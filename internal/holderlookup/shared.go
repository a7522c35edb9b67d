package holderlookup

import (
	"context"
	"sync"
)

// Shared lets those who look at the same thing at the same time share one look, so that
// hundreds of waiters send one statement and not one each. The zero value is ready.
type Shared[K comparable, T any] struct {
	mu      sync.Mutex
	flights map[K]*flight[T]
}

// flight is a look that is under way.
type flight[T any] struct {
	left int // how many wait for it
	end  context.CancelFunc
	done chan struct{}
	seen T
}

// Now looks at what, or waits for the look at it that is under way. It returns with the
// caller's context, then without a result, and after Limit at the latest. The look has the
// values of the first context, and ends with the last of the contexts: nothing of it is left
// when the last caller returns.
func (s *Shared[K, T]) Now(ctx context.Context, what K, look func(context.Context) T) T {
	return Now(ctx, func(ctx context.Context) (seen T) {
		f := s.join(ctx, what, look)
		select {
		case <-f.done:
			return f.seen
		case <-ctx.Done():
		}
		if s.leave(what, f) {
			<-f.done
			return f.seen // it may have ended at the same moment
		}
		return seen
	})
}

// join finds the look that is under way, or begins one.
func (s *Shared[K, T]) join(ctx context.Context, what K, look func(context.Context) T) *flight[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[what]; f != nil {
		f.left++
		return f
	}
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight[T]{left: 1, end: end, done: make(chan struct{})}
	if s.flights == nil {
		s.flights = make(map[K]*flight[T])
	}
	s.flights[what] = f
	go func() {
		defer close(f.done)
		defer end()
		f.seen = Now(ctx, look)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(what, f)
	}()
	return f
}

// leave ends the look if nobody else waits for it. Whoever comes next begins its own.
func (s *Shared[K, T]) leave(what K, f *flight[T]) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.left--; f.left > 0 {
		return false
	}
	s.forget(what, f)
	f.end()
	return true
}

func (s *Shared[K, T]) forget(what K, f *flight[T]) {
	if s.flights[what] == f {
		delete(s.flights, what)
	}
}

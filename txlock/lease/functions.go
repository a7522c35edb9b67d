package lease

import (
	"context"
	"errors"
	"sync"

	"github.com/dca00107/lockstep/internal/whoami"
)

// functions are those of Do and its like, of terms and of jobs that run at the moment, which Close waits for.
type functions struct {
	running map[*Lease]uintptr // the goroutine of each
	none    chan struct{}      // made by Close: closed when the last one has returned
}

// errWithin is the error of a Close that would wait for its caller.
var errWithin = errors.New("lease: Close was called by a function that it waits for, of Do, a term or a job: call it when that has returned")

// insideOf is the key of the contexts of functions that a manager runs.
type insideOf struct{ m *Manager }

func (m *Manager) isInside(ctx context.Context) bool { return ctx.Value(insideOf{m}) != nil }

// works notes that this goroutine calls a function under a lease of the manager. Close releases
// the lease only when left was called. The function's context, made of the lease's, ends when
// Close is called. After Close works returns ErrClosed: the lease may have been released.
func (m *Manager) works(ctx context.Context, l *Lease) (working context.Context, left func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	working, end := m.untilClosed(context.WithValue(ctx, insideOf{m}, true))
	if m.functions.running == nil {
		m.functions.running = make(map[*Lease]uintptr)
	}
	m.functions.running[l] = whoami.Goroutine()
	l.record.inside = true
	return working, sync.OnceFunc(func() {
		end()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.functions.running, l)
		if m.closed && len(m.functions.running) == 0 {
			close(m.functions.none)
		}
	}), nil
}

// calledWithin reports whether a function that the manager runs has called: by its goroutine,
// or with its context. The caller holds Manager.mu.
func (m *Manager) calledWithin(ctx context.Context) bool {
	if m.isInside(ctx) {
		return true
	}
	for _, goroutine := range m.functions.running {
		if goroutine == whoami.Goroutine() {
			return true
		}
	}
	return false
}

package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/dca00107/lockstep/internal/procname"
)

// functions are those of Do and its like, of terms and of jobs that run at the moment, which Close waits for.
type functions struct {
	running map[*function]struct{}
	none    chan struct{} // made by Close: closed when the last one has returned
}

// function is one of them.
type function struct {
	goroutine uintptr
	outer     *function // of the context that it was called with, or nil
	returned  atomic.Bool
}

// errWithin is the error of a Close that would wait for its caller.
var errWithin = errors.New("lease: Close was called by a function that it waits for, of Do, a term or a job: call it when that has returned")

// insideOf is the key of the contexts of functions that a manager runs. The value is a *function.
type insideOf struct{ m *Manager }

// isInside reports whether the context is one of a function that the manager still runs.
func (m *Manager) isInside(ctx context.Context) bool {
	f, _ := ctx.Value(insideOf{m}).(*function)
	for f != nil && f.returned.Load() {
		f = f.outer
	}
	return f != nil
}

// works notes that this goroutine calls a function under a lease of the manager. Close releases
// the lease only when left was called. The function's context, made of the lease's, ends when
// Close is called. After Close works returns ErrClosed: the lease may have been released.
func (m *Manager) works(ctx context.Context, l *Lease) (working context.Context, left func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ErrClosed
	}
	f := &function{goroutine: procname.Goroutine()}
	f.outer, _ = ctx.Value(insideOf{m}).(*function)
	working, end := m.untilClosed(context.WithValue(ctx, insideOf{m}, f))
	if m.functions.running == nil {
		m.functions.running = make(map[*function]struct{})
	}
	m.functions.running[f] = struct{}{}
	l.record.inside = true
	return working, sync.OnceFunc(func() {
		end()
		f.returned.Store(true)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.functions.running, f)
		if m.closed && len(m.functions.running) == 0 {
			close(m.functions.none)
		}
	}), nil
}

// under notes that a function which the manager runs has acquired the lease.
func (m *Manager) under(l *Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.record.inside = true
}

// calledWithin reports whether a function that the manager runs has called: by its goroutine,
// or with its context. The caller holds Manager.mu.
func (m *Manager) calledWithin(ctx context.Context) bool {
	if m.isInside(ctx) {
		return true
	}
	for f := range m.functions.running {
		if f.goroutine == procname.Goroutine() {
			return true
		}
	}
	return false
}

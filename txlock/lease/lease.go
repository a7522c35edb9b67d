package lease

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
)

// A Lease is a handle of a lease. Each Acquire returns a handle of its own, also to an owner that
// re-enters; the lease is released with the last of them. The methods of a Lease may be called
// from any goroutine.
//
// If the program drops a handle without Release, the manager notices at the next renewal after the
// handle became garbage, and reports it to the txlock.Observer. If it was the last handle, the
// lease is no longer renewed and ends after its TTL. A handle counts as used while the program can
// reach it, while a context of Lease.Context has not ended, and, if Done or ReleaseRequested was
// called, as long as the lease lasts, because the program may wait only for that channel.
type Lease struct{ *handle }

// Key returns the key of the lease.
func (l *Lease) Key() txlock.Key { return l.record.key }

// Token returns the fencing token. It increases with every grant of the key, even across restarts
// of the server, deleted rows and changes of the clock, so a system outside of the database can
// refuse a stale holder by its lower token. An owner that re-enters has the same token.
func (l *Lease) Token() uint64 { return l.record.token.Load() }

// Owner returns the name of the owner: see WithOwner.
func (l *Lease) Owner() string { return l.record.owner }

// Err returns nil while the lease is certainly held, txlock.ErrLost with the cause after it was
// lost, and txlock.ErrNotHeld after Release. It compares the clock at every call, and reports the
// loss before the server grants the lease to another holder, unless the server's clock was set
// forward. The lease may be lost between a call and the write that follows; only Guard protects
// that write.
func (l *Lease) Err() error {
	l.record.mu.Lock()
	over := l.over
	l.record.mu.Unlock()
	if over != nil {
		return over
	}
	return l.record.err()
}

// Valid reports whether Err returns nil.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Done returns a channel that is closed when the lease is lost or released. A timer
// closes it, which may be a little late; Err is never late.
func (l *Lease) Done() <-chan struct{} {
	l.record.mu.Lock()
	defer l.record.mu.Unlock()
	l.keep(l)
	if l.done == nil {
		l.done = make(chan struct{})
		if l.over != nil {
			close(l.done)
		}
	}
	return l.done
}

// Context returns a context that ends when the lease is lost or released, with the error of Err as
// its cause (context.Cause). The context also carries the lease: an Acquire of the same key under
// it re-enters the lease while it is held, and an Acquire of another key has an owner of its own.
// The returned function cancels the context; call it when the work is done.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancelCause(leaseutil.WithLease(ctx, l))
	l.record.mu.Lock()
	defer l.record.mu.Unlock()
	if l.over != nil {
		cancel(l.over)
		return working, func() {}
	}
	if l.contexts == nil {
		l.contexts = make(map[context.Context]context.CancelCauseFunc, 1)
	}
	l.contexts[working] = cancel
	return working, func() {
		cancel(nil)
		l.record.mu.Lock()
		defer l.record.mu.Unlock()
		delete(l.contexts, working)
	}
}

// Remaining returns how much longer the lease is held if it isn't renewed.
func (l *Lease) Remaining() time.Duration {
	if l.Err() != nil {
		return 0
	}
	return max(0, l.record.left())
}

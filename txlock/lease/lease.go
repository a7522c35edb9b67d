// Package lease takes named locks that outlive transactions, on the database that
// a program already has. A lease has an owner, a time to live and a fencing token. It
// is renewed while its holder lives and is free one time to live after the holder
// has died.
//
//	m, err := lease.NewManager(db)
//	err = m.Do(ctx, key, func(ctx context.Context, l *lease.Lease) error {
//		...
//	})
//
// A holder that was paused may not know for a moment that its lease is over. What
// must not be overtaken goes into a transaction that calls Guard, which can be
// committed only while the lease is held.
package lease

import (
	"context"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
)

// Lease is one hold on a lease. Each Acquire gives a handle of its own, also to an
// owner that enters again; the lease is given back with the release of the last.
// Its methods may be called from any goroutine.
type Lease struct {
	record *record
	again  bool // the owner had a handle before

	// For the fields below record.mu.
	released bool
	done     chan struct{} // made by Done
	over     error         // why it has ended
	contexts map[*context.CancelCauseFunc]context.CancelCauseFunc
}

// Key returns what is locked.
func (l *Lease) Key() txlock.Key { return l.record.key }

// Token returns the fencing token: a number that rises with every grant of the
// key to another owner, or after a gap, whatever becomes of server, rows or
// clock, so that a system outside of the database can refuse who comes late with a
// lower one. An owner that enters again has the same token.
func (l *Lease) Token() uint64 { return l.record.token.Load() }

// Owner returns the name of the owner: see WithOwner.
func (l *Lease) Owner() string { return l.record.owner }

// Err returns nil while the lease is held for certain, txlock.ErrLost with the
// cause when it was lost, and txlock.ErrNotHeld after Release. It compares the
// clock at every call, and says so before the server lets anybody else in, provided
// that the server's clock was not set forward. Between a call and a write that
// follows only Guard protects.
func (l *Lease) Err() error {
	l.record.mu.Lock()
	over := l.over
	l.record.mu.Unlock()
	if over != nil {
		return over
	}
	return l.record.err()
}

// Valid tells whether Err is nil.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Done returns a channel that is closed when the lease is lost or released. It
// follows the clock within the delay of a timer; Err doesn't wait for that.
func (l *Lease) Done() <-chan struct{} {
	l.record.mu.Lock()
	defer l.record.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.over != nil {
			close(l.done)
		}
	}
	return l.done
}

// Context returns a context that ends when the lease is lost or released, with
// what Err says as its cause (context.Cause), and that carries the lease: an Acquire
// of the same key under it enters again while it is held, one of another key doesn't
// know of it. The function ends it earlier; call it when the work is done, as that of
// context.WithCancel.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancelCause(underlease.WithLease(ctx, l))
	l.record.mu.Lock()
	defer l.record.mu.Unlock()
	if l.over != nil {
		cancel(l.over)
		return working, func() {}
	}
	if l.contexts == nil {
		l.contexts = make(map[*context.CancelCauseFunc]context.CancelCauseFunc, 1)
	}
	l.contexts[&cancel] = cancel
	return working, func() {
		cancel(nil)
		l.record.mu.Lock()
		defer l.record.mu.Unlock()
		delete(l.contexts, &cancel)
	}
}

// end tells who watches the handle that it is over, under record.mu.
func (l *Lease) end(why error) {
	if l.over != nil {
		return
	}
	l.over = why
	if l.done != nil {
		close(l.done)
	}
	for _, cancel := range l.contexts {
		cancel(why)
	}
	l.contexts = nil
}

// Left returns for how much longer the lease is held if it isn't renewed.
func (l *Lease) Left() time.Duration {
	if l.Err() != nil {
		return 0
	}
	return max(0, l.record.left())
}

package locktest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Lease stands in for lease.Lease.
type Lease struct {
	holding *holding

	// Under Memory.mu.
	over     error // why it has ended
	done     chan struct{}
	contexts []context.CancelCauseFunc
	guards   int
}

// Key is that of lease.Lease.
func (l *Lease) Key() txlock.Key { return l.holding.key }

// Token is that of lease.Lease.
func (l *Lease) Token() uint64 { return l.holding.token }

// Owner is that of lease.Lease.
func (l *Lease) Owner() string { return l.holding.owner }

// Shared is that of lease.Lease.
func (l *Lease) Shared() bool { return l.holding.shared }

// Err is that of lease.Lease.
func (l *Lease) Err() error {
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	l.holding.check()
	return l.over
}

// Valid is that of lease.Lease.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Done is that of lease.Lease.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Left is that of lease.Lease.
func (l *Lease) Left() time.Duration {
	if l.Err() != nil {
		return 0
	}
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	return max(0, l.holding.until.Sub(l.memory().clock.now()))
}

// Context is that of lease.Lease.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancelCause(underlease.WithLease(ctx, l))
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	if l.holding.check(); l.over != nil {
		cancel(l.over)
	} else {
		l.contexts = append(l.contexts, cancel)
	}
	return working, func() { cancel(nil) }
}

// Renew is that of lease.Lease.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("renew lease %q: %w", l.Key(), err)
	}
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	if l.over == nil {
		l.holding.extend()
	}
	return l.over
}

// Guard returns what that of lease.Lease returns for a lease that is held or lost at this
// moment, and counts: see Guards. Of the transaction it only sees that there is one; it
// keeps nobody from taking the lease over before the commit, which takes a database.
func (l *Lease) Guard(ctx context.Context, tx txlock.Tx, _ ...txlock.JoinOption) error {
	if err := l.Err(); err != nil {
		return err
	}
	if tx == nil {
		return fmt.Errorf("guard lease %q: %w: the transaction is nil", l.Key(), txlock.ErrNoTransaction)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("guard lease %q: %w", l.Key(), err)
	}
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	if l.over == nil {
		l.guards++
	}
	return l.over
}

// Guards returns how often Guard has succeeded.
func (l *Lease) Guards() int {
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	return l.guards
}

// Downgrade is that of lease.Lease.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	if l.Shared() {
		return nil, fmt.Errorf("%w: Downgrade of a lease that is shared already", txlock.ErrInvalidOption)
	}
	h := l.holding
	w, err := h.by.request(lease.WithOwner(ctx, h.owner), h.key, shared, []lease.AcquireOption{lease.TTL(h.terms.TTL)})
	if err != nil {
		return nil, err
	}
	w.named = false // beside its own lease
	reader, _, err := w.ask(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("downgrade lease %q: %w", h.key, err)
	}
	return reader, l.Release(ctx)
}

// Release is that of lease.Lease.
func (l *Lease) Release(context.Context) error {
	l.memory().mu.Lock()
	defer l.memory().mu.Unlock()
	l.holding.check()
	return l.release(true)
}

func (l *Lease) memory() *Memory { return l.holding.by.memory }

// release ends the handle, and with the last one the lease, which else ends with its
// time: under Memory.mu as all below.
func (l *Lease) release(answered bool) error {
	h := l.holding
	if !slices.Contains(h.handles, l) {
		return nil // released before
	}
	h.handles = slices.DeleteFunc(h.handles, func(other *Lease) bool { return other == l })
	if h.lost != nil {
		return fmt.Errorf("%w: %w", txlock.ErrNotHeld, h.lost)
	}
	l.end(fmt.Errorf("lease %q, token %d: %w: it was released", h.key, h.token, txlock.ErrNotHeld))
	if len(h.handles) == 0 && answered {
		h.leave()
	}
	return nil
}

// end tells who watches the handle.
func (l *Lease) end(why error) {
	l.over = why
	close(l.done)
	for _, cancel := range l.contexts {
		cancel(why)
	}
}

// enter makes a handle.
func (h *holding) enter() *Lease {
	l := &Lease{holding: h, done: make(chan struct{})}
	h.handles = append(h.handles, l)
	return l
}

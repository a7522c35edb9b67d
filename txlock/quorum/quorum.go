package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Lease is a handle of a lease over several databases. It has the methods of lease.Lease,
// except Guard: see Node. They may be called from any goroutine.
type Lease struct {
	r    *record
	life context.Context // ends with the lease; the cause says why
	end  context.CancelCauseFunc

	released bool // guarded by record.mu
}

// Key returns what is locked.
func (l *Lease) Key() txlock.Key { return l.r.key }

// Token returns the fencing token. It increases with every grant of the key, whichever majority
// has granted it. The token of a node's own lease may differ. An owner that re-enters has the
// same token.
func (l *Lease) Token() uint64 { return l.r.token }

// Owner returns the name of the owner: see lease.WithOwner.
func (l *Lease) Owner() string { return l.r.owner }

// Err returns nil while a majority of the databases is certainly held, txlock.ErrLost with the
// cause of each node after the lease was lost, and txlock.ErrNotHeld after Release. It compares
// the clock at every call, as lease.Lease.Err does, and has the same limit: if one server's
// clock is set forward, another process may get the lease.
func (l *Lease) Err() error {
	l.r.check()
	return context.Cause(l.life)
}

// Valid reports whether Err is nil.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Done returns a channel that is closed when the lease is lost or released. A timer closes it,
// which may be a little late, and up to a quarter of the TTL late if the lease is lost before
// its TTL has passed; Err is never late.
func (l *Lease) Done() <-chan struct{} { return l.life.Done() }

// Context returns a context that ends when the lease is lost or released, with the error
// of Err as its cause (context.Cause). The context also carries the lease: an Acquire of
// the same key under it, by this manager, re-enters the lease while it is held. An
// Acquire of another key, or by the manager of one database, has an owner of its own. The
// returned function ends the context earlier; call it when the work is done.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancelCause(leaseutil.WithLease(ctx, l))
	if err := l.Err(); err != nil {
		cancel(err)
		return working, func() {}
	}
	stop := context.AfterFunc(l.life, func() { cancel(context.Cause(l.life)) })
	return working, func() {
		stop()
		cancel(nil)
	}
}

// Remaining returns for how much longer a majority of the databases is held if it isn't
// renewed.
func (l *Lease) Remaining() time.Duration {
	if l.Err() != nil {
		return 0
	}
	return l.r.left()
}

// Node returns the lease in one database, by the index of its manager in the slice given
// to New, to guard a transaction there. What is written into that database under its
// Guard can't be overtaken in that database. At the same time, another holder may have a
// majority without that database; it can't guard there then. Leave the renewal and the
// release of the node's lease to this lease.
//
// It returns the error of Err, txlock.ErrNotHeld if this database is not among those that
// are held at the moment, which the manager tries to mend in the background, and
// txlock.ErrInvalidOption for an index out of range.
func (l *Lease) Node(index int) (*lease.Lease, error) {
	if index < 0 || index >= len(l.r.m.nodes) {
		return nil, fmt.Errorf("%w: Node(%d): the databases are numbered from 0 to %d", txlock.ErrInvalidOption, index, len(l.r.m.nodes)-1)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	node, why := l.r.node(index)
	if node != nil {
		return node, nil
	}
	return nil, fmt.Errorf("quorum lease %q, node %d: %w there at the moment: %w", l.r.key, index, txlock.ErrNotHeld, why)
}

// Renew extends the lease now, before the next renewals of the nodes' managers. It waits
// for each database as long as NodeTimeout says. It returns txlock.ErrLost or ErrNotHeld
// if the lease is not held any more, and ErrNoQuorum with the errors of the nodes if
// fewer than a majority were renewed: then the lease is held for as long as before.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	r := l.r
	limited, cancel := context.WithTimeout(ctx, r.m.options.timeout(r.ttl))
	defer cancel()
	errs := each(len(r.m.nodes), func(i int) error {
		node, why := r.node(i)
		if node == nil {
			return why
		}
		return node.Renew(limited)
	})
	switch err := l.Err(); {
	case err != nil:
		return err
	case done(errs) >= r.m.majority:
		return nil
	}
	return errors.Join(ctx.Err(), fmt.Errorf("renew quorum lease %q: %w", r.key, &majorityError{txlock.ErrNoQuorum, r.m.majority, errs}))
}

// Release releases this handle; the last handle of an owner releases the lease in all
// databases at once. Releasing again does nothing. Release works under a context that has
// ended already; if the context ends meanwhile, Release returns. A database that doesn't
// answer within NodeTimeout is asked again in the background, until its lease has
// expired.
//
// It returns txlock.ErrNotHeld with the cause if the lease had been lost, and
// txlock.ErrNoQuorum with the errors of the nodes if fewer than a majority have answered:
// then the lease ends after its TTL at the latest.
func (l *Lease) Release(ctx context.Context) error {
	if ctx == nil {
		return errors.New("quorum: Release needs a context, got nil")
	}
	nodes, last, lost := l.r.leave(l)
	if lost != nil {
		return fmt.Errorf("%w: %w", txlock.ErrNotHeld, lost)
	}
	if !last {
		return nil
	}
	began := time.Now()
	errs := l.r.m.releaseNodes(ctx, nodes, l.r.ttl)
	late := time.NewTimer(time.Since(began) + grace)
	defer late.Stop()
	select { // wait for nodes that have not answered the acquire: they release it too
	case <-l.r.asked:
	case <-late.C:
	case <-ctx.Done():
	}
	l.r.m.freed(l.r.key)
	if done(errs) >= l.r.m.majority {
		return nil
	}
	err := &majorityError{txlock.ErrNoQuorum, l.r.m.majority, errs}
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, lease.ErrGuarded) }) {
		err.sentinel = lease.ErrGuarded
	}
	return fmt.Errorf("release quorum lease %q: %w", l.r.key, err)
}

// done counts the errors that are nil.
func done(errs []error) (n int) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}

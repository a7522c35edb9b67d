package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Lease is one hold on a lease over several databases. It has the methods of
// lease.Lease, but for Guard: see Node. They may be called from any goroutine.
type Lease struct {
	r    *record
	life context.Context // ends with the lease, with why as its cause
	end  context.CancelCauseFunc

	released bool // under record.mu
}

// Key returns what is locked.
func (l *Lease) Key() txlock.Key { return l.r.key }

// Token returns the fencing token: a number that rises with every grant of the key,
// whichever majority has granted it. That of a node's own lease may differ. An owner
// that enters again has the same token.
func (l *Lease) Token() uint64 { return l.r.token }

// Owner returns the name of the owner: see lease.WithOwner.
func (l *Lease) Owner() string { return l.r.owner }

// Err returns nil while a majority of the databases is held for certain,
// txlock.ErrLost with the cause of each node when it was lost, and txlock.ErrNotHeld
// after Release. It compares the clock at every call, as that of lease.Lease does,
// and has the same limits: one server clock that is set forward lets somebody else in.
func (l *Lease) Err() error {
	l.r.check()
	return context.Cause(l.life)
}

// Valid tells whether Err is nil.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Done returns a channel that is closed when the lease is lost or released. It
// follows the clock within the delay of a timer, and a loss before its time within a
// quarter of the TTL; Err doesn't wait for that.
func (l *Lease) Done() <-chan struct{} { return l.life.Done() }

// Context returns a context that ends when the lease is lost or released, with
// what Err says as its cause (context.Cause), and that carries the lease: an Acquire
// of the same key under it, of this manager, enters again while it is held; one of
// another key, or of the manager of one database, doesn't know of it. The function ends
// it earlier; call it when the work is done.
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancelCause(underlease.WithLease(ctx, l))
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

// Left returns for how much longer a majority of the databases is held if it isn't
// renewed.
func (l *Lease) Left() time.Duration {
	if l.Err() != nil {
		return 0
	}
	return l.r.left()
}

// Node returns the lease in the database of a manager, by its index in the slice
// that New was given, to guard a transaction there: what is written into that
// database under its Guard alone can't be overtaken there. The lease of another
// holder may be on a majority without this database at that time; it can't guard here
// then. Leave the renewal and the release of the node's lease to this one.
//
// It returns what Err does, txlock.ErrNotHeld where the lease holds others than this
// database at the moment, which it tries to mend behind the calls, and
// txlock.ErrInvalidOption for an index out of its range.
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

// Renew extends the lease now, in place of the next renewals of the nodes' managers.
// It waits for each database as long as NodeTimeout says. It returns txlock.ErrLost or
// ErrNotHeld where the lease is not held any more, and ErrNoQuorum with the errors of
// the nodes where fewer than a majority were renewed: the lease is held for as long as
// before then.
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

// Release ends this hold; the last of an owner gives the lease back in all databases
// at once. Releasing again does nothing. It is sent even where the context has ended
// already; a context that ends meanwhile ends the call. What a database doesn't answer
// within NodeTimeout goes on behind the call until its lease has expired.
//
// It returns txlock.ErrNotHeld, with the reason, for a lease that had been lost, and
// txlock.ErrNoQuorum with the errors of the nodes where fewer than a majority have
// answered: the lease ends with its time to live then, if not before.
func (l *Lease) Release(ctx context.Context) error {
	nodes, last, lost := l.r.leave(l)
	if lost != nil {
		return fmt.Errorf("%w: %w", txlock.ErrNotHeld, lost)
	}
	if !last {
		return nil
	}
	began := time.Now()
	errs := l.r.m.giveBack(ctx, nodes, l.r.ttl)
	late := time.NewTimer(time.Since(began) + grace)
	defer late.Stop()
	select { // of nodes that have not answered the acquire: it is given back there too
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

// done is how many errors are none.
func done(errs []error) (n int) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}

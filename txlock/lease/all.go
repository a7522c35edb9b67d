package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dca00107/lockstep/txlock"
)

// Leases are several leases that were acquired together, each with its own token and handle. Its
// methods may be called from any goroutine.
type Leases struct {
	all []*Lease // in the order of their keys
}

// AcquireAll acquires the leases of all keys, or none of them. It acquires one after the other,
// with Acquire and in the same order in every program, so that calls of AcquireAll can't deadlock;
// leases that a program holds already are not part of that order. While it waits for a key, the
// leases that it has are renewed. A key that is given twice is acquired once. The options apply to
// each lease, but WaitAtMost limits the whole wait.
//
// It returns the errors of Acquire, txlock.ErrInvalidKey if no key is given, and txlock.ErrLost if
// a lease is lost while it waits for another. If it returns an error, it releases what it had
// acquired.
func (m *Manager) AcquireAll(ctx context.Context, keys []txlock.Key, opts ...AcquireOption) (*Leases, error) {
	return m.acquireAll(ctx, keys, opts, m.Acquire)
}

// TryAcquireAll is AcquireAll without waiting: if another owner holds one of the leases, it
// returns txlock.ErrBusy, as TryAcquire does.
func (m *Manager) TryAcquireAll(ctx context.Context, keys []txlock.Key, opts ...AcquireOption) (*Leases, error) {
	return m.acquireAll(ctx, keys, opts, m.TryAcquire)
}

// acquireAll acquires each lease in the given way.
func (m *Manager) acquireAll(ctx context.Context, keys []txlock.Key, opts []AcquireOption, acquire func(context.Context, txlock.Key, ...AcquireOption) (*Lease, error)) (granted *Leases, err error) {
	keys, err = inOrder(keys)
	if err != nil {
		return nil, err
	}
	t, err := m.terms(opts)
	if err != nil {
		return nil, err
	}
	until := m.store.Now().Add(t.atMost)
	opts = append(slices.Clip(opts), term(func(of *terms) {
		of.atLeast = 0 // what is released because another lease is missing is free at once
		if of.atMost > 0 {
			of.atMost = max(m.store.Now().Until(until), 1)
		}
	}))
	leases := &Leases{all: make([]*Lease, 0, len(keys))}
	defer func() {
		if granted == nil { // or an observer has panicked
			err = errors.Join(err, leases.drop(ctx))
		}
	}()
	holding := ctx // ends when a lease is lost
	for _, key := range keys {
		l, err := acquire(holding, key, opts...)
		if err != nil {
			return nil, m.whyNotAll(ctx, leases, err)
		}
		leases.all = append(leases.all, l)
		var stop context.CancelFunc
		holding, stop = l.Context(holding)
		defer stop()
	}
	if err := leases.Err(); err != nil {
		return nil, m.whyNotAll(ctx, leases, err)
	}
	for _, l := range leases.all {
		l.record.holdAtLeast(t.atLeast)
	}
	return leases, nil
}

// inOrder returns the keys in the order in which they are acquired, each once.
func inOrder(keys []txlock.Key) ([]txlock.Key, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: no key was given", txlock.ErrInvalidKey)
	}
	for _, key := range keys {
		if err := key.Validate(); err != nil {
			return nil, err
		}
	}
	keys = slices.SortedFunc(slices.Values(keys), func(a, b txlock.Key) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(keys, func(a, b txlock.Key) bool { return a.String() == b.String() }), nil
}

// whyNotAll is the error of a call that has not got all leases: that of the last Acquire,
// unless what has ended it is the loss of a lease, or Close, which has released them.
func (m *Manager) whyNotAll(ctx context.Context, leases *Leases, err error) error {
	lost := leases.Err()
	switch {
	case ctx.Err() != nil || lost == nil:
		return err
	case errors.Is(lost, txlock.ErrLost):
		return fmt.Errorf("acquire all leases: %w", lost)
	}
	return cmp.Or(m.open(), err)
}

// drop releases what was acquired for a call that fails.
func (a *Leases) drop(ctx context.Context) error {
	var errs []error
	for _, l := range a.all {
		if err := l.record.m.releaseUnwanted(ctx, l); !errors.Is(err, txlock.ErrNotHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// All returns the leases, in the order of the names of their keys.
func (a *Leases) All() []*Lease { return slices.Clone(a.all) }

// Get returns the lease of a key, or nil for a key that is not among them.
func (a *Leases) Get(key txlock.Key) *Lease {
	for _, l := range a.all {
		if l.Key().String() == key.String() {
			return l
		}
	}
	return nil
}

// Err returns nil while all leases are certainly held, and otherwise the Err of one that
// isn't.
func (a *Leases) Err() error {
	for _, l := range a.all {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Context returns a context that ends when any of the leases is lost or released, with the
// error of its Err as the cause. It carries all of them, as that of Lease.Context does.
// Call the returned function when the work is done.
func (a *Leases) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	stops := make([]context.CancelFunc, len(a.all))
	for i, l := range a.all {
		ctx, stops[i] = l.Context(ctx)
	}
	return ctx, func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}
}

// Guard makes all leases a condition of a transaction, as Lease.Guard does for each: the
// transaction can be committed only while all of them are held. It locks their rows in a fixed
// order. It returns the first error of a Lease.Guard: roll the transaction back then.
func (a *Leases) Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error {
	for _, l := range a.all {
		if err := l.Guard(ctx, tx, options...); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all leases, as Lease.Release does for each, even if one fails, and returns the
// errors.
func (a *Leases) Release(ctx context.Context) error {
	errs := make([]error, len(a.all))
	for i, l := range a.all {
		errs[i] = l.Release(ctx)
	}
	return errors.Join(errs...)
}

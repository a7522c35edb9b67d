package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
)

// The bounds of a time to live.
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 30 * 24 * time.Hour
)

// ManagerOption is an option of NewManager.
type ManagerOption interface{ toManager(*options) }

// AcquireOption is an option of Acquire and its likes.
type AcquireOption interface{ toAcquire(*terms) }

// Option is an option of NewManager for all leases of the manager, and of Acquire
// and its likes for one.
type Option interface {
	ManagerOption
	AcquireOption
}

// terms are what one lease is asked for.
type terms struct {
	ttl      time.Duration
	lifetime time.Duration // 0: no limit
	atMost   time.Duration // 0: as long as the context lives
	fair     bool
}

// options are those of a manager.
type options struct {
	terms
	renewEvery time.Duration // 0: a third of the TTL
	janitor    time.Duration // 0: never
	retention  time.Duration
	minPoll    time.Duration
	maxPoll    time.Duration
	observer   txlock.Observer
	badOption  error
}

// defaults are the options that are not given.
var defaults = options{
	terms:     terms{ttl: 30 * time.Second},
	janitor:   time.Minute,
	retention: 7 * 24 * time.Hour,
	minPoll:   5 * time.Millisecond,
	maxPoll:   250 * time.Millisecond,
}

type term func(*terms)

func (f term) toManager(o *options) { f(&o.terms) }
func (f term) toAcquire(t *terms)   { f(t) }

type setting func(*options)

func (f setting) toManager(o *options) { f(o) }

// TTL is the time to live of a lease: how long it stays with a holder that is dead
// or cut off. A holder that is alive renews it. It lies between MinTTL and MaxTTL.
// The default is 30 seconds.
func TTL(d time.Duration) Option { return term(func(t *terms) { t.ttl = d }) }

// MaxLifetime ends a lease that long after it was acquired, renewed or not: the
// holder is told ErrLost. It is at least the TTL. The default is no limit.
func MaxLifetime(d time.Duration) Option { return term(func(t *terms) { t.lifetime = d }) }

// WaitAtMost bounds how long Acquire and Do wait, after which they return
// txlock.ErrWaitTimeout, which says what was in the way and names the owner who was
// seen to hold the lease. The first try is outside of the limit: a lease that is free is
// granted however small that is, and however slow the server. It must be positive:
// TryAcquire doesn't wait. The default is as long as the context lives.
func WaitAtMost(d time.Duration) Option {
	return term(func(t *terms) {
		t.atMost = d
		if d <= 0 {
			t.atMost = -1
		}
	})
}

// Fair makes waiting a queue over all goroutines of all processes, first come, first
// served among those that use it: they queue for a row of the key in the server, and only
// the first looks whether the lease is free. A newcomer's Acquire or TryAcquire doesn't
// pass who waits there; those of managers without Fair, and AcquireTx, do. On a
// multi-primary cluster the queue is that of one node.
//
// Each who waits keeps a connection, up to 16 for a key in one manager and half of
// MaxOpenConns in all, as far as one is left to the program besides those to renew on: in
// a plain pool of 2 there is no place. Who comes when these are taken waits for a place behind those of its
// own manager that have one, and where none has, as Poll does: others may come before it,
// and Event.Fair is false. A process that is stopped, or whose host is gone, delays who
// comes behind it by 2 seconds for each of its places. The default is Poll.
func Fair() Option { return term(func(t *terms) { t.fair = true }) }

// RenewEvery is the interval of renewals, at most half of the TTL. The default is
// a third of each lease's TTL.
func RenewEvery(d time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.renewEvery = d
		if d <= 0 {
			o.badOption = fmt.Errorf("%w: RenewEvery(%v): the interval must be positive", txlock.ErrInvalidOption, d)
		}
	})
}

// Janitor sets how often rows that were not used for the retention are removed:
// once per interval among all managers of the database that have the same one. An
// interval of 0 leaves it to CleanNow. The default is every minute and 7 days.
func Janitor(every, retention time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.janitor, o.retention = every, retention
		if every < 0 || every > 0 && every < MinTTL || every > MaxTTL || retention < time.Second {
			o.badOption = fmt.Errorf("%w: Janitor(%v, %v): the interval must be 0 or from %v to %v, the retention at least a second", txlock.ErrInvalidOption, every, retention, MinTTL, MaxTTL)
		}
	})
}

// Poll sets how often the first waiter of a key in this process looks whether the
// lease is free: a jittered pause that grows from least to most. No connection is
// held meanwhile, and a release in the same process is seen at once. The default
// is 5 ms to 250 ms.
func Poll(least, most time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.minPoll, o.maxPoll = least, most
		if least <= 0 || most < least {
			o.badOption = fmt.Errorf("%w: Poll(%v, %v): the pauses must be positive and the second no shorter than the first", txlock.ErrInvalidOption, least, most)
		}
	})
}

// Observe sets the observer of the manager's leases. The default is none.
func Observe(observer txlock.Observer) ManagerOption {
	return setting(func(o *options) { o.observer = observer })
}

// TermsOf returns the terms that the options of an Acquire ask for, for what stands in
// for a Manager, in tests for example. It returns txlock.ErrInvalidOption for an option
// out of its range.
func TermsOf(opts ...AcquireOption) (nodes.Terms, error) {
	t := defaults.terms
	for _, option := range opts {
		option.toAcquire(&t)
	}
	return nodes.Terms{TTL: t.ttl, MaxLifetime: t.lifetime, WaitAtMost: t.atMost, Fair: t.fair}, t.check()
}

// check returns what is wrong with the options of a manager.
func (o *options) check() error {
	if o.badOption != nil {
		return o.badOption
	}
	if err := o.terms.check(); err != nil {
		return err
	}
	if o.renewEvery > o.ttl/2 {
		return fmt.Errorf("%w: RenewEvery(%v) is more than half of the TTL of %v", txlock.ErrInvalidOption, o.renewEvery, o.ttl)
	}
	return nil
}

// check returns what is wrong with the terms of a lease.
func (t *terms) check() error {
	switch {
	case t.ttl < MinTTL || t.ttl > MaxTTL:
		return fmt.Errorf("%w: TTL(%v): it must be from %v to %v", txlock.ErrInvalidOption, t.ttl, MinTTL, MaxTTL)
	case t.lifetime != 0 && t.lifetime < t.ttl:
		return fmt.Errorf("%w: MaxLifetime(%v) is less than the TTL of %v", txlock.ErrInvalidOption, t.lifetime, t.ttl)
	case t.atMost < 0:
		return fmt.Errorf("%w: WaitAtMost: the limit must be positive, use TryAcquire to not wait at all", txlock.ErrInvalidOption)
	}
	return nil
}

// validity is for how long from before a request a lease of that TTL counts: a
// little less than on the server, for clocks that run apart by 1 % and the time
// that noticing takes.
func validity(ttl time.Duration) time.Duration { return ttl - ttl/100 - 2*time.Millisecond }

// WithOwner names the owner of the leases that are acquired under the context, whatever
// their keys. An owner that holds a lease enters it again: what is to be excluded by a
// lease must have another name, or none. The name must be unique to one process
// at a time: a second takes the lease over from the first, at once and with a higher
// token, as a program that was started again does from itself. It has 1 to 255 bytes;
// any other makes Acquire return txlock.ErrInvalidOption.
//
// The default is an owner of its own for each Acquire. The context of Do and of
// Lease.Context carries that on for the key of the lease, and as long as that is held:
// leases of other keys have owners of their own under it, so that goroutines exclude
// each other.
func WithOwner(ctx context.Context, owner string) context.Context {
	return underlease.WithName(ctx, owner)
}

// checkOwner returns what is wrong with a name that was given.
func checkOwner(name string) error {
	if name == "" || len(name) > maxOwner {
		return fmt.Errorf("%w: WithOwner: an owner has 1 to %d bytes, this one has %d", txlock.ErrInvalidOption, maxOwner, len(name))
	}
	return nil
}

const maxOwner = 255

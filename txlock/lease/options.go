package lease

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
)

// The bounds of a TTL.
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 30 * 24 * time.Hour
)

// ManagerOption is an option of NewManager.
type ManagerOption interface{ toManager(*options) }

// AcquireOption is an option of Acquire, TryAcquire, AcquireTx, AcquireShared, Do and the
// other methods that acquire a lease or a permit.
type AcquireOption interface{ toAcquire(*terms) }

// Option is an option of NewManager for all leases of the manager, or of one Acquire.
type Option interface {
	ManagerOption
	AcquireOption
}

// terms are what the options ask for a lease.
type terms struct {
	ttl      time.Duration
	lifetime time.Duration // 0: no limit
	atMost   time.Duration // 0: as long as the context lives
	atLeast  time.Duration // after the grant, in which a release doesn't free it; 0: none
	overtime time.Duration // of a transaction that guards a lease which is over
	fair     bool
	names    bool          // NameHolders
	slow     time.Duration // SlowWait; 0: never
	note     string
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

// defaults are the values of options that are not given.
var defaults = options{
	terms:     terms{ttl: 30 * time.Second, overtime: guardGrace, note: processNote},
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

// TTL sets the TTL of a lease: how long it stays held after its holder has died
// or was cut off. A holder that is alive renews it. It is from MinTTL to MaxTTL. The
// default is 30 seconds.
func TTL(d time.Duration) Option { return term(func(t *terms) { t.ttl = d }) }

// MaxLifetime ends a lease that long after it was acquired, even if it is renewed; the
// holder gets txlock.ErrLost. It is at least the TTL. The default is no limit.
func MaxLifetime(d time.Duration) Option { return term(func(t *terms) { t.lifetime = d }) }

// WaitAtMost bounds how long Acquire and Do wait. Then they return txlock.ErrWaitTimeout,
// whose text says what was in the way; if that was a holder who was seen, its
// txlock.HeldError names the owner. If the server has not answered, the text says that. The
// first try is outside of the limit: a free lease is granted however short the limit is, and
// however slow the server. The limit must be positive; use TryAcquire to not wait. The
// default is as long as the context lives.
func WaitAtMost(d time.Duration) Option {
	return term(func(t *terms) {
		t.atMost = d
		if d <= 0 {
			t.atMost = -1
		}
	})
}

// Fair makes one queue of the waiters of all processes, first come, first served among
// those that use Fair: they queue for a row of the key on the server, and only the first
// looks whether the lease is free. A new Acquire or TryAcquire doesn't pass the waiters
// of this queue; AcquireTx and the managers without Fair do. On a multi-primary cluster,
// each node has a queue of its own.
//
// Each waiter keeps a connection: up to 16 for a key in one manager, up to half of
// MaxOpenConns in all, and one always stays for the program besides those for renewals,
// so that a plain pool of 2 has no place for a waiter. A waiter that gets no connection
// waits behind those of its own manager that have one; if none has, it looks again and
// again as Poll says, others may pass it, and Event.Fair is false. A process that is
// stopped, or whose host is gone, delays the waiters behind it by 2 seconds for each of
// its places. The default is Poll.
func Fair() Option { return term(func(t *terms) { t.fair = true }) }

// WithLabel describes a holder or a waiter for people: Manager.List, Manager.Inspect and the
// operators' tools show the label, and so do errors that name the holder. It is valid UTF-8
// of at most 255 bytes. A lease that is re-entered keeps its label. The default is the name
// of the host and the number of the process: "web-3:4711".
func WithLabel(label string) Option { return term(func(t *terms) { t.note = label }) }

// NameHolders lets txlock.ErrBusy and txlock.ErrWaitTimeout name a holder by a
// *txlock.HeldError also if that takes one look more. Without it they name a holder only if
// the request has seen it: a wait has, by its own looks, and TryAcquire of a lease that a
// transaction guards at the moment. Readers and permits are not seen so, and a wait behind
// others in the queue of Fair has seen only who had it when it came.
//
// The look is an Inspect after the refusal. It takes at most 100 ms, ends with the context,
// and isn't made if the pool has no connection free. Of several readers or permits it names
// one. If it fails or finds nobody, the error is as without it. The default is not to look.
func NameHolders() Option { return term(func(t *terms) { t.names = true }) }

// SlowWait lets the observer be told for whom a wait was that took at least d, as
// txlock.Event.Held, also if that takes a look, as it does for readers and permits and behind
// others of a queue. When a wait has lasted so long, an Inspect looks once, under the limits
// that NameHolders has, without which nobody looks. The look ends with the wait at the latest.
// The default, and that of a d that is not positive, is not to look; whom a wait has seen
// itself the observer is told anyway.
func SlowWait(d time.Duration) Option { return term(func(t *terms) { t.slow = d }) }

// GuardGrace sets for how long a transaction that guards a lease may stay open after that
// lease has expired, by the server's clock, while this Acquire wants it: then its session
// is ended, as Lease.Guard says. With 0 that is so as soon as the lease is over. The time
// that a holder has from Guard to COMMIT before is at least two thirds of its TTL, as long
// as the server answers. ForceRelease waits for 5 seconds, whatever is set. The default is
// 5 seconds.
func GuardGrace(d time.Duration) Option { return term(func(t *terms) { t.overtime = d }) }

// RenewEvery sets the interval of renewals, at most half of the TTL. The default is a
// third of each lease's TTL.
func RenewEvery(d time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.renewEvery = d
		if d <= 0 {
			o.badOption = fmt.Errorf("%w: RenewEvery(%v): the interval must be positive", txlock.ErrInvalidOption, d)
		}
	})
}

// PurgeEvery sets how often the rows of leases that were not used for the retention are
// deleted. In each interval one manager of the database does it, if all have the same
// interval. With an interval of 0, only Manager.Purge deletes rows. The default is every minute and 7 days.
func PurgeEvery(every, retention time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.janitor, o.retention = every, retention
		if every < 0 || every > 0 && every < MinTTL || every > MaxTTL || retention < time.Second {
			o.badOption = fmt.Errorf("%w: Janitor(%v, %v): the interval must be 0 or from %v to %v, the retention at least a second", txlock.ErrInvalidOption, every, retention, MinTTL, MaxTTL)
		}
	})
}

// Poll sets how often the first waiter of a key in this process looks whether the lease
// is free: after a pause that grows from least to most, and is up to half as long again or
// half as short, at random. It holds no connection meanwhile. A release in the same process
// is seen at once. The default is 5 ms to 250 ms.
func Poll(least, most time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.minPoll, o.maxPoll = least, most
		if least <= 0 || most < least {
			o.badOption = fmt.Errorf("%w: Poll(%v, %v): the pauses must be positive and the second no shorter than the first", txlock.ErrInvalidOption, least, most)
		}
	})
}

// Observe sets the observer of the manager's leases; txlock.Observe sets that of the locks
// of transactions. One observer may be given to both. The default is none.
func Observe(observer txlock.Observer) ManagerOption {
	return setting(func(o *options) { o.observer = observer })
}

// check returns what is wrong with the options of a manager, or nil.
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

// check returns what is wrong with the terms of a lease, or nil.
func (t *terms) check() error {
	switch {
	case t.ttl < MinTTL || t.ttl > MaxTTL:
		return fmt.Errorf("%w: TTL(%v): it must be from %v to %v", txlock.ErrInvalidOption, t.ttl, MinTTL, MaxTTL)
	case t.lifetime != 0 && t.lifetime < t.ttl:
		return fmt.Errorf("%w: MaxLifetime(%v) is less than the TTL of %v", txlock.ErrInvalidOption, t.lifetime, t.ttl)
	case t.atMost < 0:
		return fmt.Errorf("%w: WaitAtMost: the limit must be positive, use TryAcquire to not wait at all", txlock.ErrInvalidOption)
	case t.overtime < 0:
		return fmt.Errorf("%w: GuardGrace(%v): it must not be negative", txlock.ErrInvalidOption, t.overtime)
	case t.atLeast < 0:
		return fmt.Errorf("%w: HoldAtLeast: the time must be positive and at most %v", txlock.ErrInvalidOption, MaxTTL)
	}
	return checkText("WithLabel: a label", t.note)
}

// validity is for how long a lease with that TTL counts, from before its request. It is a
// little less than on the server, because clocks may differ in speed by 1 % and noticing
// takes time.
func validity(ttl time.Duration) time.Duration { return ttl - ttl/100 - 2*time.Millisecond }

// WithOwner names the owner of the leases that are acquired under the context, whatever
// their keys. This name decides who re-enters a lease, while txlock.WithLabel is a note
// for people on transaction locks.
//
// An owner that holds a lease re-enters it, so what the lease must exclude needs another
// owner. The name must be unique to one process at a time: a second process with the same
// name takes the lease over from the first, at once and with a higher token, as a
// restarted program does from its predecessor. It has 1 to 255 bytes; any other makes
// Acquire return txlock.ErrInvalidOption.
//
// Without WithOwner, each Acquire has an owner of its own. The context of Do and of
// Lease.Context keeps that owner for the key of the lease while the lease is held. Leases
// of other keys have other owners under that context, so that goroutines exclude each
// other.
func WithOwner(ctx context.Context, owner string) context.Context {
	return underlease.WithName(ctx, owner)
}

// checkOwner returns what is wrong with the name of an owner, or nil.
func checkOwner(name string) error {
	if name == "" || len(name) > maxOwner {
		return fmt.Errorf("%w: WithOwner: an owner has 1 to %d bytes, this one has %d", txlock.ErrInvalidOption, maxOwner, len(name))
	}
	if strings.HasPrefix(name, store.Released) {
		return fmt.Errorf("%w: WithOwner(%q): names that begin with %q are of leases that were released, see HoldAtLeast", txlock.ErrInvalidOption, name, store.Released)
	}
	return nil
}

const maxOwner = 255

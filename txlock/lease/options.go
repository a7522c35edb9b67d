package lease

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// The bounds of a TTL.
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 30 * 24 * time.Hour
)

// A ManagerOption configures NewManager.
type ManagerOption interface{ toManager(*options) }

// An AcquireOption configures Acquire, TryAcquire, AcquireTx, AcquireShared, Do and the other
// methods that acquire a lease or a permit.
type AcquireOption interface{ toAcquire(*terms) }

// An Option configures NewManager, for all leases of the manager, or one Acquire.
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
	label    string
}

// options are those of a manager.
type options struct {
	terms
	renewEvery   time.Duration // 0: a third of the TTL
	cleanupEvery time.Duration // 0: never
	retention    time.Duration
	minPoll      time.Duration
	maxPoll      time.Duration
	observer     txlock.Observer
	badOption    error
}

// defaults are the values of options that are not given.
var defaults = options{
	terms:        terms{ttl: 30 * time.Second, overtime: guardGrace, label: processLabel},
	cleanupEvery: time.Minute,
	retention:    7 * 24 * time.Hour,
	minPoll:      5 * time.Millisecond,
	maxPoll:      250 * time.Millisecond,
}

type term func(*terms)

func (f term) toManager(o *options) { f(&o.terms) }
func (f term) toAcquire(t *terms)   { f(t) }

type setting func(*options)

func (f setting) toManager(o *options) { f(o) }

// TTL sets the TTL of a lease: how long it stays held after its holder has crashed or was cut off.
// A live holder renews it. It is from MinTTL to MaxTTL. The default is 30 seconds.
func TTL(d time.Duration) Option { return term(func(t *terms) { t.ttl = d }) }

// MaxLifetime ends a lease d after it was acquired, even if it is renewed; the holder gets
// txlock.ErrLost, and the key is free for others. It is at least the TTL. The default is no limit.
func MaxLifetime(d time.Duration) Option { return term(func(t *terms) { t.lifetime = d }) }

// WaitAtMost limits how long Acquire and Do wait. Then they return txlock.ErrWaitTimeout, whose
// text has the reason; if a holder was seen, its txlock.HeldError names the owner, and if the
// server has not answered, the text says that. The limit doesn't apply to the first attempt: a
// free lease is granted however short the limit is, and however slow the server. The limit must be
// positive; use TryAcquire to not wait. The default is the context's.
func WaitAtMost(d time.Duration) Option {
	return term(func(t *terms) {
		t.atMost = d
		if d <= 0 {
			t.atMost = -1
		}
	})
}

// Fair puts the waiters of all processes that use it in one queue, first come, first served: they
// queue for a row of the key on the server, and only the first polls the lease. A new Acquire or
// TryAcquire doesn't overtake the waiters of this queue; AcquireTx and managers without Fair do.
// On a multi-primary cluster, each node has a queue of its own.
//
// Each waiter keeps a connection: up to 16 for a key in one manager, and up to half of MaxOpenConns
// in all. One connection always stays for the program besides those for renewals, so an unguarded
// pool of 2 has no room for a waiter. A waiter that gets no connection waits behind those of its
// own manager that have one. If none has, it polls as Poll sets, others may overtake it, and
// Event.Fair is false. A process that is stopped, or whose host is gone, delays the waiters behind
// it by 2 seconds for each of its places. Every 5 seconds a waiter asks the server whether its place
// is there still; one whose connection was lost without a word takes a new place. The default is Poll.
func Fair() Option { return term(func(t *terms) { t.fair = true }) }

// WithLabel describes a holder or a waiter for people: Manager.List, Manager.Inspect, the
// operators' tools and errors that name the holder show the label. It is valid UTF-8 of at most
// 255 bytes. A lease that is re-entered keeps its label. The default is the host and the process
// number: "web-3:4711".
func WithLabel(label string) Option { return term(func(t *terms) { t.label = label }) }

// NameHolders makes txlock.ErrBusy and txlock.ErrWaitTimeout name a holder, by a
// *txlock.HeldError, even if that takes another query. Without it they name a holder only if the
// request itself saw one: a wait sees it by polling, and TryAcquire of a lease that is held. Neither
// sees readers and permits, and a waiter behind others in the queue of Fair has only seen the holder
// from when it arrived.
//
// The query is an Inspect after the refusal. It takes at most 100 ms, ends with the context, and
// isn't made if the pool has no free connection. Of several readers or permits it names one. If it
// fails or finds no holder, the error is the same as without it. The default is not to query.
func NameHolders() Option { return term(func(t *terms) { t.names = true }) }

// SlowWait makes the observer report which holder a wait of at least d was for, as
// txlock.Event.Held, even if that takes a query, as it does for readers, for permits and behind
// others in a queue. When a wait has lasted that long, one Inspect is made, within the limits of
// NameHolders, which must be set. The query ends with the wait at the latest. The default, also if
// d is not positive, is not to query; a holder that the wait itself has seen is reported anyway.
func SlowWait(d time.Duration) Option { return term(func(t *terms) { t.slow = d }) }

// GuardGrace sets how long a transaction that guards a lease may stay open after the lease has
// expired, by the server's clock, while this Acquire waits for it. Then Acquire ends its session,
// as described at Lease.Guard; with 0, as soon as the lease has expired. A holder has at least two
// thirds of its TTL from Guard to COMMIT before that, as long as the server answers. ForceRelease
// always waits for 5 seconds. The default is 5 seconds.
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

// PurgeEvery sets how often rows of leases that were not used for the retention time are deleted.
// In each interval one manager of the database does it, if all have the same interval. With an
// interval of 0, only Manager.Purge deletes rows. The default is every minute and 7 days.
func PurgeEvery(every, retention time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.cleanupEvery, o.retention = every, retention
		if every < 0 || every > 0 && every < MinTTL || every > MaxTTL || retention < time.Second {
			o.badOption = fmt.Errorf("%w: PurgeEvery(%v, %v): the interval must be 0 or from %v to %v, the retention at least a second", txlock.ErrInvalidOption, every, retention, MinTTL, MaxTTL)
		}
	})
}

// Poll sets how often the first waiter of a key in this process polls the lease: the pause grows
// from least to most, and varies at random by half of itself. The waiter holds no connection
// during the pause. It notices a release in the same process at once. The default is 5 ms to 250
// ms.
func Poll(least, most time.Duration) ManagerOption {
	return setting(func(o *options) {
		o.minPoll, o.maxPoll = least, most
		if least <= 0 || most < least {
			o.badOption = fmt.Errorf("%w: Poll(%v, %v): the pauses must be positive and the second no shorter than the first", txlock.ErrInvalidOption, least, most)
		}
	})
}

// Observe sets the observer of the manager's leases; txlock.Observe sets that of transaction
// locks. Both may use the same observer. The default is none.
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
	return checkText("WithLabel: a label", t.label)
}

// validity is for how long a lease with that TTL counts, from before its request. It is a
// little less than on the server, because clocks may differ in speed by 1 % and noticing
// takes time.
func validity(ttl time.Duration) time.Duration { return ttl - ttl/100 - 2*time.Millisecond }

// WithOwner sets the owner of the leases that are acquired under the context, whatever their keys.
// The owner determines who re-enters a lease, whereas txlock.WithLabel only describes transaction
// locks for people.
//
// An owner that holds a lease re-enters it, so use another owner for work that the lease must
// exclude. The name must be unique to one process at a time: a second process with the same name
// takes the lease over from the first, at once and with a higher token, as a restarted program
// does from its predecessor. It has 1 to 255 bytes and doesn't begin with "released: "; with any
// other, Acquire returns txlock.ErrInvalidOption.
//
// Without WithOwner, each Acquire has an owner of its own. The context of Do and of Lease.Context
// keeps that owner for the key of the lease while the lease is held. Leases of other keys have
// other owners under that context, so that goroutines exclude each other.
func WithOwner(ctx context.Context, owner string) context.Context {
	return leaseutil.WithName(ctx, owner)
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

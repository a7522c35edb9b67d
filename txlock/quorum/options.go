package quorum

import (
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Option is an option of New.
type Option interface{ toManager(*options) }

type options struct {
	maxTTL      time.Duration
	clockSkew   time.Duration
	nodeTimeout time.Duration // 0: a tenth of the TTL, a second at most
}

// defaults are the values of options that are not given.
var defaults = options{maxTTL: time.Minute, clockSkew: 5 * time.Second}

type setting func(*options)

func (f setting) toManager(o *options) { f(o) }

// MaxTTL is the longest TTL that any program uses for its leases on these databases: give all
// programs the same. A database that comes back without its data counts again when that time
// and ClockSkew have passed, because no lease that it had granted lives longer. An Acquire with
// a longer TTL is refused. The default is a minute.
func MaxTTL(d time.Duration) Option { return setting(func(o *options) { o.maxTTL = d }) }

// ClockSkew is by how much the clocks of the databases may differ. A database that comes
// back without its data waits for that long too, so that its clock is past every token
// that was granted before. The default is 5 seconds.
func ClockSkew(d time.Duration) Option { return setting(func(o *options) { o.clockSkew = d }) }

// NodeTimeout bounds how long an Acquire, Renew or Release waits for one database. It is
// at most half of the TTL. The default is a tenth of the TTL, but at most a second.
func NodeTimeout(d time.Duration) Option {
	return setting(func(o *options) {
		o.nodeTimeout = d
		if d <= 0 {
			o.nodeTimeout = -1
		}
	})
}

// checkNumber returns what is wrong with the number of managers, or nil.
func checkNumber(n int) error {
	if n < 3 || n > 9 || n%2 == 0 {
		return fmt.Errorf("%w: New needs 3, 5, 7 or 9 managers, got %d: an even number survives no more failures than one less", txlock.ErrInvalidOption, n)
	}
	return nil
}

func optionsOf(opts []Option) options {
	o := defaults
	for _, option := range opts {
		option.toManager(&o)
	}
	return o
}

// check returns what is wrong with the options and the terms of the managers, or nil.
func (o *options) check(t leaseutil.Terms) error {
	switch {
	case o.maxTTL < lease.MinTTL || o.maxTTL > lease.MaxTTL:
		return fmt.Errorf("%w: MaxTTL(%v): it must be from %v to %v", txlock.ErrInvalidOption, o.maxTTL, lease.MinTTL, lease.MaxTTL)
	case o.clockSkew < 0 || o.clockSkew > lease.MaxTTL:
		return fmt.Errorf("%w: ClockSkew(%v): it must be from 0 to %v", txlock.ErrInvalidOption, o.clockSkew, lease.MaxTTL)
	case o.nodeTimeout < 0:
		return fmt.Errorf("%w: NodeTimeout: the limit must be positive", txlock.ErrInvalidOption)
	}
	return o.checkTerms(t)
}

// checkTerms returns what is wrong with the terms of a lease, or nil.
func (o *options) checkTerms(t leaseutil.Terms) error {
	switch {
	case t.TTL > o.maxTTL:
		return fmt.Errorf("%w: TTL(%v) is more than the MaxTTL of %v: give every program a longer MaxTTL, or a shorter TTL here", txlock.ErrInvalidOption, t.TTL, o.maxTTL)
	case o.nodeTimeout > t.TTL/2:
		return fmt.Errorf("%w: NodeTimeout(%v) is more than half of the TTL of %v", txlock.ErrInvalidOption, o.nodeTimeout, t.TTL)
	case t.Fair:
		return fmt.Errorf("%w: Fair: there is no queue over several databases: acquire without it", txlock.ErrInvalidOption)
	case t.HoldAtLeast > 0:
		return fmt.Errorf("%w: HoldAtLeast: a lease over several databases is freed by its release: acquire without it", txlock.ErrInvalidOption)
	}
	return nil
}

// timeout bounds each request to one node, for a lease with that TTL.
func (o *options) timeout(ttl time.Duration) time.Duration {
	if o.nodeTimeout > 0 {
		return o.nodeTimeout
	}
	return min(ttl/10, time.Second)
}

// recovery is for how long a database that has lost its data doesn't count.
func (o *options) recovery() time.Duration { return o.maxTTL + o.clockSkew }

package elect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/procname"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// The errors of elections.
var (
	// ErrNoLeader is returned by Leader and Observe while no process leads.
	ErrNoLeader = errors.New("elect: no leader")
	// ErrRunning is returned by Run while another Run of the same Election is active.
	ErrRunning = errors.New("elect: already running")
	// ErrResigned is the cause with which the context of a leader that resigns ends.
	ErrResigned = errors.New("elect: leader resigned")
	// ErrHung is the cause with which the context of a leader that has not called Alive in
	// time ends: see Watchdog.
	ErrHung = errors.New("elect: watchdog timeout: Alive not called")
)

// An Election is one process's part in an election. Its methods may be called from any goroutine.
type Election struct {
	leases  *lease.Manager
	slots   *lease.Semaphore // of those on standby
	key     txlock.Key
	slotKey txlock.Key
	options
	seldom leaseutil.Seldom

	mu      sync.Mutex
	running bool
	owner   string        // of what Run acquires now, or has acquired last
	term    *Term         // that this process leads
	changed chan struct{} // closed when that changes
}

// An Option configures New.
type Option func(*options)

type options struct {
	ttl      time.Duration
	grace    time.Duration // 0: a third of the TTL
	watchdog time.Duration // 0: none
	by       string
	observer func(ctx context.Context, e Event)
	log      *slog.Logger
	bad      error
}

// TTL sets how long a leader that has crashed, was stopped or is cut off still counts as the
// leader. Use the same TTL in all processes of an election. It is from lease.MinTTL to
// lease.MaxTTL, and at least twice the manager's lease.RenewEvery. The default is 15 seconds.
func TTL(d time.Duration) Option { return func(o *options) { o.ttl = d } }

// Grace sets how long a leader whose term is ending may continue: its context is canceled that
// long before the term ends. A leader that resigns, or whose Run ends, has the same time. Grace is
// positive and at most half of the TTL.
//
// The rest of the TTL is for renewals. A transaction that guards the term for longer ends the
// context. If the grace period and lease.RenewEvery together are not well below the TTL, each term
// ends before it is renewed. The default is a third of the TTL.
func Grace(d time.Duration) Option {
	return func(o *options) {
		o.grace = d
		if d <= 0 {
			o.bad = fmt.Errorf("%w: Grace(%v): it must be positive", txlock.ErrInvalidOption, d)
		}
	}
}

// Watchdog ends the term of a leader that has not called Term.Alive for d, with ErrHung as the
// cause: its function hangs while its process still renews the term. It is at least a millisecond.
// The default is none.
func Watchdog(d time.Duration) Option {
	return func(o *options) {
		o.watchdog = d
		if d < time.Millisecond {
			o.bad = fmt.Errorf("%w: Watchdog(%v): it must be at least a millisecond", txlock.ErrInvalidOption, d)
		}
	}
}

// InstanceName sets the name of this process, which Leader and Observe return in all processes; it
// is the label of its lease. The name is valid UTF-8 of 1 to 255 bytes, and need not be unique.
// The default is the host and the process number.
func InstanceName(name string) Option {
	return func(o *options) {
		o.by = name
		switch n := len(name); {
		case n == 0 || n > maxBy:
			o.bad = fmt.Errorf("%w: InstanceName: a name has 1 to %d bytes, this one has %d", txlock.ErrInvalidOption, maxBy, n)
		case !utf8.ValidString(name):
			o.bad = fmt.Errorf("%w: InstanceName: a name must be valid UTF-8, this one is %q", txlock.ErrInvalidOption, name)
		}
	}
}

const (
	maxBy   = 255
	maxName = 255 - len(":standby")
)

// New returns the election of a key, whose leases the manager renews. It sends nothing to the
// server. Use the key for no other lease; its name has at most 247 bytes. End Run before closing
// the manager.
//
// It returns txlock.ErrInvalidKey and txlock.ErrInvalidOption.
func New(leases *lease.Manager, key txlock.Key, opts ...Option) (*Election, error) {
	if leases == nil {
		return nil, errors.New("elect: New needs a *lease.Manager, got nil")
	}
	e := &Election{leases: leases, key: key, changed: make(chan struct{})}
	e.options = options{ttl: 15 * time.Second, by: procname.Process(":")}
	for _, option := range opts {
		option(&e.options)
	}
	if e.grace == 0 {
		e.grace = e.ttl / 3
	}
	if err := errors.Join(key.Validate(), e.check()); err != nil {
		return nil, err
	}
	if n := len(key.String()); n > maxName {
		return nil, fmt.Errorf("%w: the name of an election has at most %d bytes, this one has %d", txlock.ErrInvalidKey, maxName, n)
	}
	e.slotKey = txlock.ParseKey(key.String() + ":standby")
	slots, err := leases.Semaphore(e.slotKey, standbySlots)
	if err != nil {
		return nil, err
	}
	e.slots = slots
	return e, nil
}

// check returns what is wrong with the options, or nil.
func (o *options) check() error {
	switch {
	case o.bad != nil:
		return o.bad
	case o.ttl < lease.MinTTL || o.ttl > lease.MaxTTL:
		return fmt.Errorf("%w: TTL(%v): it must be from %v to %v", txlock.ErrInvalidOption, o.ttl, lease.MinTTL, lease.MaxTTL)
	case o.grace > o.ttl/2:
		return fmt.Errorf("%w: Grace(%v) is more than half of the TTL of %v", txlock.ErrInvalidOption, o.grace, o.ttl)
	}
	return nil
}

// Key returns the key of the election.
func (e *Election) Key() txlock.Key { return e.key }

// Resign ends the term of this process, if it leads, and returns when another process may lead:
// after the function of Run has returned or the grace period has ended. Run is a candidate again a
// second later, so that the standby processes come first. In the function of Run, call Term.Resign
// and return.
//
// It returns txlock.ErrNotHeld if this process doesn't lead, and the context's error if the
// context ends meanwhile. If the term could not be released at once, it returns lease.ErrGuarded
// or the error of the server or the driver. The term ends nevertheless, at the latest with its
// TTL.
func (e *Election) Resign(ctx context.Context) error {
	if ctx == nil {
		return errors.New("elect: Resign needs a context, got nil")
	}
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil {
		return fmt.Errorf("resign from %q: %w: this process doesn't lead", e.key, txlock.ErrNotHeld)
	}
	t.Resign()
	select {
	case <-t.over:
	case <-ctx.Done():
		return fmt.Errorf("resign from %q: %w", e.key, ctx.Err())
	}
	if errors.Is(t.freed, txlock.ErrNotHeld) {
		return nil // lost meanwhile
	}
	return t.freed
}

// leads notes which term this process leads, nil for none, and wakes those who observe.
func (e *Election) leads(t *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = t
	close(e.changed)
	e.changed = make(chan struct{})
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/bridge"
	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/leaseutil"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// Internal is for lockstep's own packages. Programs can't call it, because they can't make its
// argument.
func Internal(bridge.Pass) internals { return internals{} }

// internals is what this package does for quorum, elect and job and not for programs: the leases
// of quorum are held in several databases, each by a Manager.
type internals struct{}

// Identity returns a comparable value that is the same for two managers on the same pool.
func (internals) Identity(m *Manager) any { return m.store.Identity() }

// Terms returns what an Acquire with the options asks for. It sends nothing.
func (internals) Terms(m *Manager, options ...AcquireOption) (leaseutil.Terms, error) {
	t, err := m.terms(options)
	if err != nil {
		return leaseutil.Terms{}, err
	}
	return leaseutil.Terms{TTL: t.ttl, MaxLifetime: t.lifetime, WaitAtMost: t.atMost, HoldAtLeast: t.atLeast, Fair: t.fair}, m.open()
}

// OwnerOf returns the owner that an Acquire under the context has if it re-enters no lease: the
// owner that WithOwner names, with named set, or a new one. It returns txlock.ErrInvalidOption
// for a name that is too short or too long.
func (internals) OwnerOf(ctx context.Context) (owner string, named bool, err error) {
	if owner, named = leaseutil.NameOf(ctx); named {
		return owner, true, checkOwner(owner)
	}
	id, err := uuid.NewV7()
	return process + id.String(), false, err
}

// Works notes that this goroutine calls a function under a lease, for which the Close of its
// manager waits until left is called, when the lease is released. The function's context is made
// of one of Lease.Context, and ends when Close is called, with ErrClosed as its cause. After
// Close it returns that error.
func (internals) Works(ctx context.Context, l *Lease) (working context.Context, left func(), err error) {
	return l.record.m.works(ctx, l)
}

// ForceRelease is Manager.ForceRelease of the grants that an operator was shown, by slot: a later
// holder keeps the lease. It returns the slots that it has released, also with an error.
func (internals) ForceRelease(ctx context.Context, m *Manager, key txlock.Key, shown map[int64]uint64) (released []int64, err error) {
	shown = maps.Clone(shown)
	maps.DeleteFunc(shown, func(_ int64, token uint64) bool { return token == 0 }) // which no grant has
	return m.force(ctx, key, slices.Sorted(maps.Keys(shown)), shown)
}

// RequestRelease is Manager.RequestRelease of the holders that an operator was shown at a moment by
// the server's clock: a later one isn't asked.
func (internals) RequestRelease(ctx context.Context, m *Manager, key txlock.Key, reason string, shown time.Time) error {
	return m.requestRelease(ctx, key, reason, shown.UnixMicro())
}

// RaiseToken makes the token of an exclusive lease at least the given one, in the database and
// for all its handles. The next holder's token is higher than that. If an open transaction has
// guarded the lease, it tries again until that ends; a transaction that calls Guard meanwhile may
// find the lease lost. If the server doesn't answer, the token in the database is unknown, and
// the lease is lost. It returns txlock.ErrLost or ErrNotHeld if the lease is not held any
// more, and ErrInvalidOption for a reader's or a permit's lease and for a token that no lease can
// have.
func (internals) RaiseToken(ctx context.Context, l *Lease, token uint64) error {
	r := l.record
	if r.shared || r.slot != store.LeaseSlot || token > store.MaxToken {
		return fmt.Errorf("%w: RaiseToken(%d) of lease %q: an exclusive lease can have a token up to %d", txlock.ErrInvalidOption, token, r.key, uint64(store.MaxToken))
	}
	return l.alone(ctx, "increase the token of", func(ctx context.Context, r *record) error {
		for r.token.Load() < token {
			claim := r.claim()
			claim.Token = token
			a, err := r.m.store.Raise(ctx, claim)
			seen := store.Glance{Exists: true}
			if err == nil && a.Reply == store.Absent {
				seen, err = r.m.store.Look(ctx, claim.Row)
			}
			switch {
			case fault.Unknown(err):
				r.lose(fmt.Errorf("%w: %w", errRaised, err))
				return err
			case txlock.Retryable(err): // a multi-primary cluster
			case err != nil:
				return err
			case a.Reply == store.Done:
				r.token.Store(a.Token)
			case a.Reply == store.Refused, !seen.Exists:
				r.lose(ErrReplaced)
				return nil
			default: // locked
				if err := r.m.sleep(ctx, leastLook); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

var errRaised = errors.New("its token was raised without an answer")

// Epoch returns the epoch of the database.
func (internals) Epoch(ctx context.Context, m *Manager) (leaseutil.Epoch, error) {
	if err := m.open(); err != nil {
		return leaseutil.Epoch{}, err
	}
	id, age, err := m.store.Epoch(ctx)
	return leaseutil.Epoch{ID: id, Age: age}, fault.Explain("read the epoch", err)
}

// BeginEpoch begins an epoch with the given age if the database has none, and returns the epoch
// that the database then has.
func (i internals) BeginEpoch(ctx context.Context, m *Manager, age time.Duration) (leaseutil.Epoch, error) {
	if err := m.open(); err != nil {
		return leaseutil.Epoch{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return leaseutil.Epoch{}, err
	}
	if err := m.store.BeginEpoch(ctx, id.String(), age); err != nil {
		return leaseutil.Epoch{}, fault.Explain("begin an epoch", err)
	}
	return i.Epoch(ctx, m)
}

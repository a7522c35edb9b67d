package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/leaseutil"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

// This file has what packages quorum, elect and job need of a Manager: the leases of quorum are
// held in several databases, each by a Manager of this package.

func init() {
	nodes.Of = func(manager any) nodes.Node { return node{manager.(*Manager)} }
	nodes.OwnerOf = ownerOf
	nodes.Works = func(ctx context.Context, l any) (context.Context, func(), error) {
		of := l.(*Lease)
		return of.record.m.works(ctx, of)
	}
	nodes.RaiseToken = func(ctx context.Context, l any, token uint64) error { return l.(*Lease).raiseToken(ctx, token) }
}

// node is a Manager as a nodes.Node.
type node struct{ m *Manager }

func (n node) Identity() any { return n.m.store.Identity() }

func (n node) Terms(options any) (nodes.Terms, error) {
	t, err := n.m.terms(options.([]AcquireOption))
	if err != nil {
		return nodes.Terms{}, err
	}
	return nodes.Terms{TTL: t.ttl, MaxLifetime: t.lifetime, WaitAtMost: t.atMost, HoldAtLeast: t.atLeast, Fair: t.fair}, n.m.open()
}

// ownerOf is nodes.OwnerOf.
func ownerOf(ctx context.Context) (owner string, named bool, err error) {
	if owner, named = leaseutil.NameOf(ctx); named {
		return owner, true, checkOwner(owner)
	}
	id, err := uuid.NewV7()
	return process + id.String(), false, err
}

// raiseToken makes the token of the lease at least the given one: see nodes.RaiseToken.
// It returns txlock.ErrLost or ErrNotHeld if the lease is not held any more, and
// ErrInvalidOption for a reader's or a permit's lease and for a token that no lease can
// have.
func (l *Lease) raiseToken(ctx context.Context, token uint64) error {
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

func (n node) Epoch(ctx context.Context) (nodes.Epoch, error) {
	if err := n.m.open(); err != nil {
		return nodes.Epoch{}, err
	}
	id, age, err := n.m.store.Epoch(ctx)
	return nodes.Epoch{ID: id, Age: age}, fault.Explain("read the epoch", err)
}

func (n node) BeginEpoch(ctx context.Context, age time.Duration) (nodes.Epoch, error) {
	if err := n.m.open(); err != nil {
		return nodes.Epoch{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nodes.Epoch{}, err
	}
	if err := n.m.store.BeginEpoch(ctx, id.String(), age); err != nil {
		return nodes.Epoch{}, fault.Explain("begin an epoch", err)
	}
	return n.Epoch(ctx)
}

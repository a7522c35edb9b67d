package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
	"github.com/dca00107/lockstep/txlock/internal/underlease"
)

// What package quorum builds on: one lease over several databases, each of which
// has a Manager of this package.

// Terms are what an Acquire asks for.
type Terms struct {
	TTL         time.Duration
	MaxLifetime time.Duration // 0: no limit
	WaitAtMost  time.Duration // 0: as long as the context lives
	Fair        bool
}

// Terms returns what an Acquire with the options would ask for. It sends nothing. It
// returns txlock.ErrInvalidOption and ErrClosed as that does.
func (m *Manager) Terms(opts ...AcquireOption) (Terms, error) {
	t, err := m.terms(opts)
	if err != nil {
		return Terms{}, err
	}
	return t.public(), m.open()
}

// DB returns the pool that NewManager was given.
func (m *Manager) DB() *sql.DB { return m.store.Identity().(*sql.DB) }

// OwnerOf returns the owner that an Acquire under the context has which enters no lease
// again: the one of WithOwner, which is named then, or a new one. It returns
// txlock.ErrInvalidOption for a name out of its bounds.
func OwnerOf(ctx context.Context) (owner string, named bool, err error) {
	if owner, named = underlease.NameOf(ctx); named {
		return owner, true, checkOwner(owner)
	}
	id, err := uuid.NewV7()
	return process + id.String(), false, err
}

// RaiseToken makes the token of an exclusive lease at least the one given, in the
// database and for all its handles. The next holder's is higher than that. Where an
// open transaction has guarded the lease it waits for its end, by trying again; a
// transaction that is guarded meanwhile may find the lease lost.
//
// It returns txlock.ErrLost or ErrNotHeld where the lease is not held any more,
// ErrInvalidOption for a lease of a reader or a permit and for a token that no lease
// can have, and the errors of the driver and the context. After an error without an
// answer nobody knows which token the database has: the lease is lost then.
func (l *Lease) RaiseToken(ctx context.Context, token uint64) error {
	r := l.record
	if r.shared || r.slot != store.LeaseSlot || token >= 1<<62 {
		return fmt.Errorf("%w: RaiseToken(%d) of lease %q: an exclusive lease can have a token up to %d", txlock.ErrInvalidOption, token, r.key, uint64(1<<62-1))
	}
	return l.alone(ctx, "raise the token of", func(ctx context.Context, r *record) error {
		for r.token.Load() < token {
			claim := r.claim()
			claim.Token = token
			a, err := r.m.store.Raise(ctx, claim)
			seen := store.Glance{Exists: true}
			if err == nil && a.Reply == store.Absent {
				seen, err = r.m.store.Look(ctx, claim.Row)
			}
			switch {
			case txlock.Unknown(err):
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

// Epoch tells which data a database has. One that comes back empty, restored by
// nobody, has another.
type Epoch struct {
	ID  string        // empty: none was begun
	Age time.Duration // since it was begun, by the server's clock
}

// Epoch returns the epoch of the database. It returns txlock.ErrSchema, ErrClosed
// and the errors of the driver.
func (m *Manager) Epoch(ctx context.Context) (Epoch, error) {
	if err := m.open(); err != nil {
		return Epoch{}, err
	}
	id, age, err := m.store.Epoch(ctx)
	return Epoch{ID: id, Age: age}, txlock.Explain("read the epoch", err)
}

// BeginEpoch begins an epoch of the given age in a database that has none, and
// returns the one that it has then. The errors are those of Epoch, and
// txlock.ErrReadOnly.
func (m *Manager) BeginEpoch(ctx context.Context, age time.Duration) (Epoch, error) {
	if err := m.open(); err != nil {
		return Epoch{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Epoch{}, err
	}
	if err := m.store.BeginEpoch(ctx, id.String(), age); err != nil {
		return Epoch{}, txlock.Explain("begin an epoch", err)
	}
	return m.Epoch(ctx)
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// target is what a request asks for: the exclusive lease, a reader's place, or a permit.
type target interface {
	// ask completes what is asked of the store.
	ask(ask *store.Ask)
	// look tells by plain reads whether the target is free.
	look(ctx context.Context, s store.Session, q *request) (store.Glance, error)
	// prepare makes the rows that are missing.
	prepare(ctx context.Context, s store.Session, q *request) error
}

// leaseRow is the row of the lease of a key.
func leaseRow(key txlock.Key) store.Row { return store.Row{Key: key.String(), Slot: store.LeaseSlot} }

// exclusive is the exclusive lease.
type exclusive struct{}

func (exclusive) ask(*store.Ask) {}

func (exclusive) look(ctx context.Context, s store.Session, q *request) (store.Glance, error) {
	return s.Look(ctx, leaseRow(q.key))
}

func (exclusive) prepare(ctx context.Context, s store.Session, q *request) error {
	return makeRow(ctx, s, leaseRow(q.key))
}

// reader is a place among the readers.
type reader struct{ slot int64 }

func (t reader) ask(ask *store.Ask) { ask.Slot = t.slot }

func (reader) look(ctx context.Context, s store.Session, q *request) (store.Glance, error) {
	seen, err := s.Look(ctx, leaseRow(q.key))
	if seen.Use < 0 {
		return seen, otherUse(q.key, store.Shared, seen.Use)
	}
	seen.Exists = seen.Use == store.Shared
	return seen, err
}

func (reader) prepare(ctx context.Context, s store.Session, q *request) error {
	return use(ctx, s, q.key, store.Shared)
}

// use sets what a key is used for, unless that was set before, and checks it.
func use(ctx context.Context, s store.Session, key txlock.Key, asked store.Use) error {
	if err := ensureRow(ctx, s, leaseRow(key)); err != nil {
		return err
	}
	found, err := s.Use(ctx, key.String(), asked)
	if err == nil && found != asked {
		err = otherUse(key, asked, found)
	}
	return err
}

// otherUse is the error for a key that is used for something else than asked.
func otherUse(key txlock.Key, asked, found store.Use) error {
	switch {
	case found == store.Exclusive:
		return fmt.Errorf("%w: the lease of %q is held: a semaphore needs another key", txlock.ErrInvalidKey, key)
	case found >= 0:
		return fmt.Errorf("%w: %q is used for a shared lease: use another key", txlock.ErrInvalidKey, key)
	case asked >= 0:
		return fmt.Errorf("%w: %q is used for a semaphore of %d permits: use another key", txlock.ErrInvalidKey, key, -found)
	}
	return fmt.Errorf("%w: the semaphore %q has %d permits, not %d: use Resize to change that", txlock.ErrInvalidOption, key, -found, -asked)
}

// makeRow makes a row that a look has found missing, unless somebody else does.
func makeRow(ctx context.Context, s store.Session, at store.Row) error {
	err := s.Make(ctx, at)
	if errors.Is(err, store.ErrLocked) || conflicted(err) {
		if seen, lookErr := s.Look(ctx, at); lookErr == nil && seen.Exists {
			return nil
		}
	}
	return err
}

// ensureRow makes a row if a look finds it missing. It looks first, because the row may be
// locked for long.
func ensureRow(ctx context.Context, s store.Session, at store.Row) error {
	seen, err := s.Look(ctx, at)
	if err != nil || seen.Exists {
		return err
	}
	return makeRow(ctx, s, at)
}

// maxMakes is how often making a row is tried again: for a quarter of a second, unless the server
// itself takes longer to refuse it.
const (
	maxMakes     = 16
	makePatience = 500 * time.Millisecond
)

// making makes rows. Others that make the same rows, or rows beside them, may lock them for a
// moment or cause a deadlock: then it tries again, at random times so as not to meet the same
// others.
func (m *Manager) making(ctx context.Context, rows func() error) error {
	began := m.store.Now()
	for tries := 1; ; tries++ {
		err := rows()
		locked := errors.Is(err, store.ErrLocked) && began.Until(m.store.Now()) < makePatience
		if tries > maxMakes || !locked && !conflicted(err) { // a deadlock is answered at once
			return err
		}
		pause := time.Duration(tries) * leastLook
		if err := m.sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return err
		}
	}
}

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/internal/fault"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

// MaxPermits is the greatest number of permits of a semaphore.
const MaxPermits = store.MaxPermits

// A Semaphore grants a number of permits at a time. Each permit is a lease with its own owner, TTL
// and token. The methods of a Semaphore may be called from any goroutine.
type Semaphore struct {
	m       *Manager
	key     txlock.Key
	permits int
}

// Semaphore returns the semaphore of a key, with 1 to MaxPermits permits. It sends nothing to the
// server. Use the key for nothing else, and with the same number everywhere: if the semaphore was
// created with another number, Acquire returns txlock.ErrInvalidOption, which names both. While
// the key's exclusive lease is held, it returns txlock.ErrInvalidKey.
func (m *Manager) Semaphore(key txlock.Key, permits int) (*Semaphore, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	if permits < 1 || permits > MaxPermits {
		return nil, fmt.Errorf("%w: Semaphore(%q, %d): it has 1 to %d permits", txlock.ErrInvalidOption, key, permits, MaxPermits)
	}
	return &Semaphore{m: m, key: key, permits: permits}, nil
}

// Acquire acquires a permit, and waits until one is free, as Manager.Acquire does, and returns the
// same errors. A permit is not re-entered: an owner that acquires twice has two permits.
func (s *Semaphore) Acquire(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	q, err := s.request(ctx, "acquire a permit of", opts)
	if err != nil {
		return nil, err
	}
	return s.m.finish(ctx, q, s.m.wait)
}

// TryAcquire acquires a permit without waiting: if no permit is free it returns txlock.ErrBusy.
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	q, err := s.request(ctx, "try to acquire a permit of", opts)
	if err != nil {
		return nil, err
	}
	return s.m.finish(ctx, q, s.m.tryOnce)
}

// Do acquires a permit, calls fn and releases the permit, as Manager.Do does.
func (s *Semaphore) Do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return s.m.do(ctx, fn, func() (*Lease, error) { return s.Acquire(ctx, opts...) })
}

func (s *Semaphore) request(ctx context.Context, verb string, opts []AcquireOption) (*request, error) {
	q, err := s.m.request(ctx, verb, s.key, opts)
	if err != nil {
		return nil, err
	}
	q.named = false // a permit is not re-entered
	q.target = permit{s.permits}
	return q, nil
}

// Resize changes the number of permits in the database, and returns a semaphore with that number.
// From then on, Acquire of a Semaphore with the old number returns txlock.ErrInvalidOption;
// waiters get it at once in this manager, and when they poll next in others. Resize waits until
// the permits above the new number are released, or until the context ends. In the second case the
// new number is already valid, but old permits are still held, and the next Resize waits for them.
// It doesn't wait for permits that another Resize has made valid again meanwhile.
//
// It returns txlock.ErrInvalidOption for a number out of range, txlock.ErrInvalidKey for a key
// that is not a semaphore, schema.ErrAutocommit and schema.ErrCharset, ErrClosed, and the errors
// of the driver and of the context. If it returns no semaphore with the error, the number has not
// changed, unless the server has not answered.
func (s *Semaphore) Resize(ctx context.Context, permits int) (*Semaphore, error) {
	resized, err := s.m.Semaphore(s.key, permits)
	if err != nil {
		return nil, err
	}
	ctx, end := s.m.untilClosed(ctx)
	defer end()
	what := fmt.Sprintf("resize semaphore %q to %d", s.key, permits)
	if err = s.m.ready(ctx); err == nil {
		err = resized.set(ctx)
	}
	if err != nil {
		return nil, unlessClosed(ctx, fault.Explain(what, err))
	}
	s.m.freed(s.key)
	return resized, unlessClosed(ctx, fault.Explain(what, resized.drain(ctx)))
}

// set sets the number. If others have a row locked for a moment, it tries again until the
// context ends.
func (s *Semaphore) set(ctx context.Context) error {
	for {
		err := s.setOnce(ctx)
		if !errors.Is(err, store.ErrLocked) && !conflicted(err) {
			return err
		}
		if ended := s.m.sleep(ctx, retryPause); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// setOnce makes the rows first, which nobody uses before the number is set: a failure
// leaves the old number.
func (s *Semaphore) setOnce(ctx context.Context) error {
	entry, err := s.m.store.Look(ctx, leaseRow(s.key))
	if err != nil {
		return err
	}
	notOne := fmt.Errorf("%w: it is not used for a semaphore", txlock.ErrInvalidKey)
	if entry.Use >= 0 {
		return notOne
	}
	if err := s.makeRows(ctx, s.m.store); err != nil { // set tries again
		return err
	}
	reply, err := s.m.store.Resize(ctx, s.key.String(), s.permits)
	if err == nil && reply == store.Absent { // each Acquire locks it for a moment
		err = s.m.store.Queued(ctx, leaseRow(s.key), guardPatience, func(tx store.Session) error {
			reply, err = tx.Resize(ctx, s.key.String(), s.permits)
			return err
		})
	}
	switch {
	case err != nil:
		return err
	case reply == store.Absent:
		return store.ErrLocked
	case reply == store.Refused:
		return notOne
	}
	return nil
}

// drain waits until the permits above the number are released.
func (s *Semaphore) drain(ctx context.Context) error {
	for {
		entry, err := s.m.store.Look(ctx, leaseRow(s.key)) // another Resize may have made more
		if err != nil {
			return err
		}
		row, err := s.m.store.Permits(ctx, s.key.String(), max(s.permits, int(-entry.Use))+1, MaxPermits)
		if err != nil || row.Held == 0 {
			return err
		}
		if err := s.m.sleep(ctx, mostLook); err != nil {
			return fmt.Errorf("%d permits too many are still held: %w", row.Held, err)
		}
	}
}

// makeRows makes those rows of the permits that are missing.
func (s *Semaphore) makeRows(ctx context.Context, db store.Session) error {
	for slot := range int64(s.permits) {
		if err := ensureRow(ctx, db, store.Row{Key: s.key.String(), Slot: slot + 1}); err != nil {
			return err
		}
	}
	return nil
}

// permit is the target of a request for one permit of a semaphore.
type permit struct{ permits int }

func (t permit) ask(ask *store.Ask) { ask.Permits = t.permits }

// look tells when the first permit may be free.
func (t permit) look(ctx context.Context, s store.Session, q *request) (store.Glance, error) {
	entry, err := s.Look(ctx, leaseRow(q.key))
	switch {
	case err != nil || !entry.Exists || entry.Use == store.Exclusive:
		return store.Glance{}, err
	case entry.Use != t.use():
		return store.Glance{}, otherUse(q.key, t.use(), entry.Use)
	}
	found, err := s.Permits(ctx, q.key.String(), 1, t.permits)
	seen := store.Glance{Exists: found.Rows == t.permits, TTL: time.Duration(1<<63 - 1)}
	if found.Held == t.permits { // a permit without a row is free: Clean removes such rows
		seen.Left = max(found.Left, 1)
	}
	return seen, err
}

// use is the use of the semaphore's key.
func (t permit) use() store.Use { return -store.Use(t.permits) }

func (t permit) prepare(ctx context.Context, s store.Session, q *request) error {
	of := Semaphore{key: q.key, permits: t.permits}
	if err := of.makeRows(ctx, s); err != nil {
		return err
	}
	return use(ctx, s, q.key, t.use())
}

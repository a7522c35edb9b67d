package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dca00107/lockstep/gen"
	"github.com/dca00107/lockstep/txlock"
)

// MaxPermits is the most permits that a semaphore has.
const MaxPermits = 1000

// Semaphore grants a number of permits at a time, each a lease with an owner, a time
// to live and a token of its own. Its methods may be called from any goroutine.
type Semaphore struct {
	m       *Manager
	key     txlock.Key
	permits int
}

// Semaphore returns the semaphore of a key, with 1 to MaxPermits permits. The key is
// used for nothing else, and by everybody with the same number: Acquire returns
// txlock.ErrInvalidOption, which names both, where it was made with another. Nothing is
// sent yet.
func (m *Manager) Semaphore(key txlock.Key, permits int) (*Semaphore, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	if permits < 1 || permits > MaxPermits {
		return nil, fmt.Errorf("%w: Semaphore(%q, %d): it has 1 to %d permits", txlock.ErrInvalidOption, key, permits, MaxPermits)
	}
	return &Semaphore{m: m, key: key, permits: permits}, nil
}

// Acquire takes a permit and waits until one is free, as Manager.Acquire does, and
// returns what that returns. A permit is not entered again: an owner that acquires
// twice has two.
func (s *Semaphore) Acquire(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	q, err := s.request(ctx, "acquire a permit of", opts)
	if err != nil {
		return nil, err
	}
	return s.m.finish(ctx, q, s.m.wait)
}

// TryAcquire is Acquire that doesn't wait: where no permit is free it returns
// txlock.ErrBusy.
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...AcquireOption) (*Lease, error) {
	q, err := s.request(ctx, "try to acquire a permit of", opts)
	if err != nil {
		return nil, err
	}
	return s.m.finish(ctx, q, s.m.tryOnce)
}

// Do acquires a permit, calls fn and releases it, as Manager.Do does.
func (s *Semaphore) Do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return s.m.do(ctx, fn, func() (*Lease, error) { return s.Acquire(ctx, opts...) })
}

func (s *Semaphore) request(ctx context.Context, verb string, opts []AcquireOption) (*request, error) {
	q, err := s.m.request(ctx, verb, s.key, opts)
	if err != nil {
		return nil, err
	}
	q.named = false // a permit is not entered again
	q.target = permit{s.permits}
	return q, nil
}

// Resize changes the number of permits for everybody and returns a semaphore of that
// number: Acquire of the old one returns txlock.ErrInvalidOption from now on, also to who
// waits, at once in this manager and with the next look elsewhere. It waits until the
// permits that are no more are given back, or the context ends: then the new number holds
// already, but permits of before are still held.
//
// It returns txlock.ErrInvalidOption for a number out of range, txlock.ErrInvalidKey for
// a key that is no semaphore, ErrClosed, and the errors of the driver and the context.
func (s *Semaphore) Resize(ctx context.Context, permits int) (*Semaphore, error) {
	resized, err := s.m.Semaphore(s.key, permits)
	if err == nil {
		err = s.m.open()
	}
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("resize semaphore %q to %d", s.key, permits)
	before, err := resized.set(ctx)
	if err != nil {
		return nil, txlock.Explain(what, err)
	}
	s.m.freed(s.key)
	if err := resized.makeRows(ctx, s.m.db); err != nil {
		return resized, txlock.Explain(what, err)
	}
	for first := int64(permits) + 1; first <= before; {
		row, err := queries.PermitsOf(ctx, s.m.db, gen.PermitsOfParams{Name: []byte(s.key.String()), First: first, Last: before})
		if err != nil {
			return resized, txlock.Explain(what, err)
		}
		if row.Held == 0 {
			break
		}
		if err := s.m.sleep(ctx, mostLook); err != nil {
			return resized, fmt.Errorf("%s: %d permits too many are still held: %w", what, row.Held, err)
		}
	}
	return resized, nil
}

// set sets the number, and returns that of before.
func (s *Semaphore) set(ctx context.Context) (before int64, err error) {
	for {
		reply, err := queries.ResizeSemaphore(ctx, s.m.db, gen.ResizeSemaphoreParams{Intent: -int64(s.permits), Name: []byte(s.key.String())})
		switch {
		case err != nil:
			return 0, err
		case reply >= usedFor:
			return reply - usedFor, nil
		case reply == replyRefused:
			return 0, fmt.Errorf("%w: it is not used for a semaphore", txlock.ErrInvalidKey)
		}
		if seen, err := lookAt(ctx, s.m.db, s.key, leaseSlot); err != nil || !seen.exists {
			return 0, errors.Join(fmt.Errorf("%w: it was never used for a semaphore", txlock.ErrInvalidKey), err)
		}
		if err := s.m.sleep(ctx, retryPause); err != nil {
			return 0, err
		}
	}
}

// makeRows makes the rows of the permits that are missing.
func (s *Semaphore) makeRows(ctx context.Context, db gen.DBTX) error {
	for slot := range int64(s.permits) {
		seen, err := lookAt(ctx, db, s.key, slot+1)
		if err == nil && !seen.exists {
			err = ensure(ctx, db, s.key, slot+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// permit is one of the permits of a semaphore.
type permit struct{ permits int }

func (t permit) send(ctx context.Context, db gen.DBTX, q *request, notAfterUS int64) (int64, int64, error) {
	reply, err := queries.AcquirePermit(ctx, db, gen.AcquirePermitParams{
		Owner: []byte(q.owner), Hold: q.hold, TtlUs: q.ttl.Microseconds(),
		Name: []byte(q.key.String()), Permits: int64(t.permits), NotAfterUs: notAfterUS,
	})
	if err != nil {
		return 0, unknownSlot, err
	}
	return reply & (1<<permitBits - 1), reply >> permitBits, nil
}

// look tells when the first permit may be free.
func (t permit) look(ctx context.Context, db gen.DBTX, q *request) (glance, error) {
	gate, err := lookAt(ctx, db, q.key, leaseSlot)
	switch {
	case err != nil || !gate.exists || gate.intent == 0:
		return glance{}, err
	case gate.intent > 0:
		return glance{}, otherUse(q.key, gate.intent)
	case gate.intent != -int64(t.permits):
		return glance{}, fmt.Errorf("%w: the semaphore %q has %d permits, not %d: use Resize to change that", txlock.ErrInvalidOption, q.key, -gate.intent, t.permits)
	}
	row, err := queries.PermitsOf(ctx, db, gen.PermitsOfParams{Name: []byte(q.key.String()), First: 1, Last: int64(t.permits)})
	seen := glance{exists: row.Permits == int64(t.permits), ttl: time.Duration(1<<63 - 1)}
	if row.Held == row.Permits {
		seen.left = max(micros(row.LeftUs), 1)
	}
	return seen, err
}

func (t permit) prepare(ctx context.Context, db gen.DBTX, q *request) error {
	s := Semaphore{key: q.key, permits: t.permits}
	if err := s.makeRows(ctx, db); err != nil {
		return err
	}
	return markGate(ctx, db, q.key, -int64(t.permits))
}

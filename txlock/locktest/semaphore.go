package locktest

import (
	"context"
	"fmt"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// Semaphore stands in for lease.Semaphore.
type Semaphore struct {
	m       *Manager
	key     txlock.Key
	permits int
}

// Semaphore is that of lease.Manager.
func (m *Manager) Semaphore(key txlock.Key, permits int) (*Semaphore, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	if permits < 1 || permits > lease.MaxPermits {
		return nil, fmt.Errorf("%w: Semaphore(%q, %d): it has 1 to %d permits", txlock.ErrInvalidOption, key, permits, lease.MaxPermits)
	}
	return &Semaphore{m: m, key: key, permits: permits}, nil
}

// Acquire is that of lease.Semaphore.
func (s *Semaphore) Acquire(ctx context.Context, opts ...lease.AcquireOption) (*Lease, error) {
	return s.m.acquire(ctx, "acquire a permit of", s.key, wanted{permits: s.permits}, opts, true)
}

// TryAcquire is that of lease.Semaphore.
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...lease.AcquireOption) (*Lease, error) {
	return s.m.acquire(ctx, "try to acquire a permit of", s.key, wanted{permits: s.permits}, opts, false)
}

// Do is that of lease.Semaphore.
func (s *Semaphore) Do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...lease.AcquireOption) error {
	return do(ctx, fn, func() (*Lease, error) { return s.Acquire(ctx, opts...) })
}

// Resize is that of lease.Semaphore. Memory.AwaitWaiting counts it while it waits.
func (s *Semaphore) Resize(ctx context.Context, permits int) (*Semaphore, error) {
	resized, err := s.m.Semaphore(s.key, permits)
	if err != nil {
		return nil, err
	}
	what, memory := fmt.Sprintf("resize semaphore %q to %d", s.key, permits), s.m.memory
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	row, err := resized.set()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer func() {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		memory.wait(s.key, -1)
	}()
	tooMany := 0
	err = memory.await(ctx, func() bool {
		tooMany = 0
		for _, h := range row.others {
			if h.slot > max(permits, -row.use) {
				tooMany++
			}
		}
		return tooMany == 0
	})
	if err != nil {
		err = fmt.Errorf("%s: %d permits too many are still held: %w", what, tooMany, err)
	}
	return resized, err
}

// set sets the number, and sends away who waits for a permit of another.
func (s *Semaphore) set() (*memoryLease, error) {
	memory := s.m.memory
	memory.mu.Lock()
	defer memory.mu.Unlock()
	row := memory.leaseOf(s.key)
	if row.use >= 0 {
		return nil, fmt.Errorf("%w: it is not used for a semaphore", txlock.ErrInvalidKey)
	}
	row.use = -s.permits
	memory.wait(s.key, 1)
	row.serve()
	return row, nil
}

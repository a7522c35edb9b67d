package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/store"
)

const (
	// closeWorkers is how many leases Close releases at a time.
	closeWorkers = 8
	// closeGrace is how long after its context has ended Close waits for the work in the
	// background to end.
	closeGrace = 50 * time.Millisecond
)

// Close releases all leases and handles of the manager, and ends its work in the background. It
// returns when that is done or when the context ends, even if the server doesn't answer. In the
// second case the error has the number of leases that could not be released, which end after their
// TTL, and names some of them. If the pool was closed before, Close returns that error at once.
// Waiting calls return ErrClosed, and so do all later calls. Closing again does nothing. Close
// does not close the pool.
func (m *Manager) Close(ctx context.Context) error {
	if ctx == nil {
		return errors.New("lease: Close needs a context, got nil")
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	c := closing{m: m, left: make(map[*record]error, len(m.records))}
	records := make([]*record, 0, len(m.records))
	for _, r := range m.records {
		records = append(records, r)
	}
	for _, q := range m.queues {
		q.close()
	}
	m.mu.Unlock()
	m.closing.end()
	for _, r := range records {
		if r.leaveAll() {
			c.left[r] = nil
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.release(ctx)
		m.end()
		undo := context.AfterFunc(ctx, m.undoing.end)
		defer undo()
		m.errands.Wait()
		if m.undoing.Err() == nil {
			c.released()
		}
		m.undoing.end()
		c.failed(m.store.Close())
	}()
	select {
	case <-done:
	case <-ctx.Done():
		m.end()
		m.undoing.end()
		select {
		case <-done:
		case <-time.After(closeGrace):
		}
	}
	return c.err(ctx)
}

// end ends the loops, and refuses new work in the background.
func (m *Manager) end() {
	m.ending.end()
	m.errands.End()
}

// closing is what a Close has to release, and what has become of it.
type closing struct {
	m *Manager

	mu   sync.Mutex
	left map[*record]error // not released yet, with why it was lost before
	late []*record         // of them, those that are released in the background
	why  error             // why some are left, if not by the context
	errs []error
}

// release releases all leases, several at a time, until the context ends.
func (c *closing) release(ctx context.Context) {
	var group sync.WaitGroup
	records := make(chan *record, len(c.left))
	lost := make(map[*record]error, len(c.left))
	for r, why := range c.left {
		records <- r
		lost[r] = why
	}
	close(records)
	for range min(closeWorkers, len(lost)) {
		group.Go(func() {
			for r := range records {
				if ctx.Err() != nil {
					r.tellReleased(ctx, ctx.Err())
					continue
				}
				err := r.end(ctx, lost[r], false)
				c.done(ctx, r, err)
			}
		})
	}
	group.Wait()
}

// done notes what has become of one release.
func (c *closing) done(ctx context.Context, r *record, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil: // it stays in left, and err names it
	case errors.Is(err, store.ErrPoolClosed):
		c.why = store.ErrPoolClosed
	case errors.Is(err, ErrGuarded):
		c.late = append(c.late, r)
	default:
		delete(c.left, r)
		if !errors.Is(err, txlock.ErrNotHeld) {
			c.errs = append(c.errs, err)
		}
	}
}

// released notes that the work in the background has ended.
func (c *closing) released() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.late {
		delete(c.left, r)
	}
}

func (c *closing) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// err returns what could not be done.
func (c *closing) err(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := errors.Join(c.errs...)
	if len(c.left) == 0 {
		return err
	}
	names := make([]string, 0, len(c.left))
	for r := range c.left {
		names = append(names, fmt.Sprintf("%q", r.key))
	}
	slices.Sort(names)
	const some = 5
	if len(names) > some {
		names = append(names[:some], "...")
	}
	what := fmt.Sprintf("%d leases were not released, and end after their TTL", len(c.left))
	if len(c.left) == 1 {
		what = "1 lease was not released, and ends after its TTL"
	}
	return errors.Join(err, fmt.Errorf("lease: Close: %s: %s: %w", what, strings.Join(names, ", "), cmp.Or(c.why, ctx.Err())))
}

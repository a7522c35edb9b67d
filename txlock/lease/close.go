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

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
)

const (
	// closeWorkers is how many leases Close releases at a time.
	closeWorkers = 8
	// closeGrace is how long after its context has ended Close waits for the work in the
	// background to end.
	closeGrace = 50 * time.Millisecond
)

// Close releases all leases of the manager, and ends its work in the background. Waiting calls
// return ErrClosed, and so do all later calls, including Do. Close does not close the pool.
//
// The contexts of running functions of Do, TryDo, DoShared and Semaphore.Do end at once, with
// ErrClosed as their cause, and so do those of elections and jobs. Close waits for these functions
// to return, until its own context ends. Until then their leases, and those acquired under their
// contexts, are held, renewed, and can Guard. All other handles are released at once.
//
// Close returns when all is done or when the context ends, even if the server doesn't answer or a
// function doesn't return. In the second case the error has the number of leases that could not be
// released, which end after their TTL, and names some of them. Close releases no lease whose
// function still runs, but ends its handle. If the pool was closed before, Close returns that
// error for all leases.
//
// If a function that Close would wait for calls it, on its goroutine or with its context, Close
// returns an error and closes nothing. Closing again does nothing.
func (m *Manager) Close(ctx context.Context) error {
	if ctx == nil {
		return errors.New("lease: Close needs a context, got nil")
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	if m.calledWithin(ctx) {
		m.mu.Unlock()
		return errWithin
	}
	m.closed = true
	m.functions.none = make(chan struct{})
	if len(m.functions.running) == 0 {
		close(m.functions.none)
	}
	c := closing{m: m, left: make(map[*record]struct{}, len(m.records))}
	var inside, others []*record
	for _, r := range m.records {
		if r.inside {
			inside = append(inside, r)
		} else {
			others = append(others, r)
		}
	}
	for _, q := range m.queues {
		q.close()
	}
	m.mu.Unlock()
	m.closing.end()
	others = c.leave(others)
	var early sync.WaitGroup
	early.Go(func() { c.release(ctx, others) })
	select {
	case <-m.functions.none:
	case <-ctx.Done():
	}
	inside = c.leave(inside)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.release(ctx, inside)
		early.Wait()
		m.end()
		undo := context.AfterFunc(ctx, m.undoing.end)
		defer undo()
		m.tasks.Wait()
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
	m.tasks.End()
}

// closing is what a Close has to release, and what has become of it.
type closing struct {
	m *Manager

	mu   sync.Mutex
	left map[*record]struct{} // not released yet
	late []*record            // of them, those that are released in the background
	why  error                // why some are left, if not by the context
	errs []error
}

// leave ends the handles of the records, and returns those that are still to be released.
func (c *closing) leave(records []*record) []*record {
	c.mu.Lock()
	defer c.mu.Unlock()
	records = slices.DeleteFunc(records, func(r *record) bool { return !r.leaveAll() })
	for _, r := range records {
		c.left[r] = struct{}{}
	}
	return records
}

// release releases leases, several at a time, until the context ends.
func (c *closing) release(ctx context.Context, all []*record) {
	var group sync.WaitGroup
	records := make(chan *record, len(all))
	for _, r := range all {
		records <- r
	}
	close(records)
	for range min(closeWorkers, len(all)) {
		group.Go(func() {
			for r := range records {
				if ctx.Err() != nil {
					r.tellReleased(ctx, ctx.Err())
					continue
				}
				c.done(ctx, r, r.end(ctx, nil, false))
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

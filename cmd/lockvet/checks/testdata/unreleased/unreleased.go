// Package unreleased forgets leases, or not.
package unreleased

import (
	"context"
	"errors"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

func never(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.Acquire(ctx, key) // want `l is not released on all paths`
	if err != nil {
		return err
	}
	return l.Err()
}

func onePath(ctx context.Context, m *lease.Manager, key txlock.Key, work func() error) error {
	l, err := m.TryAcquire(ctx, key) // want `l is not released on all paths: see the return at line 30`
	if errors.Is(err, txlock.ErrBusy) {
		return nil
	} else if err != nil {
		return err
	}
	if err = work(); err != nil {
		return err
	}
	return l.Release(ctx)
}

func notBusy(ctx context.Context, m *lease.Manager, key txlock.Key, work func() error) error {
	l, err := m.TryAcquire(ctx, key)
	if !errors.Is(err, txlock.ErrBusy) {
		if err != nil {
			return err
		}
		return errors.Join(work(), l.Release(ctx))
	}
	return nil
}

func eitherError(ctx context.Context, m *lease.Manager, key txlock.Key, work func() error) error {
	l, err := m.TryAcquire(ctx, key)
	if errors.Is(err, txlock.ErrBusy) || errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err == nil && l != nil {
		return errors.Join(work(), l.Release(ctx))
	}
	return nil
}

func otherCondition(ctx context.Context, m *lease.Manager, key txlock.Key, later bool) error {
	l, err := m.TryAcquire(ctx, key) // want `l is not released on all paths`
	if errors.Is(err, txlock.ErrBusy) || later {
		return nil
	}
	if err != nil || l == nil {
		return err
	}
	return l.Release(ctx)
}

func claimed(ctx context.Context, jobs *job.Jobs, key txlock.Key) error {
	c, err := jobs.Claim(ctx, key, time.Now()) // want `c is not released on all paths`
	if err != nil {
		return err
	}
	_ = c.At()
	return nil
}

func listed(ctx context.Context, m *lease.Manager, keys []txlock.Key) error {
	all, err := m.AcquireAll(ctx, keys) // want `all is not released on all paths`
	if err != nil {
		return err
	}
	_ = all.All()
	for _, l := range all.All() {
		if l.Token() == 0 {
			break
		}
	}
	for range keys {
		_ = all
	}
	return nil
}

func reader(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	writer, err := m.Acquire(ctx, key)
	if err != nil {
		return err
	}
	reader, err := writer.Downgrade(ctx) // want `reader is not released on all paths`
	if err != nil {
		return err
	}
	_ = reader
	return nil
}

func overwritten(ctx context.Context, m *lease.Manager, key, second txlock.Key) error {
	l, err := m.Acquire(ctx, key) // want `l is not released on all paths: see the assignment at line 115`
	if err != nil {
		return err
	}
	l, err = m.Acquire(ctx, second)
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

func lastOfLoop(ctx context.Context, m *lease.Manager, keys []txlock.Key) (err error) {
	var l *lease.Lease
	for _, key := range keys {
		if l, err = m.Acquire(ctx, key); err != nil { // want `l is not released on all paths: see the assignment at line 125`
			return err
		}
	}
	return l.Release(ctx)
}

func cleared(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.Acquire(ctx, key) // want `l is not released on all paths`
	if err != nil {
		return err
	}
	l = nil
	_ = l
	return nil
}

func overwrittenLater(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.Acquire(ctx, key) // want `l is not released on all paths`
	if err != nil {
		return err
	}
	_ = l
	defer func() { l = nil }()
	return nil
}

func deferred(ctx context.Context, m *lease.Manager, key txlock.Key, work func(context.Context) error) (err error) {
	l, err := m.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Release(context.WithoutCancel(ctx))) }()
	return work(ctx)
}

func handed(ctx context.Context, m *lease.Manager, key txlock.Key) (*lease.Lease, error) {
	l, err := m.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return l, nil
}

type worker struct{ leases []*lease.Lease }

func (w *worker) kept(ctx context.Context, m *lease.Manager, keys ...txlock.Key) error {
	for _, key := range keys {
		l, err := m.Acquire(ctx, key)
		if err != nil {
			return err
		}
		w.leases = append(w.leases, l)
	}
	return nil
}

func each(ctx context.Context, m *lease.Manager, keys []txlock.Key) error {
	all, err := m.AcquireAll(ctx, keys)
	if err != nil {
		return err
	}
	for _, l := range all.All() {
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func lost(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.Acquire(ctx, key)
	if err != nil {
		return err
	}
	select {
	case <-l.Done():
		return l.Err()
	case <-ctx.Done():
		return l.Release(context.Background())
	}
}

func maybe(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.TryAcquire(ctx, key)
	if l == nil {
		return err
	}
	return l.Release(ctx)
}

func named(ctx context.Context, m *lease.Manager, key txlock.Key) (l *lease.Lease, err error) {
	l, err = m.Acquire(ctx, key)
	return
}

func downgraded(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	writer, err := m.Acquire(ctx, key)
	if err != nil {
		return err
	}
	reader, err := writer.Downgrade(ctx)
	if err != nil {
		return errors.Join(err, writer.Release(ctx))
	}
	return reader.Release(ctx)
}

func deferredBefore(ctx context.Context, m *lease.Manager, key txlock.Key) (err error) {
	l, err := m.Acquire(ctx, key)
	if err != nil {
		return err
	}
	defer func() {
		if l != nil {
			err = errors.Join(err, l.Release(ctx))
		}
	}()
	l, err = l.Downgrade(ctx)
	return err
}

func got(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	all, err := m.AcquireAll(ctx, []txlock.Key{key})
	if err != nil {
		return err
	}
	return all.Get(key).Release(ctx)
}

func collected(ctx context.Context, m *lease.Manager, keys []txlock.Key) (kept []*lease.Lease, err error) {
	all, err := m.AcquireAll(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, l := range all.All() {
		kept = append(kept, l)
	}
	return kept, nil
}

func tried(ctx context.Context, m *lease.Manager, key txlock.Key) error {
	l, err := m.TryAcquire(ctx, key)
	for errors.Is(err, txlock.ErrBusy) {
		time.Sleep(time.Second)
		l, err = m.TryAcquire(ctx, key)
	}
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

func replaced(ctx context.Context, m *lease.Manager, keys []txlock.Key) (err error) {
	var l *lease.Lease
	for _, key := range keys {
		if l != nil {
			if err := l.Release(ctx); err != nil {
				return err
			}
		}
		if l, err = m.Acquire(ctx, key); err != nil {
			return err
		}
	}
	return l.Release(ctx)
}

func renewed(ctx context.Context, m *lease.Manager, key txlock.Key, work func() error) error {
	var l *lease.Lease
	for {
		if l != nil && l.Err() != nil {
			l = nil
		}
		if l == nil {
			var err error
			if l, err = m.Acquire(ctx, key); err != nil {
				return err
			}
		}
		if err := work(); err != nil {
			return errors.Join(err, l.Release(ctx))
		}
	}
}

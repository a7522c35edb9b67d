package memstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// newManagers returns managers of package lease, each in a process of its own.
func newManagers(t *testing.T, db *memstore.Server, n int) (all []*lease.Manager) {
	t.Helper()
	for range n {
		pool := db.Store().Pool()
		m, err := lease.NewManager(pool)
		must(t, err)
		all = append(all, m)
		t.Cleanup(func() {
			if err := m.Close(ctx); err != nil {
				t.Error(err)
			}
			must(t, pool.Close())
		})
	}
	return all
}

// TestManagersExclude proves that the managers of package lease run on the store: one
// holds the lease at a time, a writer waits for readers, and no more permits are granted
// than there are.
func TestManagersExclude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		managers := newManagers(t, memstore.New(), 3)
		brief := lease.TTL(time.Second)
		for _, c := range []struct {
			name string
			most int64
			do   func(m *lease.Manager, n int, fn func(context.Context, *lease.Lease) error) error
		}{
			{"lease", 1, func(m *lease.Manager, n int, fn func(context.Context, *lease.Lease) error) error {
				if n%2 == 0 {
					return m.Do(ctx, txlock.Named("lease"), fn, brief, lease.Fair())
				}
				return m.Do(ctx, txlock.Named("lease"), fn, brief)
			}},
			{"permits", 2, func(m *lease.Manager, _ int, fn func(context.Context, *lease.Lease) error) error {
				s, err := m.Semaphore(txlock.Named("permits"), 2)
				if err != nil {
					return err
				}
				return s.Do(ctx, fn, brief)
			}},
		} {
			var held, done atomic.Int64
			var all sync.WaitGroup
			for n := range 12 {
				all.Go(func() {
					err := c.do(managers[n%3], n, func(context.Context, *lease.Lease) error {
						if now := held.Add(1); now > c.most {
							t.Errorf("%s: %d hold it", c.name, now)
						}
						time.Sleep(3 * time.Second) // it is renewed meanwhile
						held.Add(-1)
						done.Add(1)
						return nil
					})
					if err != nil {
						t.Errorf("%s: %v", c.name, err)
					}
				})
			}
			if all.Wait(); done.Load() != 12 {
				t.Errorf("%s: %d were done", c.name, done.Load())
			}
		}

		key, began := txlock.Named("shared"), time.Now()
		reader, err := managers[0].AcquireShared(ctx, key, brief)
		must(t, err)
		time.AfterFunc(5*time.Second, func() { _ = reader.Release(ctx) })
		writer, err := managers[1].Acquire(ctx, key, brief)
		must(t, err)
		if waited := time.Since(began); waited < 5*time.Second {
			t.Errorf("the writer has waited for %v", waited)
		}
		must(t, writer.Release(ctx))
	})
}

// TestManagerGuards proves that a manager guards a transaction, that one which stays open
// is ended by a manager that takes the lease away, and that the handle finds out.
func TestManagerGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memstore.New()
		managers, s := newManagers(t, db, 2), db.Store()
		tx := s.Begin()
		l, err := managers[0].AcquireTx(ctx, tx, txlock.Named(key))
		must(t, err)
		must(t, tx.Commit())
		guarded := s.Begin()
		must(t, l.Guard(ctx, guarded))
		must(t, guarded.Commit())
		guarded = s.Begin()
		must(t, l.Guard(ctx, guarded))
		must(t, managers[1].ForceRelease(ctx, txlock.Named(key)))
		wantErr(t, guarded.Commit(), txlock.ErrTxDoomed)
		time.Sleep(time.Minute)
		wantErr(t, l.Err(), txlock.ErrLost)
	})
}

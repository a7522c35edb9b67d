package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

func semaphore(t testing.TB, m *lease.Manager, key txlock.Key, permits int) *lease.Semaphore {
	t.Helper()
	s, err := m.Semaphore(key, permits)
	must(t, err)
	return s
}

func permit(t testing.TB, s *lease.Semaphore) *lease.Lease {
	t.Helper()
	return mustLease(t)(s.Acquire(t.Context()))
}

// TestSemaphoreBesideALockedRow proves that permits don't wait for a transaction that has
// locked the row of the key, or that of a permit: what is free is granted, or busy.
func TestSemaphoreBesideALockedRow(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m := newManager(t, pool)
		for name, c := range map[string]struct {
			made    bool
			lock    string
			granted bool
		}{
			"of the lease":        {false, "slot = 0", false},
			"of the semaphore":    {true, "slot = 0", false},
			"of the first permit": {true, "slot = 1", true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				key := keyOf(t, m, true)
				s := semaphore(t, m, key, 2)
				if c.made {
					release(t, permit(t, s))
				}
				tx := begin(t, newPool(t, db, false), sql.LevelRepeatableRead)
				rows, err := tx.Query("SELECT token FROM lockstep_leases WHERE name = ? AND "+c.lock+" FOR UPDATE", key.String())
				wantsNone(t, "the lock", err)
				wantsNone(t, "the lock", rows.Close())
				ctx := limited(t, 5*time.Minute)
				l, err := s.TryAcquire(ctx)
				switch {
				case c.granted && err == nil:
					release(t, l)
				case c.granted:
					t.Errorf("TryAcquire: %v", err)
				default:
					wants(t, "TryAcquire", err, txlock.ErrBusy)
					wants(t, "Acquire", second(s.Acquire(ctx, lease.WaitAtMost(100*time.Millisecond))), txlock.ErrWaitTimeout)
				}
				if ctx.Err() != nil {
					t.Error("it has waited for the end of its context")
				}
				rollback(t, tx)
				release(t, permit(t, s))
			})
		}
	})
}

// TestResizeBesideTraffic proves that Resize succeeds while eight acquire and release
// permits and another resizes, to numbers that need new rows and to smaller ones, and that
// nobody is told anything but that the number has changed.
func TestResizeBesideTraffic(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		managers := []*lease.Manager{newManager(t, pool), newManager(t, pool)}
		for range testdb.Long(1, 2) {
			resizeBesideTraffic(t, managers, named())
		}
	})
}

func resizeBesideTraffic(t *testing.T, managers []*lease.Manager, key txlock.Key) {
	current := func() int {
		info, err := managers[0].Inspect(t.Context(), key)
		wantsNone(t, "Inspect", err)
		return max(info.Permits, 1)
	}
	release(t, permit(t, semaphore(t, managers[0], key, 2)))
	ctx, stop := context.WithCancel(t.Context())
	var work, resizing sync.WaitGroup
	var grants atomic.Int64
	for i := range 8 {
		m := managers[i%2]
		work.Go(func() {
			s := semaphore(t, m, key, current())
			for ctx.Err() == nil {
				err := s.Do(t.Context(), func(context.Context, *lease.Lease) error {
					grants.Add(1)
					return nil
				})
				switch {
				case errors.Is(err, txlock.ErrInvalidOption):
					s = semaphore(t, m, key, current())
				case err != nil:
					t.Errorf("Do: %v", err)
				}
			}
		})
	}
	for i, m := range managers {
		resizing.Go(func() {
			s := semaphore(t, m, key, 2)
			for round := range 6 {
				before := grants.Load()
				testdb.Await(20*time.Second, func() bool { return grants.Load() > before+4 })
				n := 6*(round+1) + 3*i
				if round%3 == 2 {
					n = 1 + i
				}
				wantsNone(t, fmt.Sprintf("Resize to %d", n), second(s.Resize(t.Context(), n)))
			}
		})
	}
	resizing.Wait()
	stop()
	work.Wait()
	last, err := semaphore(t, managers[0], key, 2).Resize(t.Context(), 3)
	wantsNone(t, "the last Resize", err)
	var held []*lease.Lease
	for range 3 {
		l := mustLease(t)(last.TryAcquire(t.Context()))
		held = append(held, l)
	}
	wants(t, "a fourth", second(last.TryAcquire(t.Context())), txlock.ErrBusy)
	release(t, held...)
}

// TestResizeThatFailsChangesNothing proves that the number is that of before where Resize
// fails before it is set, here since the row of a new permit can't be made.
func TestResizeThatFailsChangesNothing(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		key := named()
		s := semaphore(t, newManager(t, pool), key, 2)
		release(t, permit(t, s))
		tx := begin(t, db.Admin(), sql.LevelReadCommitted)
		run(t, tx, "INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards) VALUES ('"+key.String()+"', 4, '-', '', 0, 0, 0, 0, 0)")
		resized, err := s.Resize(limited(t, time.Second), 5)
		wants(t, "Resize", err, context.DeadlineExceeded)
		if resized != nil {
			t.Error("there is a semaphore of the new number")
		}
		release(t, permit(t, s)) // of the number of before
		rollback(t, tx)
		resized, err = s.Resize(t.Context(), 5)
		wantsNone(t, "Resize afterwards", err)
		release(t, permit(t, resized))
	})
}

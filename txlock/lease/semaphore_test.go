package lease_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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

// permitOf acquires the only permit of a key.
func permitOf(ctx context.Context, m *lease.Manager, key txlock.Key, options ...lease.AcquireOption) (*lease.Lease, error) {
	s, err := m.Semaphore(key, 1)
	if err != nil {
		return nil, err
	}
	return s.Acquire(ctx, options...)
}

func permit(t testing.TB, s *lease.Semaphore, options ...lease.AcquireOption) *lease.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), options...)
	must(t, err)
	return l
}

// TestSemaphoreConcurrency proves that as many hold a permit at once as there are
// permits, and never more, under more workers than that in two managers.
func TestSemaphoreConcurrency(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const rounds, holds = 5, 20 * time.Millisecond
		for _, n := range []int{1, 3, 8} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				key := named()
				var inside, most, grants atomic.Int64
				var work sync.WaitGroup
				for range 2 {
					s := semaphore(t, newManager(t, newPool(t, db, true)), key, n)
					for range n + 2 {
						work.Go(func() {
							for range rounds {
								err := s.Do(t.Context(), func(context.Context, *lease.Lease) error {
									at := inside.Add(1)
									for seen := most.Load(); at > seen && !most.CompareAndSwap(seen, at); seen = most.Load() {
									}
									time.Sleep(holds)
									// The first stay until the last permit is taken.
									testdb.Await(10*time.Second, func() bool { return most.Load() >= int64(n) })
									inside.Add(-1)
									grants.Add(1)
									return nil
								})
								if err != nil {
									t.Errorf("Do: %v", err)
									return
								}
							}
						})
					}
				}
				work.Wait()
				t.Logf("%d permits, %d grants, at most %d at once", n, grants.Load(), most.Load())
				if most.Load() != int64(n) {
					t.Errorf("%d at once, want %d", most.Load(), n)
				}
				if want := int64(2 * (n + 2) * rounds); grants.Load() != want {
					t.Errorf("%d grants, want %d", grants.Load(), want)
				}
			})
		}
	})
}

// TestSemaphoreNeverOverfull proves, with holders that die, that at no time more know
// that they hold a permit than there are permits.
func TestSemaphoreNeverOverfull(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		const n = 3
		key := named()
		s := &spells{begun: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var work sync.WaitGroup
		for i := range 3 {
			permits := semaphore(t, newManager(t, newPool(t, db, i%2 == 0)), key, n)
			for range 3 {
				work.Go(func() {
					for ctx.Err() == nil {
						l, err := permits.Acquire(ctx, lease.TTL(time.Second))
						if err != nil {
							if ctx.Err() == nil && !errors.Is(err, txlock.ErrWaitTimeout) {
								t.Errorf("Acquire: %v", err)
							}
							continue
						}
						s.holdAs(l, rand.N(10*time.Millisecond+time.Since(s.begun)/50), false) // longer where grants take long
						s.dieOrRelease(t, db, l, never)
					}
				})
			}
		}
		lasts(bruteTime()/2, func() bool {
			most, _ := s.most()
			_, _, dead := s.counts()
			return most >= n && dead > 0
		})
		cancel()
		work.Wait()
		most, _ := s.most()
		t.Logf("%d grants, of which %d have died; at most %d at once", len(s.all), s.dead, most)
		if most != n {
			t.Errorf("%d at once, want %d", most, n)
		}
		if s.dead == 0 {
			t.Error("nobody has died")
		}
	})
}

// TestSemaphoreOfAnotherNumber proves that a number that isn't the semaphore's is
// refused by an error that names both, before and after Resize.
func TestSemaphoreOfAnotherNumber(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		three := semaphore(t, m, key, 3)
		held := permit(t, three)
		refused := func(what string, s *lease.Semaphore, asked, made int) {
			t.Helper()
			for verb, acquire := range map[string]func(context.Context, ...lease.AcquireOption) (*lease.Lease, error){
				"Acquire": s.Acquire, "TryAcquire": s.TryAcquire,
			} {
				_, err := acquire(t.Context())
				wants(t, what+", "+verb, err, txlock.ErrInvalidOption)
				if text := fmt.Sprint(err); !strings.Contains(text, fmt.Sprintf("has %d permits, not %d", made, asked)) {
					t.Errorf("%s, %s: %q doesn't name %d and %d", what, verb, text, made, asked)
				}
			}
		}
		refused("more", semaphore(t, other, key, 17), 17, 3)
		refused("fewer", semaphore(t, m, key, 2), 2, 3)
		must(t, second(three.Resize(t.Context(), 17)))
		refused("the number of before", three, 3, 17)
		release(t, held)
		release(t, permit(t, semaphore(t, other, key, 17)))
		for _, n := range []int{0, -1, lease.MaxPermits + 1} {
			wants(t, fmt.Sprintf("Semaphore of %d", n), second(m.Semaphore(key, n)), txlock.ErrInvalidOption)
			wants(t, fmt.Sprintf("Resize to %d", n), second(three.Resize(t.Context(), n)), txlock.ErrInvalidOption)
		}
		wants(t, "Semaphore of no key", second(m.Semaphore(txlock.Key{}, 3)), txlock.ErrInvalidKey)
		unused, shared := named(), named()
		release(t, share(t, m, shared))
		for _, key := range []txlock.Key{unused, shared} {
			wants(t, "Resize of no semaphore", second(semaphore(t, m, key, 3).Resize(t.Context(), 4)), txlock.ErrInvalidKey)
			if n := number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND slot BETWEEN 1 AND 4", key.String()); n != 0 {
				t.Errorf("%d rows of permits", n)
			}
		}
		wants(t, "a permit of a shared lease", second(semaphore(t, m, shared, 3).TryAcquire(t.Context())), txlock.ErrInvalidKey)
	})
}

// TestResizeDrains proves that Resize to fewer permits lets nobody in beyond the new
// number at once, and returns when no more are held than there are.
func TestResizeDrains(t *testing.T) {
	onPools(t, func(t *testing.T, db *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		four := semaphore(t, m, key, 4)
		var held []*lease.Lease
		for range 4 {
			held = append(held, permit(t, four))
		}
		type outcome struct {
			s   *lease.Semaphore
			err error
		}
		resized := make(chan outcome, 1)
		go func() {
			s, err := four.Resize(t.Context(), 2)
			resized <- outcome{s, err}
		}()
		waitUntil(t, "the number is two", func() bool {
			return number(t, db, "SELECT used_for FROM lockstep_leases WHERE name = ? AND slot = 0", key.String()) == -2
		})
		two := semaphore(t, other, key, 2)
		for i, l := range held {
			wantsNone(t, fmt.Sprintf("permit %d of before", i), l.Err())
			wantsNone(t, fmt.Sprintf("Renew of permit %d of before", i), l.Renew(t.Context()))
		}
		_, err := two.TryAcquire(t.Context())
		wants(t, "TryAcquire while the old permits are held", err, txlock.ErrBusy)
		release(t, held[3])
		select {
		case o := <-resized:
			t.Fatalf("Resize has returned while three permits are held: %v", o.err)
		case <-time.After(100 * time.Millisecond): // five looks
		}
		release(t, held[2])
		o := <-resized
		if o.err != nil {
			t.Fatalf("Resize: %v", o.err)
		}
		wants(t, "TryAcquire of a third", second(o.s.TryAcquire(t.Context())), txlock.ErrBusy)
		release(t, held[0])
		held[0] = permit(t, o.s)
		wants(t, "TryAcquire of a third", second(two.TryAcquire(t.Context())), txlock.ErrBusy)
		release(t, held[0])
		release(t, held[1])
	})
}

// TestPermitBesideALease proves that a key whose lease somebody holds is made no semaphore, as
// the lease of a semaphore's key is refused, and that it may be one when the lease is free.
func TestPermitBesideALease(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, other := newManager(t, pool), newManager(t, pool)
		key := named()
		s := semaphore(t, other, key, 2)
		l := acquire(t, m, key)
		if wants(t, "TryAcquire of a permit", second(s.TryAcquire(t.Context())), txlock.ErrInvalidKey); t.Failed() {
			return // there would be no permit left
		}
		wants(t, "Acquire of a permit", second(s.Acquire(t.Context())), txlock.ErrInvalidKey)
		wantsNone(t, "Renew of the lease", l.Renew(t.Context()))
		release(t, l)
		p := permit(t, s)
		wants(t, "TryAcquire of the lease", second(m.TryAcquire(t.Context(), key)), txlock.ErrInvalidKey)
		release(t, p)
	})
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
		l, err := last.TryAcquire(t.Context())
		must(t, err)
		held = append(held, l)
	}
	wants(t, "a fourth", second(last.TryAcquire(t.Context())), txlock.ErrBusy)
	for _, l := range held {
		release(t, l)
	}
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
		ctx := limited(t, time.Second)
		resized, err := s.Resize(ctx, 5)
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

// TestResizeWaitsForThoseOfBefore proves that Resize waits for what an earlier one has
// given up to wait for, and not for what another has made a permit again.
func TestResizeWaitsForThoseOfBefore(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		m, key := newManager(t, pool), named()
		s := semaphore(t, m, key, 4)
		var held []*lease.Lease
		for range 4 {
			held = append(held, permit(t, s))
		}
		becomesNumber := func(n int) {
			t.Helper()
			waitUntil(t, "the number is set", func() bool {
				info, err := m.Inspect(t.Context(), key)
				return err == nil && info.Permits == n
			})
		}
		resize := func(ctx context.Context, n int) <-chan error {
			done := make(chan error, 1)
			go func() {
				resized, err := s.Resize(ctx, n)
				if resized == nil && ctx.Err() == nil { // given up, it may not have its answer yet
					t.Errorf("Resize to %d has not set the number", n)
				}
				done <- err
			}()
			becomesNumber(n)
			return done
		}
		ended, giveUp := context.WithCancel(t.Context())
		first := resize(ended, 2)
		giveUp()
		wants(t, "Resize that is given up", within(t, "its end", first), context.Canceled)
		again := resize(t.Context(), 1)
		release(t, held[1]) // the only one that the second has taken away
		select {
		case err := <-again:
			t.Fatalf("Resize has returned while three permits are held: %v", err)
		case <-time.After(100 * time.Millisecond): // five looks
		}
		wantsNone(t, "Resize to the number of the first", second(s.Resize(t.Context(), 4)))
		wantsNone(t, "Resize of what are permits again", within(t, "its end", again))
		for _, l := range []*lease.Lease{held[0], held[2], held[3]} {
			release(t, l)
		}
	})
}

// TestTwoNumbersAtOnce proves that of two managers that make a semaphore at once with
// different numbers one is told the number of the other.
func TestTwoNumbersAtOnce(t *testing.T) {
	onPools(t, func(t *testing.T, _ *testdb.DB, pool *sql.DB) {
		managers := []*lease.Manager{newManager(t, pool), newManager(t, pool)}
		for round := range 10 {
			key := named()
			var errs [2]error
			var making sync.WaitGroup
			for i, m := range managers {
				making.Go(func() {
					errs[i] = semaphore(t, m, key, 2+i).Do(t.Context(), func(context.Context, *lease.Lease) error { return nil })
				})
			}
			making.Wait()
			made := 0
			if errs[0] != nil {
				made = 1
			}
			wantsNone(t, fmt.Sprintf("round %d, who was first", round), errs[made])
			wants(t, fmt.Sprintf("round %d, who was second", round), errs[1-made], txlock.ErrInvalidOption)
			if want := fmt.Sprintf("has %d permits, not %d", 2+made, 3-made); errs[1-made] != nil && !strings.Contains(errs[1-made].Error(), want) {
				t.Errorf("%q doesn't say %q", errs[1-made], want)
			}
		}
	})
}

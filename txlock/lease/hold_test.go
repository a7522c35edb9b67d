package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// TestHoldAtLeast proves that a lease which is released early stays held until its time is
// over, shorter or longer than its TTL, for everybody, and is not renewed; that who waits
// gets it then and not earlier; and that one which is released late is free at once.
func TestHoldAtLeast(t *testing.T) {
	for _, atLeast := range []time.Duration{5 * time.Second, 10 * time.Minute} {
		for name, others := range map[string]bool{"in the same process": false, "in another one": true} {
			runInMemory(t, fmt.Sprintf("%v/%s", atLeast, name), func(t *testing.T, db *memory) {
				m, wire := db.process()
				waits := m
				if others {
					waits = db.manager()
				}
				ctx := lease.WithOwner(t.Context(), "ann")
				must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error {
					time.Sleep(time.Second)
					return nil
				}, lease.HoldAtLeast(atLeast)))
				db.at("done", time.Second)
				for _, by := range []*lease.Manager{m, waits} {
					for _, ctx := range []context.Context{ctx, t.Context()} { // the same owner, too
						wants(t, "TryAcquire", second(by.TryAcquire(ctx, job)), txlock.ErrBusy)
					}
				}
				all := list(t, m)
				if len(all) != 1 || !all[0].Held || all[0].Remaining != atLeast-time.Second || all[0].Owner != store.Released+"ann" {
					t.Errorf("List: %+v", all)
				}
				tries := len(wire.calls("Take"))
				next := acquire(t, waits, job, lease.HoldAtLeast(atLeast))
				db.within("free", atLeast, atLeast+500*time.Millisecond)
				if n := len(wire.calls("Take")); !others && n > tries+2 {
					t.Errorf("who waits has tried %d times", n-tries)
				}
				time.Sleep(atLeast)
				release(t, next)
				nothingHeld(t, m)
				if n := len(wire.calls("RenewMany")); atLeast < 10*time.Second && n > 0 {
					t.Errorf("renewed %d times", n)
				}
			})
		}
	}
}

// TestTermsCountFromTheGrant proves that HoldAtLeast and MaxLifetime of a writer that has waited for a reader
// count from when it has the lease.
func TestTermsCountFromTheGrant(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		const waits, term = 20 * time.Second, 30 * time.Second
		a, b := db.manager(), db.manager(lease.TTL(term))
		write := func(option lease.AcquireOption) *lease.Lease {
			reader := share(t, a, job)
			time.AfterFunc(waits, func() { _ = reader.Release(context.Background()) })
			return acquire(t, b, job, option)
		}
		l := write(lease.MaxLifetime(term))
		time.Sleep(term - time.Second)
		wantsNone(t, "within its lifetime", l.Err())
		time.Sleep(2 * time.Second)
		wants(t, "after it", l.Err(), txlock.ErrLost)
		time.Sleep(term)

		begun := time.Since(db.begun)
		release(t, write(lease.HoldAtLeast(term)))
		release(t, acquire(t, a, job))
		db.within("free", begun+waits+term, begun+waits+term+time.Second)
	})
}

// TestHoldAtLeastEntered proves that the last release of an owner that has entered again
// counts, with the longest time, from the first grant on.
func TestHoldAtLeastEntered(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager()
		outer := acquire(t, m, job, lease.HoldAtLeast(time.Minute))
		ctx := contextOf(t, outer)
		time.Sleep(time.Second)
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(time.Hour)))
		must(t, outer.Err())
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }, lease.HoldAtLeast(2*time.Second)))
		must(t, m.Do(ctx, job, func(context.Context, *lease.Lease) error { return nil }))
		release(t, outer)
		must(t, acquire(t, db.manager(), job).Release(t.Context()))
		db.within("free", time.Hour, time.Hour+500*time.Millisecond)

		// By two managers, that of the last release.
		begun := time.Since(db.begun)
		ctx = lease.WithOwner(t.Context(), "ann")
		second := db.manager()
		held := acquireIn(ctx, t, second, job, lease.HoldAtLeast(time.Hour))
		again := acquireIn(ctx, t, m, job, lease.HoldAtLeast(time.Minute))
		release(t, held)
		must(t, again.Renew(t.Context()))
		release(t, again)
		release(t, acquire(t, second, job))
		db.within("free", begun+time.Minute, begun+time.Minute+500*time.Millisecond)
	})
}

// TestHoldAtLeastOfALostLease proves that a lease which is lost is free when its TTL is
// over, and that of nobody else is kept; and that ForceRelease frees one that is kept.
func TestHoldAtLeastOfALostLease(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		other := db.manager()
		l := acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		must(t, other.ForceRelease(t.Context(), job))
		next := acquire(t, other, job)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		must(t, next.Renew(t.Context()))
		release(t, next)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		wire.fault("RenewMany", fails)
		<-l.Done()
		wire.Up()
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.MaxLifetime(time.Minute), lease.HoldAtLeast(time.Hour))
		<-l.Done() // before its row has expired
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		nothingHeld(t, m)

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		release(t, l)
		must(t, other.ForceRelease(t.Context(), job))
		next = acquire(t, other, job)
		higher(t, next, l)
		release(t, next)
		nothingHeld(t, m)
	})
}

// TestHoldAtLeastFailed proves that a lease stays held whose release is answered late or
// by the second attempt, or goes on behind a transaction that guards it; and that an
// Acquire which fails keeps nothing.
func TestHoldAtLeastFailed(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		l := acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		wire.fault("Keep", times(1, loses))
		release(t, l)
		kept := func(what string) {
			t.Helper()
			all := list(t, m)
			if len(all) != 1 || all[0].Remaining != time.Hour-time.Since(time.UnixMicro(int64(all[0].Token))) || strings.Count(all[0].Owner, store.Released) != 1 {
				t.Errorf("%s: %+v", what, all)
			}
			must(t, m.ForceRelease(t.Context(), job))
		}
		kept("released by two attempts")

		l = acquire(t, m, job, lease.HoldAtLeast(time.Hour))
		tx := wire.guarding(t, l)
		wants(t, "Release", l.Release(t.Context()), lease.ErrGuarded)
		must(t, tx.Commit())
		time.Sleep(3 * time.Second)
		kept("released after a transaction")

		wire.fault("Take", answersLate(5*time.Second))
		wants(t, "Acquire", second(m.Acquire(limited(t, time.Second), job, lease.HoldAtLeast(time.Hour))), context.DeadlineExceeded)
		wire.Up()
		time.Sleep(10 * time.Second)
		nothingHeld(t, m)
	})
}

// TestHoldAtLeastOfAClockSetBack proves that the time counts from the release where the
// grant is in the future.
func TestHoldAtLeastOfAClockSetBack(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m := db.manager(lease.TTL(time.Hour))
		l := acquire(t, m, job, lease.HoldAtLeast(10*time.Minute))
		db.SetClock(-2 * time.Hour)
		time.Sleep(time.Minute)
		release(t, l)
		all := list(t, m)
		if len(all) != 1 || all[0].Remaining != 10*time.Minute {
			t.Errorf("List: %+v", all)
		}
		release(t, acquire(t, m, job))
		db.within("free", 11*time.Minute, 11*time.Minute+500*time.Millisecond)

		// While it is held: it never takes longer than that.
		begun := time.Since(db.begun)
		l = acquire(t, m, job, lease.HoldAtLeast(10*time.Minute))
		release(t, l)
		db.SetClock(-4 * time.Hour)
		release(t, acquire(t, m, job))
		db.within("free", begun+10*time.Minute, begun+10*time.Minute+time.Second)
	})
}

// TestHoldAtLeastRefused proves which times are refused, and that readers can't have one,
// before anything is sent; and that no owner can pass for one of a released lease.
func TestHoldAtLeastRefused(t *testing.T) {
	t.Parallel()
	m := newManager(t, nowhere(t))
	for _, d := range []time.Duration{0, -1, -time.Hour, lease.MaxTTL + 1} {
		for call, err := range allCalls(t.Context(), m, nil, job, lease.HoldAtLeast(d)) {
			wants(t, fmt.Sprintf("%s with %v", call, d), err, txlock.ErrInvalidOption)
		}
	}
	wants(t, "AcquireShared", second(m.AcquireShared(t.Context(), job, lease.HoldAtLeast(time.Second))), txlock.ErrInvalidOption)
	wants(t, "TryAcquireShared", second(m.TryAcquireShared(t.Context(), job, lease.HoldAtLeast(time.Second))), txlock.ErrInvalidOption)
	wants(t, "Acquire", second(m.Acquire(lease.WithOwner(t.Context(), store.Released+"ann"), job)), txlock.ErrInvalidOption)
}

// TestHoldAtLeastAnsweredLate proves of a release whose first attempt is not answered before
// the TTL is over, that it says the key is kept if that attempt has kept it, and not if it
// came too late, when others may have had the key.
func TestHoldAtLeastAnsweredLate(t *testing.T) {
	inMemory(t, func(t *testing.T, db *memory) {
		m, wire := db.process()
		const ttl = 2 * time.Second
		for _, owner := range []string{"me", strings.Repeat("o", 255)} {
			l := mustLease(t)(m.Acquire(lease.WithOwner(t.Context(), owner), job, lease.TTL(ttl), lease.HoldAtLeast(time.Hour)))
			wire.fault("Keep", times(1, func(ctx context.Context, op string, at store.Row, call func() error) error {
				return errors.Join(answersLate(ttl+time.Second)(ctx, op, at, call), mysql.ErrInvalidConn)
			}))
			release(t, l)
			all := list(t, m)
			if len(all) != 1 || !strings.HasPrefix(all[0].Owner, store.Released) {
				t.Errorf("released: %+v", all)
			}
			must(t, m.ForceRelease(t.Context(), job))
		}
		for _, taken := range []bool{true, false} {
			l := acquire(t, m, job, lease.TTL(ttl), lease.HoldAtLeast(time.Hour))
			wire.fault("Keep", times(1, func(context.Context, string, store.Row, func() error) error {
				time.Sleep(ttl + time.Second)
				if taken {
					release(t, acquire(t, db.manager(), job))
				}
				return mysql.ErrInvalidConn
			}))
			wants(t, "Release that came too late", l.Release(t.Context()), txlock.ErrNotHeld)
			nothingHeld(t, m)
		}
	})
}

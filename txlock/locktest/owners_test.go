package locktest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
)

// ownersBehave shows who is the owner of what is acquired under a context: of leases over
// one database and over several.
func ownersBehave[L aHandle, M anAcquirer[L]](show func(name string, f func(t *testing.T, one, other M, key txlock.Key))) {
	never := func(t *testing.T, what string, acquire func(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (L, error), ctx context.Context, key txlock.Key) {
		t.Helper()
		l, err := acquire(context.WithoutCancel(ctx), key)
		wants(t, what, err, txlock.ErrBusy)
		if err == nil {
			must(t, l.Release(t.Context()))
		}
	}
	another := func() txlock.Key { return txlock.Named("another:" + rand.Text()) }
	show("goroutines under Do exclude each other by other keys", func(t *testing.T, one, _ M, key txlock.Key) {
		other := another()
		must(t, one.Do(t.Context(), key, func(ctx context.Context, outer L) error {
			var all sync.WaitGroup
			var inside atomic.Int64
			tokens := make(chan uint64, 12)
			for range 4 {
				all.Go(func() {
					for range 3 {
						err := one.Do(ctx, other, func(_ context.Context, l L) error {
							if n := inside.Add(1); n != 1 {
								t.Errorf("%d are inside", n)
							}
							defer inside.Add(-1)
							if l.Owner() == outer.Owner() {
								t.Errorf("the owner of %q has %q too", key, other)
							}
							tokens <- l.Token()
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			close(tokens)
			for last := uint64(0); len(tokens) > 0; {
				token := <-tokens
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
			}
			return outer.Err()
		}))
	})
	show("Dos inside of each other enter each of their keys again", func(t *testing.T, one, other M, key txlock.Key) {
		second := another()
		must(t, one.Do(t.Context(), key, func(ctx context.Context, a L) error {
			return one.Do(ctx, second, func(ctx context.Context, b L) error {
				return errors.Join(one.Do(ctx, key, func(ctx context.Context, again L) error {
					if again.Token() != a.Token() || again.Owner() != a.Owner() {
						t.Errorf("%d of %q in %d of %q", again.Token(), again.Owner(), a.Token(), a.Owner())
					}
					return one.Do(ctx, second, func(_ context.Context, again L) error {
						if again.Token() != b.Token() {
							t.Errorf("token %d in %d", again.Token(), b.Token())
						}
						return nil
					})
				}), a.Err(), b.Err())
			})
		}))
		must(t, acquireAndRelease(t.Context(), other, key))
		must(t, acquireAndRelease(t.Context(), other, second))
	})
	show("the context of a hold that is over has nothing left of it", func(t *testing.T, one, other M, key txlock.Key) {
		var stale, inner context.Context
		must(t, one.Do(t.Context(), key, func(ctx context.Context, _ L) error {
			stale = context.WithoutCancel(ctx)
			return one.Do(ctx, key, func(ctx context.Context, _ L) error {
				inner = context.WithoutCancel(ctx)
				return nil
			})
		}))
		for _, ctx := range []context.Context{stale, inner} {
			first, err := one.Acquire(ctx, key)
			must(t, err)
			never(t, "TryAcquire under what is over", one.TryAcquire, ctx, key)
			never(t, "the same in another manager", other.TryAcquire, ctx, key)
			must(t, first.Release(t.Context()))
		}
		// The inner hold is over, the outer one is not.
		must(t, one.Do(t.Context(), key, func(ctx context.Context, l L) error {
			must(t, one.Do(ctx, key, func(ctx context.Context, _ L) error {
				inner = context.WithoutCancel(ctx)
				return nil
			}))
			again, err := one.TryAcquire(inner, key)
			if err != nil || again.Token() != l.Token() {
				t.Errorf("under what is inside of a hold that goes on: %v", err)
				return err
			}
			return again.Release(ctx)
		}))
	})
	show("a name counts for all keys, and hides the leases around it", func(t *testing.T, one, _ M, key txlock.Key) {
		second, name := another(), "owner:"+rand.Text()
		must(t, one.Do(lease.WithOwner(t.Context(), name), key, func(ctx context.Context, _ L) error {
			first, err := one.Acquire(ctx, second)
			must(t, err)
			again, err := one.TryAcquire(ctx, second)
			must(t, err)
			if first.Owner() != name || again.Token() != first.Token() {
				t.Errorf("owner %q, tokens %d and %d", first.Owner(), first.Token(), again.Token())
			}
			never(t, "TryAcquire by another name", one.TryAcquire, lease.WithOwner(ctx, name+"'"), key)
			return errors.Join(again.Release(ctx), first.Release(ctx))
		}))
		must(t, one.Do(t.Context(), key, func(ctx context.Context, l L) error {
			again, err := one.TryAcquire(lease.WithOwner(ctx, l.Owner()), key)
			if err != nil {
				return err
			}
			return again.Release(ctx)
		}))
	})
	show("who waits under the context of a lease that ends meanwhile waits for others only", func(t *testing.T, one, _ M, key txlock.Key) {
		second := another()
		busy, err := one.Acquire(t.Context(), second)
		must(t, err)
		granted := make(chan error, 2)
		must(t, one.Do(t.Context(), key, func(ctx context.Context, _ L) error {
			for range 2 {
				go func() {
					l, err := one.Acquire(context.WithoutCancel(ctx), second)
					if err == nil {
						err = errors.Join(l.Err(), l.Release(t.Context()))
					}
					granted <- err
				}()
			}
			return nil
		}))
		must(t, busy.Release(t.Context()))
		must(t, <-granted)
		must(t, <-granted)
	})
}

func acquireAndRelease[L aHandle, M anAcquirer[L]](ctx context.Context, m M, key txlock.Key) error {
	l, err := m.Acquire(ctx, key, lease.WaitAtMost(20*time.Second))
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

// ownersOfManagersBehave shows what holds over two managers of one database, and among
// readers and permits.
func ownersOfManagersBehave(show show) {
	show("Do in one manager is re-entered in another", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		must(t, one.Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			for _, acquire := range []func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){other.TryAcquire, other.Acquire, other.TryAcquireShared} {
				again, err := acquire(ctx, key)
				if err != nil {
					return err
				}
				if again.Owner() != l.Owner() || !again.Shared() && again.Token() != l.Token() {
					t.Errorf("%d of %q in %d of %q", again.Token(), again.Owner(), l.Token(), l.Owner())
				}
				must(t, again.Release(ctx))
			}
			_, err := other.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire beside it", err, txlock.ErrBusy)
			return other.Do(ctx, key, func(ctx context.Context, _ *lease.Lease) error {
				return one.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil })
			})
		}))
		must(t, acquireAndRelease(t.Context(), other, key))
	})
	show("who reads under a context doesn't become a writer under it", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		must(t, one.DoShared(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			for _, m := range []*lease.Manager{one, other} {
				_, err := m.TryAcquire(ctx, key)
				wants(t, "TryAcquire under a reader", err, txlock.ErrUpgrade)
				again, err := m.TryAcquireShared(ctx, key)
				must(t, err)
				must(t, again.Release(ctx))
				must(t, acquireAndRelease(ctx, m, txlock.Named("another:"+rand.Text())))
			}
			return l.Err()
		}))
	})
	show("a permit under the context of a permit is another", func(t *testing.T, one, _ *lease.Manager, key txlock.Key) {
		s, err := one.Semaphore(key, 2)
		must(t, err)
		must(t, s.Do(t.Context(), func(ctx context.Context, _ *lease.Lease) error {
			second, err := s.TryAcquire(ctx)
			must(t, err)
			_, err = s.TryAcquire(ctx)
			wants(t, "a third", err, txlock.ErrBusy)
			return second.Release(ctx)
		}))
	})
}

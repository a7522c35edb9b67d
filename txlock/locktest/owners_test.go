package locktest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// aHandle is what leases of one database and of several have in common.
type aHandle interface {
	Token() uint64
	Owner() string
	Err() error
	Release(ctx context.Context) error
}

// anAcquirer is what their managers have in common.
type anAcquirer[L aHandle] interface {
	Acquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (L, error)
	TryAcquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (L, error)
	Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l L) error, opts ...lease.AcquireOption) error
}

// inBubble runs a test in a bubble.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// outside runs a test by the real time.
func outside(t *testing.T, test func(t *testing.T)) { t.Helper(); test(t) }

// leasesOf returns a manager, which is closed when the test ends.
func leasesOf(t *testing.T, pool *sql.DB, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(pool, options...)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

// guardedPool opens a guarded pool of a server.
func guardedPool(t *testing.T, db *testdb.DB) *sql.DB { return opened(t, db, guarded) }

// plainPool opens one without the guard.
func plainPool(t *testing.T, db *testdb.DB) *sql.DB {
	return opened(t, db, func(base sqldriver.Connector) sqldriver.Connector { return base })
}

// opened opens a pool of a server, whose connector wrap changes.
func opened(t *testing.T, db *testdb.DB, wrap func(sqldriver.Connector) sqldriver.Connector) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(db.Config())
	must(t, err)
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() { must(t, pool.Close()) })
	return pool
}

// TestLeaseBehaviours shows who is the owner of leases on the stand-in and on servers, and that one
// which is taken away is lost.
func TestLeaseBehaviours(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		leasesBehave(t, inBubble, func(t *testing.T) *sql.DB { return locktest.Open(t, nil).DB() })
	})
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			pool := guardedPool(t, testdb.Open(t, engine))
			leasesBehave(t, outside, func(*testing.T) *sql.DB { return pool })
		})
	}
}

func leasesBehave(t *testing.T, run func(*testing.T, func(*testing.T)), poolOf func(t *testing.T) *sql.DB) {
	show := showing(t, run, func(t *testing.T) (one, other *lease.Manager) {
		pool := poolOf(t)
		return leasesOf(t, pool), leasesOf(t, pool)
	})
	show("a lease that is taken away is lost", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		err := one.Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			must(t, other.ForceRelease(t.Context(), key))
			wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost) // which is told at the latest
			<-ctx.Done()
			wants(t, "the cause", context.Cause(ctx), txlock.ErrLost)
			return nil
		})
		wants(t, "Do", err, txlock.ErrLost)
		wants(t, "ForceRelease", other.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
	})
	ownersBehave(show)
}

// shows runs a behaviour of two managers.
type shows[M any] func(name string, f func(t *testing.T, one, other M, key txlock.Key))

// showing returns what runs a behaviour with two managers and a key of its own.
func showing[M any](t *testing.T, run func(*testing.T, func(*testing.T)), newManagers func(t *testing.T) (one, other M)) shows[M] {
	return func(name string, f func(t *testing.T, one, other M, key txlock.Key)) {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T) {
				one, other := newManagers(t)
				f(t, one, other, txlock.Named("test:"+rand.Text()))
			})
		})
	}
}

// ownersBehave shows who is the owner of what is acquired under a context: of leases over
// one database and over several.
func ownersBehave[L aHandle, M anAcquirer[L]](show shows[M]) {
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

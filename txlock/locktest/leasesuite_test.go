package locktest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// aLease is what lease.Lease and its stand-in have in common.
type aLease interface {
	Key() txlock.Key
	Token() uint64
	Owner() string
	Err() error
	Valid() bool
	Done() <-chan struct{}
	Left() time.Duration
	Context(ctx context.Context) (context.Context, context.CancelFunc)
	Renew(ctx context.Context) error
	Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error
	Release(ctx context.Context) error
}

// aManager is what lease.Manager and its stand-in have in common.
type aManager[L aLease] interface {
	Acquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (L, error)
	TryAcquire(ctx context.Context, key txlock.Key, opts ...lease.AcquireOption) (L, error)
	Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l L) error, opts ...lease.AcquireOption) error
	ForceRelease(ctx context.Context, key txlock.Key) error
	Close(ctx context.Context) error
}

var (
	_ aManager[*lease.Lease]    = (*lease.Manager)(nil)
	_ aManager[*locktest.Lease] = (*locktest.Manager)(nil)
)

// TestLeaseBehaviours shows that the stand-in and the real leases behave alike.
func TestLeaseBehaviours(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		memory := locktest.NewRealTimeMemory()
		leasesBehave(t, func(t *testing.T) aManager[*locktest.Lease] {
			m, err := memory.Manager()
			must(t, err)
			return m
		})
	})
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			connector, err := mysql.NewConnector(testdb.Open(t, engine).Config())
			must(t, err)
			db := sql.OpenDB(txlock.Guarded(connector))
			t.Cleanup(func() { must(t, db.Close()) })
			leasesBehave(t, func(t *testing.T) aManager[*lease.Lease] {
				m, err := lease.NewManager(db)
				must(t, err)
				t.Cleanup(func() { must(t, m.Close(context.Background())) })
				return m
			})
		})
	}
}

func leasesBehave[L aLease](t *testing.T, newManager func(t *testing.T) aManager[L]) {
	show := func(name string, f func(t *testing.T, one, other aManager[L], key txlock.Key)) {
		t.Run(name, func(t *testing.T) {
			f(t, newManager(t), newManager(t), txlock.Named("test:"+rand.Text()))
		})
	}
	acquire := func(ctx context.Context, t *testing.T, m aManager[L], key txlock.Key) L {
		t.Helper()
		l, err := m.Acquire(ctx, key)
		must(t, err)
		return l
	}
	show("a lease excludes until its release, and tokens rise", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		for _, m := range []aManager[L]{one, other} {
			_, err := m.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
		}
		_, err := other.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		_, err = other.Acquire(ctx, key)
		wants(t, "deadline", err, context.DeadlineExceeded)
		if l.Key() != key || !l.Valid() || l.Left() <= 0 || l.Token() < 1e15 || l.Owner() == "" {
			t.Errorf("lease of %v, valid %t, left %v, token %d, owner %q", l.Key(), l.Valid(), l.Left(), l.Token(), l.Owner())
		}
		must(t, l.Renew(t.Context()))
		must(t, l.Release(t.Context()))
		must(t, l.Release(t.Context()))
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNotHeld)
		<-l.Done()
		next := acquire(t.Context(), t, other, key)
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		must(t, next.Release(t.Context()))
	})
	show("a waiter is granted at the release", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		granted := make(chan error)
		go func() {
			next, err := other.Acquire(t.Context(), key)
			if err == nil {
				err = next.Release(t.Context())
			}
			granted <- err
		}()
		must(t, l.Release(t.Context()))
		must(t, <-granted)
	})
	show("an owner enters again, and the last release frees", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		ctx := lease.WithOwner(t.Context(), "owner:"+rand.Text())
		first := acquire(ctx, t, one, key)
		second := acquire(ctx, t, one, key)
		if first.Token() != second.Token() || first.Owner() != second.Owner() {
			t.Errorf("tokens %d and %d, owners %q and %q", first.Token(), second.Token(), first.Owner(), second.Owner())
		}
		must(t, first.Release(t.Context()))
		must(t, second.Err())
		_, err := other.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		must(t, second.Release(t.Context()))
		must(t, acquire(t.Context(), t, other, key).Release(t.Context()))
	})
	show("Do carries the owner, hands on errors and releases", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		failed := errors.New("failed")
		var held L
		err := one.Do(t.Context(), key, func(ctx context.Context, l L) error {
			held = l
			return one.Do(ctx, key, func(ctx context.Context, again L) error {
				if again.Token() != l.Token() {
					t.Errorf("token %d in %d", again.Token(), l.Token())
				}
				return errors.Join(failed, ctx.Err())
			})
		})
		wants(t, "Do", err, failed)
		wants(t, "Err", held.Err(), txlock.ErrNotHeld)
		must(t, acquire(t.Context(), t, other, key).Release(t.Context()))
	})
	show("a lease that is taken away is lost", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		err := one.Do(t.Context(), key, func(ctx context.Context, l L) error {
			must(t, other.ForceRelease(t.Context(), key))
			wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost) // which is told at the latest
			<-ctx.Done()
			wants(t, "the cause", context.Cause(ctx), txlock.ErrLost)
			return nil
		})
		wants(t, "Do", err, txlock.ErrLost)
		wants(t, "ForceRelease", other.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
	})
	show("bad input is refused", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		_, err := one.Acquire(t.Context(), orders.Key(0))
		wants(t, "zero key", err, txlock.ErrInvalidKey)
		_, err = one.Acquire(t.Context(), key, lease.TTL(-time.Second))
		wants(t, "TTL", err, txlock.ErrInvalidOption)
		_, err = one.Acquire(t.Context(), key, lease.WaitAtMost(0))
		wants(t, "WaitAtMost", err, txlock.ErrInvalidOption)
		_, err = one.Acquire(lease.WithOwner(t.Context(), ""), key)
		wants(t, "owner", err, txlock.ErrInvalidOption)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = one.Acquire(ended, key)
		wants(t, "context", err, context.Canceled)
		l := acquire(t.Context(), t, other, key)
		wants(t, "Guard", l.Guard(t.Context(), nil), txlock.ErrNoTransaction)
		must(t, l.Release(t.Context()))
	})
	show("Close gives back and refuses", func(t *testing.T, one, other aManager[L], key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		must(t, one.Close(t.Context()))
		must(t, one.Close(t.Context()))
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		_, err := one.Acquire(t.Context(), key)
		wants(t, "Acquire", err, lease.ErrClosed)
		must(t, acquire(t.Context(), t, other, key).Release(t.Context()))
	})
}

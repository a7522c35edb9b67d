package locktest_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// aHandle is what leases of one database and of several have in common.
type aHandle interface {
	Key() txlock.Key
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
	Close(ctx context.Context) error
}

var (
	_ anAcquirer[*lease.Lease]  = (*lease.Manager)(nil)
	_ anAcquirer[*quorum.Lease] = (*quorum.Manager)(nil)
)

// since2000 is the least token, where the clock of a bubble begins.
const since2000 = 946684800e6

// inBubble runs a test in a bubble.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// outside runs a test by the real time.
func outside(t *testing.T, test func(t *testing.T)) { t.Helper(); test(t) }

// leasesOf returns a manager on a Kit, which is closed when the test ends.
func leasesOf(t *testing.T, memory *locktest.Kit, options ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m, err := lease.NewManager(memory.DB(), options...)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	return m
}

// TestLeaseBehaviours shows that leases on the stand-in and on servers behave alike.
func TestLeaseBehaviours(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		leasesBehave(t, inBubble, func(t *testing.T) (one, other *lease.Manager) {
			memory := locktest.Open(t, nil)
			return leasesOf(t, memory), leasesOf(t, memory)
		})
	})
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			connector, err := mysql.NewConnector(testdb.Open(t, engine).Config())
			must(t, err)
			db := sql.OpenDB(locksqlc.Connector(connector))
			t.Cleanup(func() { must(t, db.Close()) })
			newManager := func(t *testing.T) *lease.Manager {
				m, err := lease.NewManager(db)
				must(t, err)
				t.Cleanup(func() { must(t, m.Close(context.Background())) })
				return m
			}
			leasesBehave(t, outside, func(t *testing.T) (one, other *lease.Manager) { return newManager(t), newManager(t) })
		})
	}
}

func leasesBehave(t *testing.T, run func(*testing.T, func(*testing.T)), newManagers func(t *testing.T) (one, other *lease.Manager)) {
	show := func(name string, f func(t *testing.T, one, other *lease.Manager, key txlock.Key)) {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T) {
				one, other := newManagers(t)
				f(t, one, other, txlock.Named("test:"+rand.Text()))
			})
		})
	}
	show("a lease excludes until its release, and tokens rise", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		for _, m := range []*lease.Manager{one, other} {
			_, err := m.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
		}
		_, err := other.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		_, err = other.Acquire(ctx, key)
		wants(t, "deadline", err, context.DeadlineExceeded)
		if l.Key() != key || !l.Valid() || l.Remaining() <= 0 || l.Token() < since2000 || l.Owner() == "" {
			t.Errorf("lease of %v, valid %t, left %v, token %d, owner %q", l.Key(), l.Valid(), l.Remaining(), l.Token(), l.Owner())
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
	show("a waiter is granted at the release", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
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
	show("an owner re-enters, and the last release frees", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
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
	show("Do carries the owner, hands on errors and releases", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		failed := errors.New("failed")
		var held *lease.Lease
		err := one.Do(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			held = l
			return one.Do(ctx, key, func(ctx context.Context, again *lease.Lease) error {
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
	show("bad input is refused", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
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
	show("Close releases and refuses", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		must(t, one.Close(t.Context()))
		must(t, one.Close(t.Context()))
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		_, err := one.Acquire(t.Context(), key)
		wants(t, "Acquire", err, lease.ErrClosed)
		must(t, acquire(t.Context(), t, other, key).Release(t.Context()))
	})
	ownersBehave(show)
	ownersOfManagersBehave(show)
	sharedLeasesBehave(show)
	semaphoresBehave(show)
	keepingBehaves(show)
	togetherBehave(show)
	askingBehaves(show)
}

// show runs a behaviour with two managers and a key of its own.
type show = func(name string, f func(t *testing.T, one, other *lease.Manager, key txlock.Key))

// acquire acquires, and must succeed.
func acquire(ctx context.Context, t *testing.T, m *lease.Manager, key txlock.Key) *lease.Lease {
	t.Helper()
	l, err := m.Acquire(ctx, key)
	must(t, err)
	return l
}

func sharedLeasesBehave(show show) {
	read := func(ctx context.Context, t *testing.T, m *lease.Manager, key txlock.Key) *lease.Lease {
		t.Helper()
		l, err := m.TryAcquireShared(ctx, key)
		must(t, err)
		return l
	}
	show("readers and permits that are taken away are lost", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		first, second := read(t.Context(), t, one, key), read(t.Context(), t, other, key)
		must(t, other.ForceRelease(t.Context(), key))
		for _, l := range []*lease.Lease{first, second} {
			wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
			wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		}
		must(t, acquire(t.Context(), t, one, key).Release(t.Context()))
		wants(t, "ForceRelease", one.ForceRelease(t.Context(), key), txlock.ErrNotHeld)
		wants(t, "ForceRelease of a waiter", one.ForceRelease(t.Context(), key, -1), txlock.ErrInvalidOption)

		semaphore := txlock.Named(key.String() + "/permits")
		s, err := one.Semaphore(semaphore, 2)
		must(t, err)
		one1, err := s.TryAcquire(t.Context())
		must(t, err)
		two, err := s.TryAcquire(t.Context())
		must(t, err)
		must(t, other.ForceRelease(t.Context(), semaphore, 1))
		wants(t, "Renew of the first permit", one1.Renew(t.Context()), txlock.ErrLost)
		wants(t, "Release of the first permit", one1.Release(t.Context()), txlock.ErrNotHeld)
		must(t, two.Renew(t.Context()))
		must(t, two.Release(t.Context()))
	})
	show("readers read together and keep writers out", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		first, second := read(t.Context(), t, one, key), read(t.Context(), t, other, key)
		if !first.Shared() || first.Owner() == second.Owner() || first.Token() < since2000 || first.Remaining() <= 0 {
			t.Errorf("shared %t, owners %q and %q, token %d, left %v", first.Shared(), first.Owner(), second.Owner(), first.Token(), first.Remaining())
		}
		for _, m := range []*lease.Manager{one, other} {
			_, err := m.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
		}
		_, err := one.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		must(t, first.Renew(t.Context()))
		must(t, first.Release(t.Context()))
		_, err = one.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire beside one", err, txlock.ErrBusy)
		must(t, second.Release(t.Context()))
		writer := acquire(t.Context(), t, one, key)
		_, err = other.TryAcquireShared(t.Context(), key)
		wants(t, "TryAcquireShared", err, txlock.ErrBusy)
		_, err = other.AcquireShared(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		must(t, writer.Release(t.Context()))
		must(t, other.DoShared(t.Context(), key, func(ctx context.Context, l *lease.Lease) error {
			if !l.Shared() {
				t.Error("DoShared has it exclusively")
			}
			return errors.Join(ctx.Err(), l.Err())
		}))
	})
	show("a writer that waits keeps new readers out, and is next", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		first := read(t.Context(), t, one, key)
		granted := make(chan *lease.Lease)
		go func() {
			l, err := other.Acquire(t.Context(), key)
			if err != nil {
				t.Error(err)
			}
			granted <- l
		}()
		for {
			late, err := one.TryAcquireShared(t.Context(), key)
			if errors.Is(err, txlock.ErrBusy) {
				break
			}
			must(t, err)
			must(t, late.Release(t.Context()))
		}
		must(t, first.Release(t.Context()))
		writer := <-granted
		must(t, writer.Err())
		must(t, writer.Release(t.Context()))
	})
	show("a writer goes on to read without a gap", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		writer := acquire(t.Context(), t, one, key)
		granted := make(chan error)
		go func() {
			l, err := other.Acquire(t.Context(), key)
			if err == nil {
				err = l.Release(t.Context())
			}
			granted <- err
		}()
		reader, err := writer.Downgrade(t.Context())
		must(t, err)
		if !reader.Shared() || reader.Owner() != writer.Owner() {
			t.Errorf("shared %t, owner %q of %q", reader.Shared(), reader.Owner(), writer.Owner())
		}
		wants(t, "the writer", writer.Err(), txlock.ErrNotHeld)
		_, err = writer.Downgrade(t.Context())
		wants(t, "Downgrade of what was released", err, txlock.ErrNotHeld)
		_, err = reader.Downgrade(t.Context())
		wants(t, "Downgrade of a reader", err, txlock.ErrInvalidOption)
		_, err = one.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		must(t, reader.Err())
		must(t, reader.Release(t.Context()))
		must(t, <-granted)
	})
	show("a reader re-enters, and can't become a writer", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		first := read(t.Context(), t, one, key)
		ctx, cancel := first.Context(t.Context())
		defer cancel()
		second := read(ctx, t, one, key)
		if second.Token() != first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		_, err := one.TryAcquire(ctx, key)
		wants(t, "TryAcquire", err, txlock.ErrUpgrade)
		_, err = one.Acquire(ctx, key)
		wants(t, "Acquire", err, txlock.ErrUpgrade)
		must(t, first.Release(t.Context()))
		_, err = other.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		must(t, second.Release(t.Context()))
		writer := acquire(t.Context(), t, other, key)
		ctx, cancel = writer.Context(t.Context())
		defer cancel()
		same := read(ctx, t, other, key)
		if same.Shared() || same.Token() != writer.Token() {
			t.Errorf("a writer reads: shared %t, token %d of %d", same.Shared(), same.Token(), writer.Token())
		}
		must(t, same.Release(t.Context()))
		must(t, writer.Release(t.Context()))
	})
}

func semaphoresBehave(show show) {
	semaphore := func(t *testing.T, m *lease.Manager, key txlock.Key, permits int) *lease.Semaphore {
		t.Helper()
		s, err := m.Semaphore(key, permits)
		must(t, err)
		return s
	}
	take := func(ctx context.Context, t *testing.T, s *lease.Semaphore) *lease.Lease {
		t.Helper()
		l, err := s.TryAcquire(ctx)
		must(t, err)
		return l
	}
	show("a semaphore has its number of permits", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		s, same := semaphore(t, one, key, 2), semaphore(t, other, key, 2)
		ctx := lease.WithOwner(t.Context(), "owner:"+rand.Text())
		first, second := take(ctx, t, s), take(ctx, t, s) // is not re-entered
		if first.Shared() || first.Token() < since2000 || first.Key() != key || first.Owner() != second.Owner() {
			t.Errorf("permit of %v, shared %t, token %d, owners %q and %q", first.Key(), first.Shared(), first.Token(), first.Owner(), second.Owner())
		}
		for _, s := range []*lease.Semaphore{s, same} {
			_, err := s.TryAcquire(ctx)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
			_, err = s.Acquire(t.Context(), lease.WaitAtMost(30*time.Millisecond))
			wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		}
		must(t, second.Renew(t.Context()))
		must(t, first.Release(t.Context()))
		must(t, same.Do(t.Context(), func(ctx context.Context, l *lease.Lease) error { return errors.Join(ctx.Err(), l.Err()) }))
		must(t, second.Err())
		must(t, second.Release(t.Context()))
	})
	show("a semaphore is resized for all", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		s, old := semaphore(t, one, key, 1), semaphore(t, other, key, 1)
		_, err := s.Resize(t.Context(), 2)
		wants(t, "Resize of what was never used", err, txlock.ErrInvalidKey)
		first := take(t.Context(), t, s)
		s, err = s.Resize(t.Context(), 2)
		must(t, err)
		_, err = old.TryAcquire(t.Context())
		wants(t, "the old number", err, txlock.ErrInvalidOption)
		second := take(t.Context(), t, s)
		var ended context.Context
		for patience, resized := 100*time.Millisecond, (*lease.Semaphore)(nil); resized == nil; patience *= 2 {
			var cancel context.CancelFunc
			ended, cancel = context.WithTimeout(t.Context(), patience)
			defer cancel()
			resized, err = s.Resize(ended, 1) // nil if the number was not told in time
			wants(t, "Resize under what is held", err, context.DeadlineExceeded)
			s = cmp.Or(resized, s)
		}
		must(t, first.Release(t.Context()))
		only := take(t.Context(), t, s) // the first, while the second is too many
		_, err = s.TryAcquire(t.Context())
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		resized := make(chan error)
		go func() {
			_, err := s.Resize(t.Context(), 1)
			resized <- err
		}()
		must(t, second.Release(t.Context()))
		must(t, <-resized)
		must(t, only.Release(t.Context()))
		_, err = s.Resize(t.Context(), lease.MaxPermits+1)
		wants(t, "too many", err, txlock.ErrInvalidOption)
		_, err = s.Resize(ended, 2)
		wants(t, "an ended context", err, context.DeadlineExceeded)
	})
	show("a key has one use", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		permit := take(t.Context(), t, semaphore(t, one, key, 2))
		_, err := semaphore(t, other, key, 3).TryAcquire(t.Context())
		wants(t, "another number", err, txlock.ErrInvalidOption)
		for _, call := range []func(context.Context, txlock.Key, ...lease.AcquireOption) (*lease.Lease, error){other.TryAcquire, other.Acquire, other.TryAcquireShared, other.AcquireShared} {
			_, err := call(t.Context(), key)
			wants(t, "a lease of a semaphore", err, txlock.ErrInvalidKey)
		}
		_, err = permit.Downgrade(t.Context())
		wants(t, "Downgrade of a permit", err, txlock.ErrInvalidKey)
		must(t, permit.Release(t.Context()))
		read, err := one.AcquireShared(t.Context(), txlock.Named(key.String()+":shared"))
		must(t, err)
		_, err = semaphore(t, other, read.Key(), 3).TryAcquire(t.Context())
		wants(t, "a permit of a shared lease", err, txlock.ErrInvalidKey)
		must(t, read.Release(t.Context()))
		_, err = one.Semaphore(key, 0)
		wants(t, "no permits", err, txlock.ErrInvalidOption)
		_, err = one.Semaphore(orders.Key(0), 1)
		wants(t, "no key", err, txlock.ErrInvalidKey)
	})
	show("Close releases readers and permits", func(t *testing.T, one, other *lease.Manager, key txlock.Key) {
		shared := txlock.Named(key.String() + ":shared")
		permit := take(t.Context(), t, semaphore(t, one, key, 1))
		read, err := one.AcquireShared(t.Context(), shared)
		must(t, err)
		must(t, one.Close(t.Context()))
		wants(t, "the permit", permit.Err(), txlock.ErrNotHeld)
		wants(t, "the reader", read.Err(), txlock.ErrNotHeld)
		_, err = one.AcquireShared(t.Context(), shared)
		wants(t, "AcquireShared", err, lease.ErrClosed)
		_, err = semaphore(t, one, key, 1).TryAcquire(t.Context())
		wants(t, "TryAcquire", err, lease.ErrClosed)
		must(t, take(t.Context(), t, semaphore(t, other, key, 1)).Release(t.Context()))
		must(t, acquire(t.Context(), t, other, shared).Release(t.Context()))
	})
}

package lockmock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockmock"
)

// manager is a manager on the mock, and what is expected of it.
func (m *mocked) manager(options ...lease.ManagerOption) (*lease.Manager, *lockmock.Leases) {
	m.Helper()
	manager, err := lease.NewManager(m.db, append(options, lease.TTL(time.Hour))...)
	must(m, err)
	m.Cleanup(func() { must(m, manager.Close(m.Context())) })
	return manager, lockmock.ExpectLeases(m, m.mock, m.server)
}

// TestLeases makes every call on a lease on a mock, with every outcome.
func TestLeases(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx := m.Context()
		manager, leases := m.manager()
		for _, key := range []txlock.Key{orders.Key(7), carts.Key("k")} { // prepared, and prepared already
			leases.ExpectAcquire(key).Busy()
			_, err := manager.TryAcquire(ctx, key)
			wants(m, "TryAcquire", err, txlock.ErrBusy)

			missing := &mysql.MySQLError{Number: 1146, Message: "no table"}
			leases.ExpectAcquire(key).Fails(missing)
			_, err = manager.Acquire(ctx, key)
			wants(m, "Acquire", err, missing)
			wants(m, "Acquire", err, txlock.ErrSchema)

			leases.ExpectAcquire(key).Granted(41)
			leases.ExpectRenew(key).Succeeds()
			l, err := manager.Acquire(ctx, key)
			must(m, err)
			if l.Token() != 41 {
				m.Errorf("token %d", l.Token())
			}
			must(m, l.Renew(ctx))
			tx := m.begin()
			leases.ExpectGuard(key).Succeeds()
			must(m, l.Guard(ctx, tx))
			leases.ExpectGuard(key, txlock.NothingRead()).Succeeds()
			must(m, l.Guard(ctx, tx, txlock.NothingRead()))
			leases.ExpectGuard(key).Stale()
			wants(m, "Guard", l.Guard(ctx, tx), txlock.ErrStaleSnapshot)
			leases.ExpectGuard(key).Lost()
			wants(m, "Guard", l.Guard(ctx, tx), txlock.ErrLost)
			m.end(tx)
			leases.ExpectRelease(key).NotHeld()
			wants(m, "Release", l.Release(ctx), txlock.ErrNotHeld)

			leases.ExpectAcquire(key).Granted(42)
			leases.ExpectRelease(key).Succeeds()
			l, err = manager.TryAcquire(ctx, key)
			must(m, err)
			must(m, l.Release(ctx))

			leases.ExpectAcquire(key).Granted(43)
			leases.ExpectRenew(key).Lost()
			leases.ExpectRelease(key).NotHeld()
			l, err = manager.TryAcquire(ctx, key)
			must(m, err)
			wants(m, "Renew", l.Renew(ctx), txlock.ErrLost)
			wants(m, "Release", l.Release(ctx), txlock.ErrNotHeld)
		}
	})
}

// TestSharedLeases makes every call on shared leases on a mock, with every outcome.
func TestSharedLeases(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx := m.Context()
		manager, leases := m.manager()
		for _, key := range []txlock.Key{orders.Key(7), carts.Key("k")} {
			leases.ExpectAcquireShared(key).Busy()
			_, err := manager.TryAcquireShared(ctx, key)
			wants(m, "TryAcquireShared", err, txlock.ErrBusy)

			missing := &mysql.MySQLError{Number: 1146, Message: "no table"}
			leases.ExpectAcquireShared(key).Fails(missing)
			_, err = manager.AcquireShared(ctx, key)
			wants(m, "AcquireShared", err, missing)

			leases.ExpectAcquireShared(key).Granted(41)
			leases.ExpectAcquireShared(key).Granted(42)
			first, err := manager.AcquireShared(ctx, key)
			must(m, err)
			second, err := manager.TryAcquireShared(ctx, key)
			must(m, err)
			if !first.Shared() || first.Token() != 41 || second.Token() != 42 {
				m.Errorf("shared %t, tokens %d and %d", first.Shared(), first.Token(), second.Token())
			}
			leases.ExpectRenew(key).Succeeds()
			must(m, second.Renew(ctx))
			tx := m.begin()
			leases.ExpectGuard(key).Succeeds()
			must(m, second.Guard(ctx, tx))
			m.end(tx)
			leases.ExpectRelease(key).Succeeds()
			must(m, second.Release(ctx))
			leases.ExpectRelease(key).NotHeld()
			wants(m, "Release", first.Release(ctx), txlock.ErrNotHeld)

			leases.ExpectAcquire(key).Granted(50)
			writer, err := manager.Acquire(ctx, key)
			must(m, err)
			leases.ExpectDowngrade(key).Busy()
			_, err = writer.Downgrade(ctx)
			wants(m, "Downgrade", err, txlock.ErrBusy)
			leases.ExpectDowngrade(key).Granted(51)
			reader, err := writer.Downgrade(ctx)
			must(m, err)
			wants(m, "the writer", writer.Err(), txlock.ErrNotHeld)
			if !reader.Shared() || reader.Token() != 51 {
				m.Errorf("shared %t, token %d", reader.Shared(), reader.Token())
			}
			leases.ExpectRelease(key).Succeeds()
			must(m, reader.Release(ctx))
		}
	})
}

// TestSemaphores makes every call on semaphores on a mock, with every outcome.
func TestSemaphores(t *testing.T) {
	onMocks(t, func(m *mocked) {
		ctx := m.Context()
		manager, leases := m.manager()
		for _, key := range []txlock.Key{orders.Key(7), carts.Key("k")} {
			s, err := manager.Semaphore(key, 2)
			must(m, err)
			leases.ExpectPermit(key, 2).Busy()
			_, err = s.TryAcquire(ctx)
			wants(m, "TryAcquire", err, txlock.ErrBusy)

			missing := &mysql.MySQLError{Number: 1146, Message: "no table"}
			leases.ExpectPermit(key, 2).Fails(missing)
			_, err = s.Acquire(ctx)
			wants(m, "Acquire", err, missing)

			leases.ExpectPermit(key, 2).Granted(41)
			leases.ExpectPermit(key, 2).Granted(40)
			first, err := s.Acquire(ctx)
			must(m, err)
			second, err := s.TryAcquire(ctx)
			must(m, err)
			if first.Token() != 41 || second.Token() != 40 {
				m.Errorf("tokens %d and %d", first.Token(), second.Token())
			}
			tx := m.begin()
			leases.ExpectGuard(key).Succeeds()
			must(m, second.Guard(ctx, tx))
			m.end(tx)
			for _, l := range []*lease.Lease{second, first} {
				leases.ExpectRelease(key).Succeeds()
				must(m, l.Release(ctx))
			}

			leases.ExpectResize(key, 2, 3).Fails(missing)
			_, err = s.Resize(ctx, 3)
			wants(m, "Resize", err, missing)
			leases.ExpectResize(key, 2, 3).Succeeds()
			s, err = s.Resize(ctx, 3)
			must(m, err)
			leases.ExpectResize(key, 3, 1).Succeeds()
			s, err = s.Resize(ctx, 1)
			must(m, err)
			leases.ExpectPermit(key, 1).Granted(42)
			leases.ExpectRelease(key).Succeeds()
			must(m, s.Do(ctx, func(ctx context.Context, l *lease.Lease) error { return errors.Join(ctx.Err(), l.Err()) }))
		}
	})
}

// logged is a test whose log is read.
type logged struct {
	testing.TB
	mu       sync.Mutex
	log      strings.Builder
	cleanups []func()
}

func (l *logged) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }
func (l *logged) Logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.log, format+"\n", args...)
}

// TestLeaseFailuresAreClear reads what a test says whose program doesn't make a call on a
// lease, whatever the matcher and the statement that is missing first.
func TestLeaseFailuresAreClear(t *testing.T) {
	t.Parallel()
	for name, matcher := range map[string]sqlmock.QueryMatcher{"regexp": sqlmock.QueryMatcherRegexp, "equal": sqlmock.QueryMatcherEqual} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMock(t, matcher)
			manager, err := lease.NewManager(m.db, lease.TTL(time.Hour))
			must(t, err)
			said := &logged{TB: t}
			leases := lockmock.ExpectLeases(said, m.mock)
			made, missing := orders.Key(7), orders.Key(8)
			leases.ExpectAcquire(made).Granted(41)
			leases.ExpectRelease(made).Succeeds()
			leases.ExpectAcquireShared(missing).Granted(42)
			leases.ExpectDowngrade(missing) // says no outcome, and so expects nothing
			l, err := manager.Acquire(t.Context(), made)
			must(t, err)
			must(t, l.Release(t.Context()))
			_, err = manager.TryAcquire(t.Context(), missing)
			if err == nil || !strings.Contains(err.Error(), "ShareLease") && !strings.Contains(err.Error(), "SHOW GLOBAL VARIABLES") {
				t.Errorf("what is not expected was answered by %v", err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			must(t, manager.Close(ended))
			for _, cleanup := range said.cleanups {
				cleanup()
			}
			if log, want := said.log.String(), "lockmock: AcquireShared(\"order:8\") was expected and not made\n"; log != want {
				t.Errorf("the log says %q, want %q", log, want)
			}
		})
	}
}

// TestFairLeases takes leases in turn, which is another statement.
func TestFairLeases(t *testing.T) {
	onMocks(t, func(m *mocked) {
		key := orders.Key(7)
		manager, leases := m.manager(lease.Fair())
		leases.ExpectAcquire(key, lease.Fair()).Granted(41)
		leases.ExpectRelease(key).Succeeds()
		l, err := manager.Acquire(m.Context(), key)
		must(m, err)
		must(m, l.Release(m.Context()))
	})
}

// TestAcquireTx takes a lease in a transaction on a mock.
func TestAcquireTx(t *testing.T) {
	onMocks(t, func(m *mocked) {
		key := orders.Key(7)
		manager, leases := m.manager()
		tx := m.begin()
		leases.ExpectAcquireTx(key).Busy()
		_, err := manager.AcquireTx(m.Context(), tx, key)
		wants(m, "AcquireTx", err, txlock.ErrBusy)
		leases.ExpectAcquireTx(key).Granted(41)
		l, err := manager.AcquireTx(m.Context(), tx, key)
		must(m, err)
		m.mock.ExpectCommit()
		must(m, tx.Commit())
		leases.ExpectRelease(key).Succeeds()
		must(m, l.Release(m.Context()))
	})
}

// TestGuardedRun is the pattern of a job under a lease: Do, Run, Guard.
func TestGuardedRun(t *testing.T) {
	for name, lost := range map[string]bool{"held": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			onMocks(t, func(m *mocked) {
				// The context ends with the lease, and database/sql may throw the
				// connection away; a mock needs one that stays.
				other, err := m.db.Conn(m.Context())
				must(m, err)
				defer func() { must(m, other.Close()) }()
				key := txlock.Named("settlement")
				manager, leases := m.manager()
				leases.ExpectAcquire(key).Granted(41)
				run := lockmock.ExpectRun(m.mock, nil, m.server).Granted()
				m.mock.ExpectExec("UPDATE t").WillReturnResult(sqlmock.NewResult(0, 1))
				want := error(nil)
				if lost {
					want = txlock.ErrLost
					leases.ExpectGuard(key).Lost()
					run.RollsBack()
					leases.ExpectRelease(key).NotHeld()
				} else {
					leases.ExpectGuard(key).Succeeds()
					run.Commits()
					leases.ExpectRelease(key).Succeeds()
				}
				err = manager.Do(m.Context(), key, func(ctx context.Context, l *lease.Lease) error {
					return locksqlc.Run(ctx, m.db, nil, func(tx *sql.Tx) error {
						if _, err := tx.ExecContext(ctx, "UPDATE t"); err != nil {
							return err
						}
						return l.Guard(ctx, tx)
					})
				})
				wants(m, "Do", err, want)
			})
		})
	}
}

// TestLeaseMistakes makes expectations that no call can meet.
func TestLeaseMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		expect func(l *lockmock.Leases)
		says   string
	}{
		"not granted": {func(l *lockmock.Leases) { l.ExpectRelease(orders.Key(7)).Succeeds() }, `say ExpectAcquire("order:7").Granted before`},
		"small token": {func(l *lockmock.Leases) { l.ExpectAcquire(orders.Key(7)).Granted(7) }, `Acquire("order:7") can't be granted with token 7`},
		"permits":     {func(l *lockmock.Leases) { l.ExpectPermit(orders.Key(7), 0).Granted(41) }, txlock.ErrInvalidOption.Error()},
		"resized":     {func(l *lockmock.Leases) { l.ExpectResize(orders.Key(7), 2, 1001).Succeeds() }, txlock.ErrInvalidOption.Error()},
		"downgraded twice": {func(l *lockmock.Leases) {
			l.ExpectAcquireShared(orders.Key(7)).Granted(41)
			l.ExpectDowngrade(orders.Key(7)).Granted(42)
		}, txlock.ErrInvalidOption.Error()},
		"tried again": {func(l *lockmock.Leases) { l.ExpectAcquire(orders.Key(7)).Fails(&mysql.MySQLError{Number: 1213}) }, "tries again"},
		"zero key":    {func(l *lockmock.Leases) { l.ExpectAcquire(orders.Key(0)).Granted(41) }, txlock.ErrInvalidKey.Error()},
		"nothing read": {func(l *lockmock.Leases) {
			l.ExpectAcquire(orders.Key(7)).Granted(41)
			l.ExpectGuard(orders.Key(7), txlock.NothingRead()).Stale()
		}, txlock.ErrStaleSnapshot.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMock(t, sqlmock.QueryMatcherRegexp)
			m.mock.MatchExpectationsInOrder(false) // some are left
			leases := lockmock.ExpectLeases(t, m.mock)
			defer func() {
				if said, ok := recover().(string); !ok || !strings.Contains(said, c.says) {
					t.Errorf("it says %q, want %q in it", said, c.says)
				}
			}()
			c.expect(leases)
		})
	}
}

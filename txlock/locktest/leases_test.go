package locktest_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
)

// manager is a manager on the mock, and what is expected of it.
func (m *mocked) manager(options ...lease.ManagerOption) (*lease.Manager, *locktest.Leases) {
	m.Helper()
	manager, err := lease.NewManager(m.db, append(options, lease.TTL(time.Hour))...)
	must(m, err)
	m.Cleanup(func() { must(m, manager.Close(context.Background())) })
	return manager, locktest.ExpectLeases(m, m.mock, m.server)
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
				run := locktest.ExpectRun(m.mock, nil, m.server).Granted()
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
		expect func(l *locktest.Leases)
		says   string
	}{
		"not granted": {func(l *locktest.Leases) { l.ExpectRelease(orders.Key(7)).Succeeds() }, `say ExpectAcquire("order:7").Granted before`},
		"small token": {func(l *locktest.Leases) { l.ExpectAcquire(orders.Key(7)).Granted(7) }, `Acquire("order:7")`},
		"tried again": {func(l *locktest.Leases) { l.ExpectAcquire(orders.Key(7)).Fails(&mysql.MySQLError{Number: 1213}) }, "tries again"},
		"zero key":    {func(l *locktest.Leases) { l.ExpectAcquire(orders.Key(0)).Granted(41) }, txlock.ErrInvalidKey.Error()},
		"nothing read": {func(l *locktest.Leases) {
			l.ExpectAcquire(orders.Key(7)).Granted(41)
			l.ExpectGuard(orders.Key(7), txlock.NothingRead()).Stale()
		}, txlock.ErrStaleSnapshot.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMock(t, sqlmock.QueryMatcherRegexp)
			m.mock.MatchExpectationsInOrder(false) // some are left
			leases := locktest.ExpectLeases(t, m.mock)
			defer func() {
				if said, ok := recover().(string); !ok || !strings.Contains(said, c.says) {
					t.Errorf("it says %q, want %q in it", said, c.says)
				}
			}()
			c.expect(leases)
		})
	}
}

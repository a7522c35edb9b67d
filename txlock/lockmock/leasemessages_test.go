package lockmock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockmock"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// managed is a program that has a manager.
func managed(work func(ctx context.Context, m *lease.Manager) error) func(m *mocked) error {
	return func(m *mocked) error {
		manager, err := lease.NewManager(m.db, lease.TTL(time.Hour))
		must(m, err)
		err = work(m.Context(), manager)
		ended, cancel := context.WithCancel(m.Context())
		cancel()
		if closed := manager.Close(ended); !errors.Is(closed, context.Canceled) {
			must(m, closed) // without an error where it holds nothing
		}
		return err
	}
}

func leases(expect func(l *lockmock.Leases)) func(m *mocked) {
	return func(m *mocked) { expect(lockmock.ExpectLeases(m, m.mock, m.server)) }
}

// acquires acquires leases and calls a function with each.
func acquires(then func(ctx context.Context, l *lease.Lease) error, keys ...txlock.Key) func(m *mocked) error {
	return managed(func(ctx context.Context, m *lease.Manager) error {
		for _, key := range keys {
			l, err := m.TryAcquire(ctx, key)
			if err != nil {
				return err
			}
			if err := then(ctx, l); err != nil {
				return err
			}
		}
		return nil
	})
}

func nothing(context.Context, *lease.Lease) error { return nil }

func expectLeaseOf7(l *lockmock.Leases) { l.ExpectAcquire(orders.Key(7)).Granted(41) }

// leaseFailures are those of calls on a manager.
var leaseFailures = map[string]failure{
	"lease of the wrong key": {
		leases(expectLeaseOf7), acquires(nothing, orders.Key(8)), `lease "order:8"`,
		[]string{`Acquire("order:7"), in place of which came the key "order:8"`}, true,
	},
	"shared lease": {
		leases(expectLeaseOf7),
		managed(func(ctx context.Context, m *lease.Manager) error {
			_, err := m.TryAcquireShared(ctx, orders.Key(7))
			return err
		}), `shared lease "order:7"`, []string{`Acquire("order:7")`}, true,
	},
	"permit": {
		leases(func(l *lockmock.Leases) { l.ExpectPermit(orders.Key(7), 3).Granted(41) }),
		acquires(nothing, orders.Key(7)), `lease "order:7"`, []string{`Semaphore(3).Acquire("order:7")`}, true,
	},
	"leases in the wrong order": {
		leases(func(l *lockmock.Leases) {
			l.ExpectAcquire(orders.Key(7)).Granted(41)
			l.ExpectAcquire(orders.Key(8)).Granted(42)
		}),
		acquires(nothing, orders.Key(8), orders.Key(7)), `lease "order:8"`,
		[]string{`Acquire("order:7"), in place of which came the key "order:8"`, `Acquire("order:8")`}, true,
	},
	"no renewal": {
		leases(func(l *lockmock.Leases) { expectLeaseOf7(l); l.ExpectRenew(orders.Key(7)).Succeeds() }),
		acquires(nothing, orders.Key(7)), "", []string{`Renew("order:7")`}, false,
	},
	"a renewal too many": {
		leases(expectLeaseOf7), acquires(func(ctx context.Context, l *lease.Lease) error { return l.Renew(ctx) }, orders.Key(7)),
		"renew lease", nil, false,
	},
	"no release": {
		leases(func(l *lockmock.Leases) { expectLeaseOf7(l); l.ExpectRelease(orders.Key(7)).Succeeds() }),
		managed(func(context.Context, *lease.Manager) error { return nil }), "",
		[]string{`Acquire("order:7")`, `Release("order:7")`}, true,
	},
	"another statement before the lease": {
		leases(expectLeaseOf7),
		func(m *mocked) error {
			_, err := m.db.ExecContext(m.Context(), "UPDATE t")
			return err
		}, "UPDATE t", []string{`Acquire("order:7")`}, true,
	},
}

// TestQuorumMessages reads what a test is told whose program asks a majority for another
// lease: the mocks of the majority name it.
func TestQuorumMessages(t *testing.T) {
	t.Parallel()
	var mocks []sqlmock.Sqlmock
	var managers []*lease.Manager
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		m := newMock(t, sqlmock.QueryMatcherEqual)
		manager, err := lease.NewManager(m.db, lease.TTL(time.Hour))
		must(t, err)
		t.Cleanup(func() {
			if err := manager.Close(ended); !errors.Is(err, context.Canceled) {
				must(t, err)
			}
		})
		mocks, managers = append(mocks, m.mock), append(managers, manager)
	}
	leases, err := quorum.New(managers, quorum.MaxTTL(2*time.Hour), quorum.NodeTimeout(time.Minute))
	must(t, err)
	lockmock.ExpectQuorum(t, mocks).ExpectAcquire(orders.Key(7)).Granted(41)
	_, err = leases.TryAcquire(t.Context(), orders.Key(8))
	wants(t, "TryAcquire", err, txlock.ErrNoQuorum)
	if err := leases.Close(ended); !errors.Is(err, context.Canceled) {
		must(t, err)
	}
	// One of these two was asked for certain, the other may be asked later.
	said := errors.Join(lockmock.ExpectationsWereMet(mocks[0]), lockmock.ExpectationsWereMet(mocks[1]))
	if want := `Acquire("order:7"), in place of which came the key "order:8"`; said == nil || !strings.Contains(said.Error(), want) {
		t.Errorf("the test is told %v, want %q in it", said, want)
	}
}

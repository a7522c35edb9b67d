package lockmock_test

import (
	"context"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/lockmock"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestQuorumOnMocks is refused a lease, and takes one and releases it, by a majority of
// mocks.
func TestQuorumOnMocks(t *testing.T) {
	onMocks(t, func(m *mocked) {
		matcher := sqlmock.QueryMatcherRegexp
		if m.equal {
			matcher = sqlmock.QueryMatcherEqual
		}
		nodes := []*mocked{m, newMock(m.T, matcher), newMock(m.T, matcher)}
		var mocks []sqlmock.Sqlmock
		var managers []*lease.Manager
		for _, node := range nodes {
			manager, err := lease.NewManager(node.db, lease.TTL(time.Hour))
			must(m, err)
			m.Cleanup(func() { must(m, manager.Close(m.Context())) })
			mocks, managers = append(mocks, node.mock), append(managers, manager)
		}
		leases, err := quorum.New(managers, quorum.MaxTTL(2*time.Hour), quorum.NodeTimeout(time.Minute))
		must(m, err)
		expected := lockmock.ExpectQuorum(m, mocks, m.server)
		key := orders.Key(7)
		expected.ExpectAcquire(carts.Key("k")).Busy()
		expected.ExpectAcquire(key).Granted(41)
		expected.ExpectRelease(key)
		_, err = leases.TryAcquire(m.Context(), carts.Key("k"))
		wants(m, "TryAcquire", err, txlock.ErrBusy)
		must(m, leases.Do(m.Context(), key, func(_ context.Context, l *quorum.Lease) error {
			if l.Token() != 41 {
				t.Errorf("token %d", l.Token())
			}
			return l.Err()
		}))
		must(m, leases.Close(context.Background()))
		for _, node := range nodes[1:2] {
			node.met()
		}
	})
}

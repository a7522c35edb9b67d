package locktest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// quorumOf returns a manager of leases over several memories, and closes all when the test
// ends.
func quorumOf(t *testing.T, memories []*locktest.Kit, options ...lease.ManagerOption) *quorum.Manager {
	t.Helper()
	var managers []*lease.Manager
	for _, memory := range memories {
		managers = append(managers, leasesOf(t, memory, options...))
	}
	q, err := quorum.New(managers)
	must(t, err)
	t.Cleanup(func() { must(t, q.Close(context.Background())) })
	must(t, q.Install(t.Context()))
	return q
}

// TestQuorumBehaviours shows that leases over three memories and over three databases
// behave alike.
func TestQuorumBehaviours(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		quorumBehaves(t, inBubble, func(t *testing.T) (one, other *quorum.Manager, fail func() error) {
			memories := []*locktest.Kit{locktest.Open(t, nil), locktest.Open(t, nil), locktest.Open(t, nil)}
			return quorumOf(t, memories), quorumOf(t, memories), func() error {
				memories[0].Disconnect()
				memories[2].Disconnect()
				return txlock.ErrNoQuorum // as one
			}
		})
	})
	t.Run("servers", func(t *testing.T) {
		engines := testdb.Engines()
		statements, err := schema.Statements()
		must(t, err)
		var nodes []*testdb.DB
		for i := range 3 {
			db := testdb.Fresh(t, engines[i%len(engines)])
			for _, s := range statements {
				if strings.Contains(s, "lockstep_leases") {
					db.Exec(t, s)
				}
			}
			db.Grant(t, "lockstep_leases")
			nodes = append(nodes, db)
		}
		newQuorum := func(t *testing.T) (*quorum.Manager, func()) {
			var managers []*lease.Manager
			var pools []*sql.DB
			for _, node := range nodes {
				connector, err := mysql.NewConnector(node.Config())
				must(t, err)
				pool := sql.OpenDB(locksqlc.Connector(connector))
				m, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
				must(t, err)
				t.Cleanup(func() { must(t, errors.Join(m.Close(t.Context()), pool.Close())) })
				managers, pools = append(managers, m), append(pools, pool)
			}
			q, err := quorum.New(managers, quorum.NodeTimeout(10*time.Second)) // a busy machine's nodes answer late
			must(t, err)
			t.Cleanup(func() { must(t, q.Close(context.Background())) })
			must(t, q.Install(t.Context()))
			return q, func() { must(t, errors.Join(pools[0].Close(), pools[2].Close())) }
		}
		quorumBehaves(t, outside, func(t *testing.T) (one, other *quorum.Manager, fail func() error) {
			one, closePools := newQuorum(t)
			other, _ = newQuorum(t)
			return one, other, func() error {
				closePools()
				return txlock.ErrBusy // it has pools of its own
			}
		})
	})
}

// quorumBehaves shows it with two managers of the same databases. Fail cuts the first off
// from a majority, and returns what the other meets then.
func quorumBehaves(t *testing.T, run func(*testing.T, func(*testing.T)), newQuorums func(t *testing.T) (one, other *quorum.Manager, fail func() error)) {
	failing := func(name string, f func(t *testing.T, one, other *quorum.Manager, fail func() error, key txlock.Key)) {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T) {
				one, other, fail := newQuorums(t)
				f(t, one, other, fail, txlock.Named("test:"+rand.Text()))
			})
		})
	}
	show := func(name string, f func(t *testing.T, one, other *quorum.Manager, key txlock.Key)) {
		failing(name, func(t *testing.T, one, other *quorum.Manager, _ func() error, key txlock.Key) { f(t, one, other, key) })
	}
	acquire := func(ctx context.Context, t *testing.T, q *quorum.Manager, key txlock.Key) *quorum.Lease {
		t.Helper()
		l, err := q.Acquire(ctx, key)
		must(t, err)
		return l
	}
	ownersBehave(show)
	show("a lease excludes until its release, and tokens rise", func(t *testing.T, one, other *quorum.Manager, key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		for _, q := range []*quorum.Manager{one, other} {
			_, err := q.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
		}
		_, err := other.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		must(t, l.Renew(t.Context()))
		if l.Key() != key || !l.Valid() || l.Remaining() <= 0 || l.Token() < since2000 || l.Owner() == "" {
			t.Errorf("lease of %v, valid %t, left %v, token %d, owner %q", l.Key(), l.Valid(), l.Remaining(), l.Token(), l.Owner())
		}
		granted := make(chan *quorum.Lease)
		go func() {
			next, err := other.Acquire(t.Context(), key)
			if err != nil {
				t.Error(err)
			}
			granted <- next
		}()
		must(t, l.Release(t.Context()))
		must(t, l.Release(t.Context()))
		<-l.Done()
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNotHeld)
		_, err = l.Node(0)
		wants(t, "Node", err, txlock.ErrNotHeld)
		next := <-granted
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		must(t, next.Release(t.Context()))
	})
	show("an owner re-enters in its manager, and there only", func(t *testing.T, one, other *quorum.Manager, key txlock.Key) {
		ctx := lease.WithOwner(t.Context(), "owner:"+rand.Text())
		first, second := acquire(ctx, t, one, key), acquire(ctx, t, one, key)
		if first.Token() != second.Token() || first.Owner() != second.Owner() {
			t.Errorf("tokens %d and %d, owners %q and %q", first.Token(), second.Token(), first.Owner(), second.Owner())
		}
		_, err := other.TryAcquire(ctx, key)
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		must(t, first.Release(t.Context()))
		must(t, second.Err())
		must(t, second.Release(t.Context()))
		must(t, one.Do(t.Context(), key, func(ctx context.Context, l *quorum.Lease) error { return errors.Join(ctx.Err(), l.Err()) }))
	})
	show("a node's lease is there to guard", func(t *testing.T, one, _ *quorum.Manager, key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		held := 0
		for i := range 3 {
			node, err := l.Node(i)
			if err != nil {
				wants(t, "Node", err, txlock.ErrNotHeld) // it has not answered yet
				continue
			}
			held++
			wants(t, "Guard", node.Guard(t.Context(), nil), txlock.ErrNoTransaction)
		}
		if held < 2 {
			t.Errorf("%d nodes", held)
		}
		_, err := l.Node(3)
		wants(t, "Node(3)", err, txlock.ErrInvalidOption)
		must(t, l.Release(t.Context()))
	})
	failing("without a majority nothing is granted, renewed or released", func(t *testing.T, one, other *quorum.Manager, fail func() error, key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		for i := range 3 { // all of them hold it
			for end := time.Now().Add(20 * time.Second); ; {
				if _, err := l.Node(i); err == nil {
					break
				} else if time.Now().After(end) {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
		}
		othersError := fail()
		for _, acquire := range []func(context.Context, txlock.Key, ...lease.AcquireOption) (*quorum.Lease, error){one.TryAcquire, one.Acquire} {
			_, err := acquire(t.Context(), txlock.Named("free:"+rand.Text()))
			wants(t, "without a majority", err, txlock.ErrNoQuorum)
		}
		wants(t, "Install", one.Install(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNoQuorum)
		must(t, l.Err()) // until its time is over
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		_, err := other.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire of what could not be released", err, othersError)
	})
	show("bad input is refused", func(t *testing.T, one, _ *quorum.Manager, key txlock.Key) {
		_, err := one.Acquire(t.Context(), orders.Key(0))
		wants(t, "zero key", err, txlock.ErrInvalidKey)
		for _, option := range []lease.AcquireOption{lease.TTL(2 * time.Minute), lease.Fair(), lease.WaitAtMost(0)} {
			_, err = one.TryAcquire(t.Context(), key, option)
			wants(t, "an option", err, txlock.ErrInvalidOption)
		}
		if err := one.Do(t.Context(), key, nil); err == nil {
			t.Error("Do without a function")
		}
	})
	show("Close releases and refuses", func(t *testing.T, one, other *quorum.Manager, key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		must(t, one.Close(t.Context()))
		must(t, one.Close(t.Context()))
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		_, err := one.Acquire(t.Context(), key)
		wants(t, "Acquire", err, quorum.ErrClosed)
		wants(t, "Install", one.Install(t.Context()), quorum.ErrClosed)
		must(t, acquire(t.Context(), t, other, key).Release(t.Context()))
	})
}

// TestQuorumLoses lets databases fail and come back: a minority does no harm, and without a
// majority a lease is lost when its time is over.
func TestQuorumLoses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var memories []*locktest.Kit
		for range 5 {
			memories = append(memories, locktest.Open(t, nil))
		}
		q, key := quorumOf(t, memories, lease.TTL(30*time.Second)), txlock.Named("job")
		memories[3].Disconnect()
		memories[4].Disconnect()
		l, err := q.Acquire(t.Context(), key)
		must(t, err)
		_, err = l.Node(3)
		wants(t, "Node of a database that fails", err, txlock.ErrNotHeld)
		time.Sleep(time.Hour)
		must(t, l.Err())
		node, err := l.Node(0)
		must(t, err)
		if node.Token() != l.Token() {
			t.Errorf("token %d of %d", node.Token(), l.Token())
		}
		memories[0].Disconnect()
		refused := make(chan error)
		go func() { _, err := q.Acquire(t.Context(), key); refused <- err }()
		wants(t, "a wait", <-refused, txlock.ErrNoQuorum)
		time.Sleep(30 * time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		memories[0].Reconnect()
		must(t, q.Do(t.Context(), key, func(context.Context, *quorum.Lease) error { return nil }))
	})
}

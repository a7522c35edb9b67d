package locktest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/locktest"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// aQuorumLease is what quorum.Lease and its stand-in have in common.
type aQuorumLease[N aGuard] interface {
	aHandle
	Node(index int) (N, error)
}

type aGuard interface {
	Guard(ctx context.Context, tx txlock.Tx, options ...txlock.JoinOption) error
}

// aQuorum is what quorum.Manager and its stand-in have in common.
type aQuorum[L aHandle] interface {
	anAcquirer[L]
	Install(ctx context.Context) error
}

var (
	_ aQuorum[*quorum.Lease]         = (*quorum.Manager)(nil)
	_ aQuorum[*locktest.QuorumLease] = (*locktest.Quorum)(nil)
	_ anAcquirer[*lease.Lease]       = (*lease.Manager)(nil) // which one interface takes, too
	_ anAcquirer[*locktest.Lease]    = (*locktest.Manager)(nil)
	_ aQuorumLease[*lease.Lease]     = (*quorum.Lease)(nil)
	_ aQuorumLease[*locktest.Lease]  = (*locktest.QuorumLease)(nil)
)

// TestQuorumBehaviours shows that the stand-in and the real leases over three databases
// behave alike.
func TestQuorumBehaviours(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		memory := locktest.NewRealTimeMemory()
		quorumBehaves[*locktest.Lease](t, func(t *testing.T) (aQuorum[*locktest.QuorumLease], func()) {
			q, err := memory.Quorum(3, nil)
			must(t, err)
			return q, func() { q.Fail(sql.ErrConnDone, 0, 2) }
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
		quorumBehaves[*lease.Lease](t, func(t *testing.T) (aQuorum[*quorum.Lease], func()) {
			var managers []*lease.Manager
			var pools []*sql.DB
			for _, node := range nodes {
				connector, err := mysql.NewConnector(node.Config())
				must(t, err)
				pool := sql.OpenDB(txlock.Guarded(connector))
				m, err := lease.NewManager(pool, lease.Janitor(0, time.Hour))
				must(t, err)
				t.Cleanup(func() { must(t, errors.Join(m.Close(t.Context()), pool.Close())) })
				managers, pools = append(managers, m), append(pools, pool)
			}
			q, err := quorum.New(managers, quorum.NodeTimeout(10*time.Second)) // a busy machine's nodes answer late
			must(t, err)
			t.Cleanup(func() { must(t, q.Close(context.Background())) })
			must(t, q.Install(t.Context()))
			return q, func() { must(t, errors.Join(pools[0].Close(), pools[2].Close())) }
		})
	})
}

func quorumBehaves[N aGuard, L aQuorumLease[N]](t *testing.T, newQuorum func(t *testing.T) (q aQuorum[L], fail func())) {
	show := func(name string, f func(t *testing.T, one, other aQuorum[L], fail func(), key txlock.Key)) {
		t.Run(name, func(t *testing.T) {
			one, fail := newQuorum(t)
			other, _ := newQuorum(t)
			f(t, one, other, fail, txlock.Named("test:"+rand.Text()))
		})
	}
	acquire := func(ctx context.Context, t *testing.T, q aQuorum[L], key txlock.Key) L {
		t.Helper()
		l, err := q.Acquire(ctx, key)
		must(t, err)
		return l
	}
	ownersBehave(func(name string, f func(t *testing.T, one, other aQuorum[L], key txlock.Key)) {
		show(name, func(t *testing.T, one, other aQuorum[L], _ func(), key txlock.Key) { f(t, one, other, key) })
	})
	show("a lease excludes until its release, and tokens rise", func(t *testing.T, one, other aQuorum[L], _ func(), key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		for _, q := range []aQuorum[L]{one, other} {
			_, err := q.TryAcquire(t.Context(), key)
			wants(t, "TryAcquire", err, txlock.ErrBusy)
		}
		_, err := other.Acquire(t.Context(), key, lease.WaitAtMost(30*time.Millisecond))
		wants(t, "WaitAtMost", err, txlock.ErrWaitTimeout)
		must(t, l.Renew(t.Context()))
		if l.Key() != key || !l.Valid() || l.Left() <= 0 || l.Token() < 1e15 || l.Owner() == "" {
			t.Errorf("lease of %v, valid %t, left %v, token %d, owner %q", l.Key(), l.Valid(), l.Left(), l.Token(), l.Owner())
		}
		granted := make(chan L)
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
	show("an owner enters again in its manager, and there only", func(t *testing.T, one, other aQuorum[L], _ func(), key txlock.Key) {
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
		must(t, one.Do(t.Context(), key, func(ctx context.Context, l L) error { return errors.Join(ctx.Err(), l.Err()) }))
	})
	show("a node's lease is there to guard", func(t *testing.T, one, _ aQuorum[L], _ func(), key txlock.Key) {
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
	show("without a majority nothing is granted, renewed or given back", func(t *testing.T, one, other aQuorum[L], fail func(), key txlock.Key) {
		l := acquire(t.Context(), t, one, key)
		for i := range 3 { // all of them hold it
			for end := time.Now().Add(20 * time.Second); ; {
				if _, err := l.Node(i); err == nil {
					break
				} else if time.Now().After(end) {
					t.Fatal(err)
				}
				runtime.Gosched()
			}
		}
		fail()
		for _, acquire := range []func(context.Context, txlock.Key, ...lease.AcquireOption) (L, error){one.TryAcquire, one.Acquire} {
			_, err := acquire(t.Context(), txlock.Named("free:"+rand.Text()))
			wants(t, "without a majority", err, txlock.ErrNoQuorum)
		}
		wants(t, "Install", one.Install(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNoQuorum)
		must(t, l.Err()) // until its time is over
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNoQuorum)
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		_, err := other.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire of what could not be given back", err, txlock.ErrBusy)
	})
	show("bad input is refused", func(t *testing.T, one, _ aQuorum[L], _ func(), key txlock.Key) {
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
	show("Close gives back and refuses", func(t *testing.T, one, other aQuorum[L], _ func(), key txlock.Key) {
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

// TestQuorumLoses lets databases fail and come back by the moved clock.
func TestQuorumLoses(t *testing.T) {
	t.Parallel()
	memory, key, broken := locktest.NewMemory(), txlock.Named("job"), errors.New("broken")
	q, err := memory.Quorum(5, []lease.Option{lease.TTL(30 * time.Second)}, quorum.MaxTTL(time.Hour))
	must(t, err)
	other, err := memory.Quorum(5, nil)
	must(t, err)
	q.Fail(broken, 3, 4) // a minority
	l, err := q.Acquire(t.Context(), key, lease.TTL(time.Hour))
	must(t, err)
	_, err = l.Node(3)
	wants(t, "Node of a database that fails", err, txlock.ErrNotHeld)
	wants(t, "Node of a database that fails", err, broken)
	node, err := l.Node(0)
	must(t, err)
	if node.Token() != l.Token() {
		t.Errorf("token %d of %d", node.Token(), l.Token())
	}
	refused := make(chan error)
	go func() { _, err := q.Acquire(t.Context(), key); refused <- err }()
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	q.Fail(broken, 0)
	err = <-refused
	wants(t, "a wait", err, txlock.ErrNoQuorum)
	wants(t, "a wait", err, broken)
	wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNoQuorum)
	memory.Advance(time.Hour)
	wants(t, "Err", l.Err(), txlock.ErrLost)
	wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
	q.Fail(nil, 0)
	l, err = q.TryAcquire(t.Context(), key)
	must(t, err)
	must(t, l.Renew(t.Context()))
	q.Fail(broken, 0, 1, 2)
	wants(t, "Release", l.Release(t.Context()), txlock.ErrNoQuorum)
	wants(t, "Release again", l.Release(t.Context()), nil)
	waited := make(chan error)
	go func() { _, err := other.Acquire(t.Context(), key); waited <- err }()
	must(t, memory.AwaitWaiting(t.Context(), key, 1))
	memory.Advance(30 * time.Second)
	must(t, <-waited) // when its time was over
}

// TestQuorumMistakes says what can't be.
func TestQuorumMistakes(t *testing.T) {
	t.Parallel()
	memory := locktest.NewMemory()
	_, err := memory.Quorum(4, nil)
	wants(t, "4 databases", err, txlock.ErrInvalidOption)
	_, err = memory.Quorum(3, []lease.Option{lease.TTL(-1)})
	wants(t, "TTL", err, txlock.ErrInvalidOption)
	_, err = memory.Quorum(3, []lease.Option{lease.TTL(time.Hour)})
	wants(t, "TTL of more than MaxTTL", err, txlock.ErrInvalidOption)
	q, err := memory.Quorum(3, nil)
	must(t, err)
	defer func() {
		if said, ok := recover().(string); !ok || said != "locktest: Fail(3): the databases are numbered from 0 to 2" {
			t.Errorf("Fail of a database that isn't there says %q", said)
		}
	}()
	q.Fail(sql.ErrConnDone, 3)
}

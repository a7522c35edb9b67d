package quorum_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// handle and manager are what a program may want of a lease, over one database or
// several.
type handle interface {
	Key() txlock.Key
	Token() uint64
	Owner() string
	Err() error
	Valid() bool
	Done() <-chan struct{}
	Remaining() time.Duration
	Context(ctx context.Context) (context.Context, context.CancelFunc)
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

type manager[L handle] interface {
	Acquire(ctx context.Context, key txlock.Key, options ...lease.AcquireOption) (L, error)
	TryAcquire(ctx context.Context, key txlock.Key, options ...lease.AcquireOption) (L, error)
	Do(ctx context.Context, key txlock.Key, fn func(ctx context.Context, l L) error, options ...lease.AcquireOption) error
	Close(ctx context.Context) error
}

var (
	_ handle                 = (*lease.Lease)(nil)
	_ handle                 = (*quorum.Lease)(nil)
	_ manager[*lease.Lease]  = (*lease.Manager)(nil)
	_ manager[*quorum.Lease] = (*quorum.Manager)(nil)
)

// TestOwners proves that two calls of an owner in two managers exclude each other:
// an owner re-enters in its manager.
func TestOwners(t *testing.T) {
	t.Parallel()
	leases := newLeases(t, newNodes(t, 3))
	m, other := newManager(t, leases), newManager(t, leases)
	must(t, m.Install(t.Context()))
	key, ctx := named(), lease.WithOwner(t.Context(), "worker-7")
	l, err := m.Acquire(ctx, key)
	if err != nil || l.Owner() != "worker-7" {
		t.Fatalf("owner %q, %v", l.Owner(), err)
	}
	wants(t, "TryAcquire by the owner's name elsewhere", second(other.TryAcquire(ctx, key)), txlock.ErrBusy)
	again, err := m.TryAcquire(ctx, key)
	must(t, err)
	release(t, l)
	must(t, again.Err())
	release(t, again)
}

// TestDo proves that Do ends the context of its function with the lease, and
// releases it whatever becomes of the function.
func TestDo(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	m := newQuorum(t, nodes, lease.TTL(30*time.Second), lease.RenewEvery(500*time.Millisecond))
	key, failed := named(), errors.New("failed")
	err := m.Do(t.Context(), key, func(ctx context.Context, l *quorum.Lease) error {
		return errors.Join(failed, m.Do(ctx, key, func(_ context.Context, again *quorum.Lease) error {
			if again.Token() != l.Token() {
				t.Errorf("token %d, re-entered %d", l.Token(), again.Token())
			}
			return nil
		}))
	})
	wants(t, "Do", err, failed)
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
	err = m.Do(t.Context(), key, func(ctx context.Context, l *quorum.Lease) error {
		joined(t, l, 3)
		for _, db := range nodes[:2] {
			force(t, db, key)
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	wants(t, "Do of what is lost", err, txlock.ErrLost)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		_ = m.Do(t.Context(), key, func(context.Context, *quorum.Lease) error { panic("oh") })
	}()
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
}

// force takes a lease away in one node, as ForceRelease does.
func force(t testing.TB, db *testdb.DB, key txlock.Key) {
	t.Helper()
	exec(t, db, "UPDATE lockstep_leases SET token = token + 1, holders = LEFT('-', 0) WHERE name = ?", key.String())
}

// TestTokens proves that the token rises over grants by majorities that share one
// node only, whatever the clocks of the nodes are: the rows of some are far ahead.
func TestTokens(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m := newQuorum(t, nodes)
	key := named()
	release(t, acquire(t, m, key))
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
	for i, db := range nodes {
		exec(t, db, "UPDATE lockstep_leases SET token = token + ? WHERE name = ?", i*1_000_000_000_000, key.String())
	}
	var last uint64
	for round := range 20 {
		for i := range nodes { // all but three are held by somebody else
			if i != round%5 && i != (round+1)%5 && i != (round*2+3)%5 && held(t, nodes[i:i+1], key) == 0 && held(t, nodes, key) < 2 {
				exec(t, nodes[i], "UPDATE lockstep_leases SET holders = ';somebody', owner = 'somebody', expires_us = (UNIX_TIMESTAMP() + 60) * 1000000 WHERE name = ?", key.String())
			}
		}
		l := acquire(t, m, key)
		if l.Token() <= last {
			t.Fatalf("round %d: token %d after %d", round, l.Token(), last)
		}
		last = l.Token()
		confirmed := 0
		for _, db := range nodes {
			if number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = ? AND token >= ?", key.String(), last) == 1 {
				confirmed++
			}
		}
		if confirmed < 3 {
			t.Errorf("round %d: %d nodes know of token %d", round, confirmed, last)
		}
		release(t, l)
		for _, db := range nodes {
			exec(t, db, "UPDATE lockstep_leases SET holders = LEFT('-', 0) WHERE name = ? AND owner = 'somebody'", key.String())
		}
	}
}

// TestNode proves that a transaction in one of the databases is guarded there.
func TestNode(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leases := newLeases(t, nodes)
	m := newManager(t, leases)
	must(t, m.Install(t.Context()))
	key := named()
	l := acquire(t, m, key)
	joined(t, l, 3)
	guard := func() error {
		tx, err := poolOf(leases[1]).BeginTx(t.Context(), nil)
		must(t, err)
		node, err := l.Node(1)
		if err == nil {
			err = node.Guard(t.Context(), tx)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	must(t, guard())
	wants(t, "Node(3) of three", second(l.Node(3)), txlock.ErrInvalidOption)
	force(t, nodes[1], key)
	wants(t, "Guard of what was taken over there", guard(), txlock.ErrLost)
	wants(t, "Node of what was taken over there", second(l.Node(1)), txlock.ErrNotHeld)
	release(t, l)
	wants(t, "Node of what was released", guard(), txlock.ErrNotHeld)
}

// TestFreeLeaseHasNoLimit proves that what is free is granted however small the limit of
// the wait is, and that the error of a limit says what the nodes have answered.
func TestFreeLeaseHasNoLimit(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	for range 5 {
		m, key := newQuorum(t, nodes), named()
		for range 2 { // without rows, and with them
			l, err := m.Acquire(t.Context(), key, lease.WaitAtMost(1))
			must(t, err)
			joined(t, l, 3)
			_, err = m.Acquire(t.Context(), key, lease.WaitAtMost(1))
			wants(t, "Acquire of what is held", err, txlock.ErrWaitTimeout)
			if err == nil || !strings.Contains(err.Error(), "2 of 3 databases are needed") {
				t.Errorf("%v, want what the nodes have answered", err)
			}
			release(t, l)
			await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
		}
	}
}

// TestSubsets proves for each subset of five nodes that a lease is granted exactly
// where the others, which somebody holds, are no majority, that nothing of ours is left
// behind otherwise, and that what others hold stays.
func TestSubsets(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m, others := newQuorum(t, nodes), newLeases(t, nodes)
	for subset := range uint(1) << len(nodes) {
		t.Run(fmt.Sprintf("%05b", subset), func(t *testing.T) {
			t.Parallel()
			key, taken := named(), bits.OnesCount(subset)
			for i, other := range others {
				if subset&(1<<i) != 0 {
					l, err := other.Acquire(t.Context(), key)
					must(t, err)
					defer release(t, l)
				}
			}
			l, err := m.TryAcquire(t.Context(), key)
			if taken >= 3 {
				wants(t, "TryAcquire", err, txlock.ErrBusy)
				if errors.Is(err, txlock.ErrNoQuorum) {
					t.Errorf("all nodes have answered: %v", err)
				}
			} else {
				must(t, err)
				await(t, "all that are free are held", func() bool { return held(t, nodes, key) == 5 })
				release(t, l)
			}
			await(t, "what others hold is left", func() bool { return held(t, nodes, key) == taken })
		})
	}
}

// TestSubsetsDown is TestSubsets of nodes that don't answer: their tables are gone.
func TestSubsetsDown(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m := newQuorum(t, nodes)
	for _, subset := range []uint{0b00001, 0b11000, 0b10100, 0b10101, 0b00111, 0b11110, 0b11111} {
		key := named()
		for i, db := range nodes {
			if subset&(1<<i) != 0 {
				exec(t, db, "RENAME TABLE lockstep_leases TO gone")
			}
		}
		l, err := m.TryAcquire(t.Context(), key)
		if bits.OnesCount(subset) >= 3 {
			wants(t, "TryAcquire", err, txlock.ErrNoQuorum, txlock.ErrSchema)
			for i := range nodes {
				// It is hopeless with three.
				if named := strings.Contains(fmt.Sprint(err), fmt.Sprintf("node %d:", i)); named && subset&(1<<i) == 0 {
					t.Errorf("%05b: node %d is up: %v", subset, i, err)
				}
			}
			if _, err := m.Acquire(t.Context(), key, lease.WaitAtMost(time.Minute)); !errors.Is(err, txlock.ErrNoQuorum) {
				t.Errorf("%05b: Acquire: %v, want it to give up with ErrNoQuorum", subset, err)
			}
		} else {
			if err != nil {
				t.Fatalf("%05b: %v", subset, err)
			}
			if err := l.Renew(t.Context()); err != nil {
				t.Errorf("%05b: Renew: %v", subset, err)
			}
			release(t, l)
		}
		for i, db := range nodes {
			if subset&(1<<i) != 0 {
				exec(t, db, "RENAME TABLE gone TO lockstep_leases")
			}
		}
		await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
	}
}

// TestMixedMajority proves that a majority of which some nodes are down and some are
// busy is busy, as long as a majority answers.
func TestMixedMajority(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m, others := newQuorum(t, nodes), newLeases(t, nodes)
	key := named()
	exec(t, nodes[0], "RENAME TABLE lockstep_leases TO gone")
	exec(t, nodes[1], "RENAME TABLE lockstep_leases TO gone")
	l, err := others[2].Acquire(t.Context(), key)
	must(t, err)
	_, err = m.TryAcquire(t.Context(), key)
	wants(t, "TryAcquire", err, txlock.ErrBusy)
	granted := make(chan *quorum.Lease)
	go func() {
		waited, err := m.Acquire(t.Context(), key)
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		granted <- waited
	}()
	release(t, l)
	if waited := <-granted; waited != nil {
		release(t, waited)
	}
}

// noDatabases makes managers whose databases don't exist: what is refused before
// anything is sent doesn't need them.
func noDatabases(t *testing.T, n int, options ...lease.ManagerOption) []*lease.Manager {
	t.Helper()
	var managers []*lease.Manager
	for range n {
		db, err := sql.Open("mysql", "nobody@tcp(127.0.0.1:1)/nothing")
		must(t, err)
		m, err := lease.NewManager(db, options...)
		must(t, err)
		t.Cleanup(func() {
			closeIt(t, m)
			_ = db.Close()
		})
		managers = append(managers, m)
	}
	return managers
}

// TestNew proves that New says what is wrong with what it is given.
func TestNew(t *testing.T) {
	t.Parallel()
	three := noDatabases(t, 3)
	samePool, err := lease.NewManager(poolOf(three[0]))
	must(t, err)
	closed := noDatabases(t, 1)[0]
	closeIt(t, closed)
	for name, c := range map[string]struct {
		managers []*lease.Manager
		options  []quorum.Option
		want     error
		says     string
	}{
		"none":             {nil, nil, txlock.ErrInvalidOption, "got 0"},
		"one":              {three[:1], nil, txlock.ErrInvalidOption, "got 1"},
		"an even number":   {noDatabases(t, 4), nil, txlock.ErrInvalidOption, "got 4"},
		"eleven":           {noDatabases(t, 11), nil, txlock.ErrInvalidOption, "got 11"},
		"nil":              {[]*lease.Manager{three[0], nil, three[2]}, nil, txlock.ErrInvalidOption, "manager 1 is nil"},
		"the same manager": {[]*lease.Manager{three[0], three[1], three[0]}, nil, txlock.ErrInvalidOption, "managers 0 and 2"},
		"the same pool":    {[]*lease.Manager{three[0], three[1], samePool}, nil, txlock.ErrInvalidOption, "managers 0 and 2"},
		"closed":           {[]*lease.Manager{three[0], closed, three[2]}, nil, lease.ErrClosed, "manager 1"},
		"other terms":      {append(noDatabases(t, 1, lease.TTL(time.Second)), three[:2]...), nil, txlock.ErrInvalidOption, "same options"},
		"TTL":              {noDatabases(t, 3, lease.TTL(2*time.Minute)), nil, txlock.ErrInvalidOption, "MaxTTL of 1m0s"},
		"fair":             {noDatabases(t, 3, lease.Fair()), nil, txlock.ErrInvalidOption, "Fair"},
		"MaxTTL of 0":      {three, []quorum.Option{quorum.MaxTTL(0)}, txlock.ErrInvalidOption, "MaxTTL(0s)"},
		"MaxTTL of a year": {three, []quorum.Option{quorum.MaxTTL(365 * 24 * time.Hour)}, txlock.ErrInvalidOption, "MaxTTL"},
		"ClockSkew":        {three, []quorum.Option{quorum.ClockSkew(-1)}, txlock.ErrInvalidOption, "ClockSkew(-1ns)"},
		"NodeTimeout":      {three, []quorum.Option{quorum.NodeTimeout(0)}, txlock.ErrInvalidOption, "NodeTimeout"},
		"NodeTimeout long": {three, []quorum.Option{quorum.NodeTimeout(time.Minute)}, txlock.ErrInvalidOption, "NodeTimeout(1m0s)"},
	} {
		_, err := quorum.New(c.managers, c.options...)
		wants(t, name, err, c.want)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.says)
		}
	}
	closeIt(t, samePool)
}

// TestInput proves that calls say what is wrong with what they are given, before
// anything is sent: there is no database.
func TestInput(t *testing.T) {
	t.Parallel()
	managers := noDatabases(t, 3)
	m := newManager(t, managers)
	key := named()
	for name, c := range map[string]struct {
		ctx     context.Context
		key     txlock.Key
		options []lease.AcquireOption
		want    error
	}{
		"no key":         {t.Context(), txlock.Key{}, nil, txlock.ErrInvalidKey},
		"TTL of 0":       {t.Context(), key, []lease.AcquireOption{lease.TTL(0)}, txlock.ErrInvalidOption},
		"TTL too long":   {t.Context(), key, []lease.AcquireOption{lease.TTL(time.Hour)}, txlock.ErrInvalidOption},
		"WaitAtMost":     {t.Context(), key, []lease.AcquireOption{lease.WaitAtMost(0)}, txlock.ErrInvalidOption},
		"fair":           {t.Context(), key, []lease.AcquireOption{lease.Fair()}, txlock.ErrInvalidOption},
		"held at least":  {t.Context(), key, []lease.AcquireOption{lease.HoldAtLeast(time.Second)}, txlock.ErrInvalidOption},
		"owner":          {lease.WithOwner(t.Context(), ""), key, nil, txlock.ErrInvalidOption},
		"nobody answers": {t.Context(), key, nil, txlock.ErrNoQuorum},
	} {
		wants(t, name+": TryAcquire", second(m.TryAcquire(c.ctx, c.key, c.options...)), c.want)
		wants(t, name+": Acquire", second(m.Acquire(c.ctx, c.key, c.options...)), c.want)
	}
	if err := m.Do(t.Context(), key, nil); err == nil {
		t.Error("Do takes nil")
	}
	closeIt(t, managers[1])
	wants(t, "TryAcquire with a closed manager", second(m.TryAcquire(t.Context(), key)), lease.ErrClosed)
	closeIt(t, m)
	wants(t, "Install of what is closed", m.Install(t.Context()), quorum.ErrClosed)
}

// TestCloseAwaitsTheNodes proves that Close returns when the nodes have answered what was
// asked of them before, and what they have granted is released: also one that answers
// late, to a call that is over, and one that is taken in again.
func TestCloseAwaitsTheNodes(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]struct {
		silent bool // until the call has returned: else it could be granted the lease
		call   func(t *testing.T, m *quorum.Manager, nodes []*testdb.DB, key txlock.Key)
	}{
		"a lease": {false, func(t *testing.T, m *quorum.Manager, _ []*testdb.DB, key txlock.Key) {
			acquire(t, m, key)
		}},
		"a lease that was released": {false, func(t *testing.T, m *quorum.Manager, _ []*testdb.DB, key txlock.Key) {
			release(t, acquire(t, m, key))
		}},
		"a call that was cancelled": {true, func(t *testing.T, m *quorum.Manager, nodes []*testdb.DB, key txlock.Key) {
			exec(t, nodes[0], "RENAME TABLE lockstep_leases TO gone")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := m.Acquire(ctx, key)
				done <- err
			}()
			await(t, "a node has granted it", func() bool { return held(t, nodes[1:2], key) == 1 })
			cancel()
			wants(t, "Acquire", <-done, context.Canceled)
			exec(t, nodes[0], "RENAME TABLE gone TO lockstep_leases")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, key := newNodes(t, 3), named()
			var slow atomic.Bool
			speaks := make(chan struct{})
			speak := sync.OnceFunc(func() { close(speaks) })
			defer speak()
			leases := newLeasesOver(t, nodes, map[int]filter{2: {receives: func() {
				if slow.Load() {
					<-speaks
					time.Sleep(100 * time.Millisecond)
				}
			}}})
			m := newManager(t, leases, quorum.NodeTimeout(15*time.Second))
			must(t, m.Install(t.Context()))
			for range 3 {
				release(t, acquire(t, m, key)) // all rows are there, and connections
			}
			await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
			slow.Store(true)
			if !setup.silent {
				speak()
			}
			setup.call(t, m, nodes, key)
			speak()
			must(t, m.Close(t.Context()))
			if n := held(t, nodes, key); n != 0 {
				t.Errorf("%d nodes are held after Close", n)
			}
		})
	}
}

// TestCloseKeepsItsBound proves that Close returns when its context ends, or has ended,
// whatever the nodes do, and that what is asked of the manager afterwards is refused.
func TestCloseKeepsItsBound(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"ends": 100 * time.Millisecond, "has ended": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stopped atomic.Bool
			goOn := make(chan struct{})
			defer close(goOn)
			stuck := filter{sends: func([]byte) error {
				if stopped.Load() {
					<-goOn
				}
				return nil
			}}
			leases := newLeasesOver(t, newNodes(t, 3), map[int]filter{0: stuck, 1: stuck, 2: stuck})
			m := newManager(t, leases, quorum.NodeTimeout(15*time.Second))
			must(t, m.Install(t.Context()))
			var held []*quorum.Lease
			for range 20 {
				held = append(held, acquire(t, m, named()))
			}
			stopped.Store(true)
			ctx := limited(t, limit)
			began, delays := time.Now(), testdb.Delays(t)
			err := m.Close(ctx)
			wants(t, "Close", err, context.DeadlineExceeded)
			if took := time.Since(began); took > 5*time.Second+delays() { // of 15 s for a node
				t.Errorf("Close took %v with a context of %v", took, limit)
			}
			refused(t, m, held)
		})
	}
}

// TestCloseAfterItsPools proves that Close doesn't try on where the pools of the nodes
// were closed before, and says at once what it could not release.
func TestCloseAfterItsPools(t *testing.T) {
	t.Parallel()
	leases := newLeases(t, newNodes(t, 3))
	m := newManager(t, leases, quorum.NodeTimeout(15*time.Second))
	must(t, m.Install(t.Context()))
	held := acquire(t, m, named())
	for _, node := range leases {
		must(t, poolOf(node).Close())
	}
	ctx := limited(t, time.Minute)
	began, delays := time.Now(), testdb.Delays(t)
	err := m.Close(ctx)
	if took := time.Since(began); took > 10*time.Second+delays() {
		t.Errorf("Close took %v", took)
	}
	if err == nil || !strings.Contains(err.Error(), held.Key().String()) {
		t.Errorf("Close doesn't say that %v was not released: %v", held.Key(), err)
	}
	wants(t, "Close", err, poolOf(leases[0]).PingContext(ctx)) // that of database/sql, which has no name
	wants(t, "the lease afterwards", held.Err(), txlock.ErrNotHeld)
}

// refused tells what a manager does after Close, which waits for nothing.
func refused(t *testing.T, m *quorum.Manager, held []*quorum.Lease) {
	for _, l := range held {
		await(t, "its leases are released", func() bool { return l.Err() != nil })
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNotHeld)
	}
	key := held[0].Key()
	working, cancel := held[0].Context(t.Context())
	defer cancel()
	for name, ctx := range map[string]context.Context{"": t.Context(), " under a lease": context.WithoutCancel(working), " by a name": lease.WithOwner(t.Context(), "me")} {
		wants(t, "Acquire"+name, second(m.Acquire(ctx, key)), quorum.ErrClosed)
		wants(t, "TryAcquire"+name, second(m.TryAcquire(ctx, key)), quorum.ErrClosed)
		wants(t, "Do"+name, m.Do(ctx, key, func(context.Context, *quorum.Lease) error { return nil }), quorum.ErrClosed)
	}
	wants(t, "Install", m.Install(t.Context()), quorum.ErrClosed)
	must(t, m.Close(t.Context()))
}

package quorum_test

import (
	"context"
	"errors"
	"strings"
	"sync"
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

// TestLease proves that a lease excludes everybody else until it is released, is
// re-entered by its owner, and tells when it ends.
func TestLease(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m, other := newQuorum(t, nodes), newQuorum(t, nodes)
	key := named()
	l := acquire(t, m, key)
	if l.Err() != nil || l.Remaining() < 20*time.Second || l.Key() != key || l.Owner() == "" {
		t.Errorf("acquired: %v, %v left of 30 s, key %v, owner %q", l.Err(), l.Remaining(), l.Key(), l.Owner())
	}
	_, err := other.TryAcquire(t.Context(), key)
	wants(t, "TryAcquire of what is held", err, txlock.ErrBusy)
	_, err = other.Acquire(t.Context(), key, lease.WaitAtMost(50*time.Millisecond))
	wants(t, "Acquire of what is held", err, txlock.ErrWaitTimeout)

	working, cancel := l.Context(t.Context())
	defer cancel()
	again, err := m.Acquire(working, key)
	if err != nil || again.Token() != l.Token() {
		t.Fatalf("re-enter: token %d of %d, %v", again.Token(), l.Token(), err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	release(t, again)
	wants(t, "Err of what was released", again.Err(), txlock.ErrNotHeld)
	if l.Err() != nil || working.Err() != nil {
		t.Errorf("one of two handles was released: %v, %v", l.Err(), working.Err())
	}
	release(t, l)
	release(t, l) // again does nothing
	<-l.Done()
	<-working.Done()
	wants(t, "the cause of the context's end", context.Cause(working), txlock.ErrNotHeld)
	wants(t, "Renew of what was released", l.Renew(t.Context()), txlock.ErrNotHeld)
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })

	next := acquire(t, other, key)
	if next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
	release(t, next)
}

// TestOwners proves that two calls of an owner in two managers exclude each other:
// an owner re-enters in its manager.
func TestOwners(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leases := newLeases(t, nodes)
	m, other := newManager(t, leases), newManager(t, leases)
	if err := m.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, ctx := named(), lease.WithOwner(t.Context(), "worker-7")
	l, err := m.Acquire(ctx, key)
	if err != nil || l.Owner() != "worker-7" {
		t.Fatalf("owner %q, %v", l.Owner(), err)
	}
	_, err = other.TryAcquire(ctx, key)
	wants(t, "TryAcquire by the owner's name elsewhere", err, txlock.ErrBusy)
	again, err := m.TryAcquire(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	release(t, l)
	if err := again.Err(); err != nil {
		t.Error(err)
	}
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
				t.Errorf("tokens %d and %d", l.Token(), again.Token())
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

// TestLostMajority proves that a lease goes on when a minority of its nodes hang for
// longer than its TTL, takes them in again, and is lost, once and for good, with a
// majority; and that a node where it was released by force is not taken again.
func TestLostMajority(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	m := newQuorum(t, nodes, lease.TTL(8*time.Second))
	key := named()
	l := acquire(t, m, key)
	joined(t, l, 5)
	lockRow := func(db *testdb.DB) (unlock func()) {
		tx, err := db.Admin().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var token uint64
		if err := tx.QueryRow("SELECT token FROM lockstep_leases WHERE name = ? AND slot = 0 FOR UPDATE", key.String()).Scan(&token); err != nil {
			t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		})
	}
	first, second := lockRow(nodes[0]), lockRow(nodes[1])
	defer first()
	defer second()
	missing := func(i int) bool { _, err := l.Node(i); return err != nil }
	await(t, "two nodes are lost", func() bool { return missing(0) && missing(1) })
	first()
	second()
	await(t, "the nodes are taken in again", func() bool { return !missing(0) && !missing(1) })
	if err := l.Err(); err != nil {
		t.Fatalf("lost with a minority: %v", err)
	}
	for _, db := range nodes[:2] {
		if token := number(t, db, "SELECT token FROM lockstep_leases WHERE name = ?", key.String()); uint64(token) < l.Token() {
			t.Errorf("a node has joined with token %d, the lease has %d", token, l.Token())
		}
	}
	force(t, nodes[0], key)
	force(t, nodes[1], key)
	await(t, "it is told of two", func() bool { return missing(0) && missing(1) })
	if err := l.Err(); err != nil {
		t.Fatalf("lost with a minority: %v", err)
	}
	force(t, nodes[2], key)
	<-l.Done()
	wants(t, "Err", l.Err(), txlock.ErrLost)
	if errors.Is(l.Err(), txlock.ErrNotHeld) {
		t.Errorf("lost, not released: %v", l.Err())
	}
	await(t, "what was left is released", func() bool { return held(t, nodes, key) == 0 })
	wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld, txlock.ErrLost)
	next := acquire(t, m, key)
	if next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
	release(t, next)
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
	if err := m.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	key := named()
	l := acquire(t, m, key)
	joined(t, l, 3)
	guard := func() error {
		tx, err := poolOf(leases[1]).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		node, err := l.Node(1)
		if err == nil {
			err = node.Guard(t.Context(), tx)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	if err := guard(); err != nil {
		t.Errorf("Guard: %v", err)
	}
	_, err := l.Node(3)
	wants(t, "Node(3) of three", err, txlock.ErrInvalidOption)
	force(t, nodes[1], key)
	wants(t, "Guard of what was taken over there", guard(), txlock.ErrLost)
	_, err = l.Node(1)
	wants(t, "Node of what was taken over there", err, txlock.ErrNotHeld)
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
			if err != nil {
				t.Fatal(err)
			}
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

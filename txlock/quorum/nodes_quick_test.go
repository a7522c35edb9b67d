package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestMajorityOfNodes proves that a lease is granted, and goes on, while a minority of the nodes is down, that
// nothing is held where a majority is, and that a node which joins later knows of the token, whatever its clock is.
func TestMajorityOfNodes(t *testing.T) {
	for down := range 6 {
		t.Run("", func(t *testing.T) {
			inMemory(t, 5, func(t *testing.T, db *memory) {
				db.manager() // installs
				for _, node := range db.nodes[down:] {
					node.SetClock(time.Hour)
				}
				m, stores := db.process()
				for _, s := range stores[:down] {
					s.Down(nil)
				}
				up := func() {
					for _, s := range stores {
						s.Up()
					}
					time.Sleep(10 * time.Second) // a quarter of the time to live and more: they are taken in
				}
				l, err := m.Acquire(t.Context(), job)
				if down > 2 {
					wants(t, "Acquire", err, txlock.ErrNoQuorum, mysql.ErrInvalidConn)
					db.within("the third round has failed", 0, time.Second)
					text := fmt.Sprint(err)
					testdb.ErrorIf(t, !strings.Contains(text, "3 of 5 databases are needed") || down < 5 && strings.Contains(text, "node 4:"),
						"%s names not just those that are down", text)
					up()
					db.holds("a majority was down", 0)
					return
				}
				must(t, err)
				time.Sleep(10 * time.Minute)
				must(t, l.Renew(t.Context()))
				db.holds("after a while", 5-down)
				up()
				db.holds("when all are up", 5)
				for i := range 5 {
					node := testdb.Got(l.Node(i))(t)
					testdb.ErrorIf(t, node.Token() < l.Token(), "node %d has token %d, the lease %d", i, node.Token(), l.Token())
				}
				release(t, l)
				db.holds("after Release", 0)
			})
		})
	}
}

// TestContextIsItsOwners proves that the context of a lease is its owner's for that key alone, in that
// manager, while the lease is held, and so is the owner's name.
func TestContextIsItsOwners(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		one, elsewhere := db.manager(), db.manager()
		refused := func(what string, m *quorum.Manager, ctx context.Context, key txlock.Key) {
			t.Helper()
			wants(t, what, testdb.Err(m.TryAcquire(ctx, key)), txlock.ErrBusy)
		}
		var over context.Context
		must(t, one.Do(t.Context(), job, func(ctx context.Context, outer *quorum.Lease) error {
			over = context.WithoutCancel(ctx)
			refused("another manager", elsewhere, ctx, job)
			other := txlock.Namespace("shop").Named(job.String()) // another key
			return one.Do(ctx, other, func(inside context.Context, _ *quorum.Lease) error {
				refused("another goroutine under the outer lease", one, ctx, other)
				again := testdb.Got(one.TryAcquire(inside, job))(t)
				testdb.Equal(t, "the token of the lease that is held", again.Token(), outer.Token())
				return again.Release(ctx)
			})
		}))
		l := acquire(t, one, job)
		refused("under the context of a lease that is over", one, over, job)
		release(t, l)

		named := lease.WithOwner(t.Context(), "worker-7")
		l = testdb.Got(one.Acquire(named, job))(t)
		testdb.Equal(t, "owner", l.Owner(), "worker-7")
		refused("by the owner's name elsewhere", elsewhere, named, job)
		again := testdb.Got(one.TryAcquire(named, job))(t)
		release(t, l)
		must(t, again.Err())
		release(t, again)
	})
}

// TestDo proves that Do ends the context of its function with the lease, and releases it also after a panic.
func TestDo(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		m := db.manager()
		wants(t, "Do of what is lost", m.Do(t.Context(), job, func(ctx context.Context, _ *quorum.Lease) error {
			synctest.Wait() // all nodes have joined
			db.force(0)
			db.force(1)
			<-ctx.Done()
			return context.Cause(ctx)
		}), txlock.ErrLost)
		func() {
			defer func() { testdb.Equal[any](t, "recovered", recover(), "oh") }()
			_ = m.Do(t.Context(), job, func(context.Context, *quorum.Lease) error { panic("oh") })
		}()
		db.holds("after a panic", 0)
	})
}

// TestFreeLeaseHasNoLimit proves that what is free is granted however small the limit of
// the wait is, and that the error of a limit says what the nodes have answered.
func TestFreeLeaseHasNoLimit(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		m, stores := db.installed()
		for _, s := range stores {
			s.SetFault(late(time.Millisecond))
		}
		for range 2 { // without rows, and with them
			l := acquire(t, m, job, lease.WaitAtMost(1))
			_, err := m.Acquire(t.Context(), job, lease.WaitAtMost(1))
			wants(t, "Acquire of what is held", err, txlock.ErrWaitTimeout)
			testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "2 of 3 databases are needed"), "%v, want what the nodes have answered", err)
			release(t, l)
			time.Sleep(time.Second)
			db.holds("after Release", 0)
		}
	})
}

// TestLeftIsThatOfTheMajority proves that Left says how long a majority is held, and not
// some of its nodes: here two of three hold it, one of which is not renewed.
func TestLeftIsThatOfTheMajority(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		m := db.manager()
		others, _ := db.leases()
		defer release(t, testdb.Got(others[2].Acquire(t.Context(), job))(t))
		l := acquire(t, m, job)
		time.Sleep(200 * time.Millisecond)
		renewed := testdb.Got(l.Node(0))(t)
		must(t, renewed.Renew(t.Context()))
		behind := testdb.Got(l.Node(1))(t)
		if left := l.Remaining(); left != behind.Remaining() || left <= 0 || left >= renewed.Remaining() {
			t.Errorf("%v are left, of a majority with %v and %v", left, renewed.Remaining(), behind.Remaining())
		}
		release(t, l)
	})
}

// TestCloseAwaitsTheNodes proves that Close returns when the nodes have answered, and what they have granted is
// released: also by one that answers late, to a call that is over, and one that is taken in again.
func TestCloseAwaitsTheNodes(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, m *quorum.Manager, stores []*memstore.Store, speak func()){
		"a lease": func(t *testing.T, m *quorum.Manager, _ []*memstore.Store, speak func()) {
			speak()
			acquire(t, m, job)
		},
		"a lease that was released": func(t *testing.T, m *quorum.Manager, _ []*memstore.Store, speak func()) {
			speak()
			release(t, acquire(t, m, job))
		},
		"a call that was cancelled": func(t *testing.T, m *quorum.Manager, stores []*memstore.Store, speak func()) {
			stores[0].Down(nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- testdb.Err(m.Acquire(ctx, job)) }()
			synctest.Wait() // two nodes have granted it, of which one doesn't say so
			cancel()
			wants(t, "Acquire", <-done, context.Canceled)
			stores[0].Up()
			speak()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, 3, func(t *testing.T, db *memory) {
				m, stores := db.installed(quorum.NodeTimeout(15 * time.Second))
				speaks := make(chan struct{})
				stores[2].SetFault(func(_ context.Context, _ string, _ store.Row, call func() error) error {
					err := call()
					<-speaks
					time.Sleep(100 * time.Millisecond)
					return err
				})
				call(t, m, stores, func() { close(speaks) })
				must(t, m.Close(t.Context()))
				testdb.Equal(t, "nodes that are held after Close", db.held(), 0)
			})
		})
	}
}

// TestCloseKeepsItsBound proves that Close returns when its context ends, or has ended,
// whatever the nodes do, and that what is asked of the manager afterwards is refused.
func TestCloseKeepsItsBound(t *testing.T) {
	for name, limit := range map[string]time.Duration{"ends": 100 * time.Millisecond, "has ended": 0} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, 3, func(t *testing.T, db *memory) {
				m, stores := db.installed(quorum.NodeTimeout(15 * time.Second))
				var held []*quorum.Lease
				for range 20 {
					held = append(held, acquire(t, m, named()))
				}
				for _, s := range stores {
					s.SetFault(hangs)
				}
				wants(t, "Close", m.Close(limited(t, limit)), context.DeadlineExceeded)
				db.within("Close", limit, limit+2*time.Second) // of 15 s for a node
				refused(t, m, held)
				for _, s := range stores {
					s.Up()
				}
			})
		})
	}
}

// refused tells what a manager does after Close, which waits for nothing.
func refused(t *testing.T, m *quorum.Manager, held []*quorum.Lease) {
	t.Helper()
	for _, l := range held {
		await(t, "its leases are released", func() bool { return l.Err() != nil })
		wants(t, "Err", l.Err(), txlock.ErrNotHeld)
		wants(t, "Renew", l.Renew(t.Context()), txlock.ErrNotHeld)
	}
	working, cancel := held[0].Context(t.Context())
	defer cancel()
	for name, ctx := range map[string]context.Context{"": t.Context(), " under a lease": context.WithoutCancel(working), " by a name": lease.WithOwner(t.Context(), "me")} {
		wants(t, "Acquire"+name, testdb.Err(m.Acquire(ctx, job)), quorum.ErrClosed)
		wants(t, "TryAcquire"+name, testdb.Err(m.TryAcquire(ctx, job)), quorum.ErrClosed)
		wants(t, "Do"+name, m.Do(ctx, job, func(context.Context, *quorum.Lease) error { return nil }), quorum.ErrClosed)
	}
	wants(t, "Install", m.Install(t.Context()), quorum.ErrClosed)
	must(t, m.Close(t.Context()))
}

// TestNodeReleasedByForce proves that a node where somebody has released the lease by force is
// not acquired again, while the others go on.
func TestNodeReleasedByForce(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		l := acquire(t, db.manager(), job)
		synctest.Wait() // all nodes have joined
		db.force(1)
		for range 60 {
			time.Sleep(time.Second)
			db.holds("beside the one", 2)
		}
		wants(t, "Node", testdb.Err(l.Node(1)), txlock.ErrNotHeld, lease.ErrReplaced)
		wants(t, "Node(3) of three", testdb.Err(l.Node(3)), txlock.ErrInvalidOption)
		must(t, errors.Join(l.Err(), testdb.Err(l.Node(0))))
		release(t, l)
		wants(t, "Node of what was released", testdb.Err(l.Node(0)), txlock.ErrNotHeld)
	})
}

// TestLifetimeOfLateJoiners proves that a lease ends with its maximum lifetime, also where a
// majority has joined it later.
func TestLifetimeOfLateJoiners(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		const lifetime = 5 * time.Minute
		m, stores := db.installed()
		l := acquire(t, m, job, lease.MaxLifetime(lifetime))
		synctest.Wait() // all nodes have joined
		for i, s := range stores[:2] {
			s.Down(nil)
			time.Sleep(40 * time.Second) // its lease is over
			wants(t, "Node", testdb.Err(l.Node(i)), txlock.ErrNotHeld)
			s.Up()
			time.Sleep(10 * time.Second)
			must(t, testdb.Err(l.Node(i)))
		}
		<-l.Done()
		db.within("over", lifetime-time.Second, lifetime)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		db.holds("after its lifetime", 0)
	})
}

// TestHigherClock proves that the token of a lease is the highest of its nodes', and is
// known to a majority, so that it rises whatever the clocks are.
func TestHigherClock(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		m, stores := db.installed()
		db.nodes[0].SetClock(time.Hour)
		db.nodes[2].SetClock(-time.Hour)
		time.Sleep(time.Minute) // they are read again
		var last uint64
		for round := range 6 {
			out := stores[round%3]
			out.Down(nil)
			l := acquire(t, m, job)
			know, before := 0, last
			last = l.Token()
			testdb.ErrorIf(t, last <= before, "token %d follows %d", last, before)
			for _, node := range db.nodes {
				row := testdb.Got(node.Store().Stored(t.Context(), store.Row{Key: job.String()}))(t)
				if row.Token >= last {
					know++
				}
			}
			testdb.ErrorIf(t, know < 2, "%d nodes know of token %d", know, last)
			release(t, l)
			out.Up()
			time.Sleep(time.Second)
		}
	})
}

// TestNewNodesCountLater proves that a node without data counts when what it may have
// forgotten is over, unless all of them are new and were installed.
func TestNewNodesCountLater(t *testing.T) {
	const recovery = time.Minute + 5*time.Second // MaxTTL and ClockSkew
	inMemory(t, 3, func(t *testing.T, db *memory) {
		m, _ := db.process() // without Install
		_, err := m.Acquire(t.Context(), job)
		wants(t, "Acquire on new nodes", err, txlock.ErrNoQuorum)
		testdb.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "its data are new"), "%v", err)
		must(t, m.Install(t.Context())) // too late, and no harm
		wants(t, "Acquire after a late Install", testdb.Err(m.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		time.Sleep(recovery - time.Since(db.begun) - time.Millisecond)
		wants(t, "Acquire just before they count", testdb.Err(m.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		time.Sleep(2 * time.Millisecond)
		l := testdb.Got(m.TryAcquire(t.Context(), job))(t)
		release(t, l)

		// Two nodes lose their data, of which the holder's majority was.
		l = acquire(t, m, job)
		db.nodes[0], db.nodes[1] = memstore.New(), memstore.New()
		other, _ := db.process()
		must(t, other.Install(t.Context()))
		wants(t, "Acquire on nodes that came back empty", testdb.Err(other.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		release(t, l)
		time.Sleep(recovery)
		release(t, acquire(t, other, job))
	})
}

// TestLimitsOfAWait proves that a wait ends with its limit, with its context and with Close, and a try at once, whose
// refusal names with NameHolders who holds the lease of a node.
func TestLimitsOfAWait(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		l := acquire(t, a, job)
		var held *txlock.HeldError
		_, err := b.TryAcquire(t.Context(), job)
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		testdb.ErrorIf(t, errors.As(err, &held), "named without a look: %v", err)
		_, err = b.TryAcquire(t.Context(), job, lease.NameHolders())
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		testdb.ErrorIf(t, !errors.As(err, &held) || held.Key != job || held.Owner != l.Owner() || held.Since.IsZero(), "%v names %+v, want %q", err, held, l.Owner())
		db.within("TryAcquire", 0, 0)
		wants(t, "Acquire", testdb.Err(b.Acquire(t.Context(), job, lease.WaitAtMost(2*time.Second))), txlock.ErrWaitTimeout)
		db.within("the limit", 2*time.Second, 2*time.Second)
		wants(t, "Acquire", testdb.Err(b.Acquire(limited(t, time.Second), job)), context.DeadlineExceeded)
		db.within("the context", 3*time.Second, 3*time.Second)
		closed := make(chan error)
		time.AfterFunc(time.Second, func() { closed <- b.Close(t.Context()) })
		wants(t, "Acquire", testdb.Err(b.Acquire(t.Context(), job)), quorum.ErrClosed)
		must(t, <-closed)
		db.within("Close", 4*time.Second, 4*time.Second)
		must(t, a.Close(t.Context()))
		wants(t, "a lease of a manager that was closed", l.Err(), txlock.ErrNotHeld)
		db.holds("after Close", 0)
	})
}

// TestHanging proves that nodes that don't answer are not waited for by an Acquire that has a
// majority without them, and for no longer than NodeTimeout by one that has none.
func TestHanging(t *testing.T) {
	inMemory(t, 5, func(t *testing.T, db *memory) {
		const limit = 10 * time.Second
		m, stores := db.installed(quorum.NodeTimeout(limit))
		stores[3].SetFault(hangs)
		stores[4].SetFault(hangs)
		release(t, acquire(t, m, job))
		db.within("Acquire and Release with a majority that answers", 0, 10*time.Millisecond)
		stores[2].SetFault(hangs)
		wants(t, "TryAcquire", testdb.Err(m.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		db.within("TryAcquire", limit, limit+10*time.Millisecond)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "Install", m.Install(ended), txlock.ErrNoQuorum)
		for _, s := range stores {
			s.Up()
		}
		time.Sleep(time.Minute)
		db.holds("in the end", 0)
	})
}

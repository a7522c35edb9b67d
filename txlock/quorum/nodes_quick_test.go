package quorum_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// TestMajorityOfNodes proves that a lease is granted, and goes on, while no more than a
// minority of the nodes is down, and that nothing is held where a majority is.
func TestMajorityOfNodes(t *testing.T) {
	for down := range 6 {
		t.Run("", func(t *testing.T) {
			inMemory(t, 5, func(t *testing.T, db *memory) {
				db.manager() // installs
				m, stores := db.process()
				for _, s := range stores[:down] {
					s.Down(nil)
				}
				l, err := m.Acquire(t.Context(), job)
				if down > 2 {
					wants(t, "Acquire", err, txlock.ErrNoQuorum)
					if err == nil || !strings.Contains(err.Error(), "3 of 5 databases are needed") || !errors.Is(err, mysql.ErrInvalidConn) {
						t.Error(err)
					}
					db.within("the third round has failed", 0, time.Second)
					for _, s := range stores {
						s.Up()
					}
					time.Sleep(10 * time.Second)
					if n := db.held(); n != 0 {
						t.Errorf("held by %d nodes", n)
					}
					return
				}
				must(t, err)
				time.Sleep(time.Hour)
				must(t, l.Err())
				if n := db.held(); n != 5-down {
					t.Errorf("held by %d nodes", n)
				}
				for _, s := range stores {
					s.Up()
				}
				time.Sleep(8 * time.Second) // a quarter of the time to live: they are taken in
				if n := db.held(); n != 5 {
					t.Errorf("held by %d nodes", n)
				}
				for i := range 5 {
					node, err := l.Node(i)
					must(t, err)
					if node.Token() < l.Token() {
						t.Errorf("node %d has token %d, the lease %d", i, node.Token(), l.Token())
					}
				}
				release(t, l)
				synctest.Wait()
				if n := db.held(); n != 0 {
					t.Errorf("held by %d nodes after Release", n)
				}
			})
		})
	}
}

// TestLossOfTheMajority proves that the lease is lost when a majority of the nodes is over,
// before anybody else can have one, and what is left of it is released.
func TestLossOfTheMajority(t *testing.T) {
	inMemory(t, 5, func(t *testing.T, db *memory) {
		db.manager()
		m, stores := db.process()
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		synctest.Wait() // all nodes have joined
		working, cancel := l.Context(t.Context())
		defer cancel()
		for _, s := range stores[:3] {
			s.Down(nil)
		}
		other := db.manager()
		next := make(chan *quorum.Lease)
		go func() {
			l2, err := other.Acquire(t.Context(), job)
			if err != nil {
				t.Error(err)
			}
			if l.Valid() {
				t.Error("two hold it")
			}
			next <- l2
		}()
		<-working.Done()
		db.within("lost", 29*time.Second, 30*time.Second)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		wants(t, "the cause", context.Cause(working), txlock.ErrLost)
		l2 := <-next
		db.within("granted", 30*time.Second, 32*time.Second)
		higher(t, l2, l)
		wants(t, "Release", l.Release(t.Context()), txlock.ErrNotHeld)
		for _, s := range stores {
			s.Up()
		}
		time.Sleep(time.Minute)
		must(t, l2.Err())
		release(t, l2)
	})
}

// TestSlowNode proves that a node which answers late delays nobody, and joins later.
func TestSlowNode(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		db.manager()
		m, stores := db.process()
		stores[1].SetFault(late(150 * time.Millisecond))
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		db.within("granted", 0, 0)
		if _, err := l.Node(1); !errors.Is(err, txlock.ErrNotHeld) {
			t.Errorf("the slow node: %v", err)
		}
		time.Sleep(20 * time.Second)
		node, err := l.Node(1)
		must(t, err)
		if node.Token() < l.Token() {
			t.Errorf("token %d, want %d", node.Token(), l.Token())
		}
		stores[1].Up()
		release(t, l)
	})
}

// TestNodeReleasedByForce proves that a node where somebody has released the lease by force is
// not acquired again, while the others go on.
func TestNodeReleasedByForce(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		l, err := db.manager().Acquire(t.Context(), job)
		must(t, err)
		synctest.Wait() // all nodes have joined
		pool := db.nodes[1].Store().Pool()
		operator, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
		must(t, err)
		must(t, operator.ForceRelease(t.Context(), job))
		must(t, operator.Close(t.Context()))
		must(t, pool.Close())
		for range 60 {
			time.Sleep(time.Second)
			if n := db.held(); n != 2 {
				t.Fatalf("held by %d nodes after %v", n, time.Since(db.begun))
			}
		}
		wants(t, "Node", second(l.Node(1)), txlock.ErrNotHeld, lease.ErrReplaced)
		must(t, l.Err())
		release(t, l)
	})
}

// TestGrantThatNobodyAwaits proves that what a node grants after the answer was given is
// released.
func TestGrantThatNobodyAwaits(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		db.manager()
		m, stores := db.process()
		stores[2].Down(nil)
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		other, slow := db.process()
		granted := make(chan struct{})
		slow[2].SetFault(func(_ context.Context, _ string, _ store.Row, call func() error) error {
			time.Sleep(150 * time.Millisecond)
			err := call()
			if db.held() == 3 {
				close(granted)
				slow[2].Up()
			}
			return err
		})
		wants(t, "TryAcquire", second(other.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		db.within("refused", 0, 0)
		<-granted
		synctest.Wait()
		if n := db.held(); n != 2 {
			t.Errorf("held by %d nodes", n)
		}
		release(t, l)
	})
}

// TestLifetimeOfLateJoiners proves that a lease ends with its maximum lifetime, also where a
// majority has joined it later.
func TestLifetimeOfLateJoiners(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		const lifetime = 5 * time.Minute
		db.manager()
		m, stores := db.process()
		l, err := m.Acquire(t.Context(), job, lease.MaxLifetime(lifetime))
		must(t, err)
		synctest.Wait() // all nodes have joined
		for i, s := range stores[:2] {
			s.Down(nil)
			time.Sleep(40 * time.Second) // its lease is over
			if _, err := l.Node(i); !errors.Is(err, txlock.ErrNotHeld) {
				t.Errorf("node %d: %v", i, err)
			}
			s.Up()
			time.Sleep(10 * time.Second)
			if _, err := l.Node(i); err != nil {
				t.Errorf("node %d: %v", i, err)
			}
		}
		<-l.Done()
		db.within("over", lifetime-time.Second, lifetime)
		wants(t, "Err", l.Err(), txlock.ErrLost)
		synctest.Wait()
		if n := db.held(); n != 0 {
			t.Errorf("held by %d nodes", n)
		}
	})
}

// TestHigherClock proves that the token of a lease is the highest of its nodes', and is
// known to a majority, so that it rises whatever the clocks are.
func TestHigherClock(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		m, stores := db.process()
		must(t, m.Install(t.Context()))
		db.nodes[0].SetClock(time.Hour)
		db.nodes[2].SetClock(-time.Hour)
		time.Sleep(time.Minute) // they are read again
		var last uint64
		for round := range 6 {
			out := stores[round%3]
			out.Down(nil)
			l, err := m.Acquire(t.Context(), job)
			must(t, err)
			if l.Token() <= last {
				t.Errorf("token %d follows %d", l.Token(), last)
			}
			last = l.Token()
			know := 0
			for _, node := range db.nodes {
				row, err := node.Store().Stored(t.Context(), store.Row{Key: job.String()})
				must(t, err)
				if row.Token >= last {
					know++
				}
			}
			if know < 2 {
				t.Errorf("%d nodes know of token %d", know, last)
			}
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
		if err == nil || !strings.Contains(err.Error(), "its data are new") {
			t.Error(err)
		}
		must(t, m.Install(t.Context())) // too late, and no harm
		wants(t, "Acquire after a late Install", second(m.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		time.Sleep(recovery - time.Since(db.begun) - time.Millisecond)
		wants(t, "Acquire just before they count", second(m.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		time.Sleep(2 * time.Millisecond)
		l, err := m.TryAcquire(t.Context(), job)
		must(t, err)
		release(t, l)

		// Two nodes lose their data, of which the holder's majority was.
		l, err = m.Acquire(t.Context(), job)
		must(t, err)
		db.nodes[0], db.nodes[1] = memstore.New(), memstore.New()
		other, _ := db.process()
		must(t, other.Install(t.Context()))
		wants(t, "Acquire on nodes that came back empty", second(other.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		release(t, l)
		time.Sleep(recovery)
		l, err = other.Acquire(t.Context(), job)
		must(t, err)
		release(t, l)
	})
}

// TestOneAtATime proves that of several processes one holds the lease at a time, in which
// every process has its turn, and one that waits in the same process is told at once.
func TestOneAtATime(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		managers := []*quorum.Manager{db.manager(), db.manager(), db.manager()}
		var mu sync.Mutex
		holders, tokens := 0, uint64(0)
		var all sync.WaitGroup
		for n := range 12 {
			all.Go(func() {
				must(t, managers[n%3].Do(t.Context(), job, func(ctx context.Context, l *quorum.Lease) error {
					mu.Lock()
					holders++
					if holders > 1 || l.Token() <= tokens {
						t.Errorf("%d holders, token %d follows %d", holders, l.Token(), tokens)
					}
					tokens = l.Token()
					mu.Unlock()
					time.Sleep(40 * time.Second) // it is renewed
					again, err := managers[n%3].Acquire(ctx, job)
					must(t, err)
					if again.Token() != l.Token() {
						t.Errorf("token %d, re-entered %d", l.Token(), again.Token())
					}
					mu.Lock()
					holders--
					mu.Unlock()
					return again.Release(ctx)
				}))
			})
		}
		all.Wait()
		db.within("all", 480*time.Second, 490*time.Second)
	})
}

// TestBusyNamesAHolder proves that with NameHolders a refusal names who holds the lease of a
// node.
func TestBusyNamesAHolder(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		l, err := a.Acquire(t.Context(), job)
		must(t, err)
		var held *txlock.HeldError
		_, err = b.TryAcquire(t.Context(), job)
		if wants(t, "TryAcquire", err, txlock.ErrBusy); errors.As(err, &held) {
			t.Errorf("named without a look: %v", err)
		}
		_, err = b.TryAcquire(t.Context(), job, lease.NameHolders())
		wants(t, "TryAcquire", err, txlock.ErrBusy)
		if !errors.As(err, &held) || held.Key != job || held.Owner != l.Owner() || held.Since.IsZero() {
			t.Errorf("%v names %+v, want %q", err, held, l.Owner())
		}
		must(t, l.Release(t.Context()))
	})
}

// TestLimitsOfAWait proves that a wait ends with its limit, with its context and with Close,
// and a try at once.
func TestLimitsOfAWait(t *testing.T) {
	inMemory(t, 3, func(t *testing.T, db *memory) {
		a, b := db.manager(), db.manager()
		l, err := a.Acquire(t.Context(), job)
		must(t, err)
		wants(t, "TryAcquire", second(b.TryAcquire(t.Context(), job)), txlock.ErrBusy)
		db.within("TryAcquire", 0, 0)
		wants(t, "Acquire", second(b.Acquire(t.Context(), job, lease.WaitAtMost(2*time.Second))), txlock.ErrWaitTimeout)
		db.within("the limit", 2*time.Second, 2*time.Second)
		ctx := limited(t, time.Second)
		wants(t, "Acquire", second(b.Acquire(ctx, job)), context.DeadlineExceeded)
		db.within("the context", 3*time.Second, 3*time.Second)
		closed := make(chan error)
		time.AfterFunc(time.Second, func() { closed <- b.Close(t.Context()) })
		wants(t, "Acquire", second(b.Acquire(t.Context(), job)), quorum.ErrClosed)
		must(t, <-closed)
		db.within("Close", 4*time.Second, 4*time.Second)
		must(t, a.Close(t.Context()))
		wants(t, "a lease of a manager that was closed", l.Err(), txlock.ErrNotHeld)
		if n := db.held(); n != 0 {
			t.Errorf("held by %d nodes after Close", n)
		}
	})
}

// TestHanging proves that nodes that don't answer are not waited for by an Acquire that has a
// majority without them, and for no longer than NodeTimeout by one that has none.
func TestHanging(t *testing.T) {
	inMemory(t, 5, func(t *testing.T, db *memory) {
		const limit = 10 * time.Second
		db.manager()
		m, stores := db.process(quorum.NodeTimeout(limit))
		hang := func(s *memstore.Store) {
			s.SetFault(func(ctx context.Context, _ string, _ store.Row, _ func() error) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}
		hang(stores[3])
		hang(stores[4])
		l, err := m.Acquire(t.Context(), job)
		must(t, err)
		release(t, l)
		db.within("Acquire and Release with a majority that answers", 0, 10*time.Millisecond)
		hang(stores[2])
		wants(t, "TryAcquire", second(m.TryAcquire(t.Context(), job)), txlock.ErrNoQuorum)
		db.within("TryAcquire", limit, limit+10*time.Millisecond)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wants(t, "Install", m.Install(ended), txlock.ErrNoQuorum)
		for _, s := range stores {
			s.Up()
		}
		time.Sleep(time.Minute)
		if n := db.held(); n != 0 {
			t.Errorf("held by %d nodes", n)
		}
	})
}

package quorum_test

import (
	"bytes"
	"context"
	"errors"
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

// ahead makes the tokens of a node higher than those of the others, so that these raise
// theirs.
const ahead = "UPDATE lockstep_leases SET token = token + 1000000000000 WHERE name = ?"

var errCut = errors.New("the connection is cut")

// raises reports whether what is sent raises a token.
func raises(sent []byte) bool { return bytes.Contains(sent, []byte("SwapLease")) }

// TestFailedRoundReleasesWhatHadConfirmed proves that a node that has confirmed the token
// of a lease which then gets no majority is released, and not renewed.
func TestFailedRoundReleasesWhatHadConfirmed(t *testing.T) {
	t.Parallel()
	nodes, key := newNodes(t, 3), named()
	var confirmed atomic.Bool
	leases := newLeasesOver(t, nodes, map[int]filter{1: {sends: func(sent []byte) error {
		if !raises(sent) {
			return nil
		}
		confirmed.Store(held(t, nodes[:1], key) == 1)
		return errCut
	}}})
	m, other := newManager(t, leases, quorum.NodeTimeout(15*time.Second)), newLeases(t, nodes[2:])[0]
	must(t, m.Install(t.Context()))
	defer release(t, acquireOf(t, other, key))
	release(t, acquireOf(t, leases[0], key)) // a row of the node
	exec(t, nodes[0], ahead, key.String())
	l, err := m.TryAcquire(t.Context(), key)
	if err == nil {
		release(t, l)
		t.Fatal("granted by a node that has confirmed, and one that could not")
	}
	if !confirmed.Load() {
		t.Fatal("the first node had not granted it: this proves nothing")
	}
	await(t, "what had confirmed is released", func() bool { return held(t, nodes[:2], key) == 0 })
}

// TestLossBeforeTheLastConfirmation proves that a lease is not granted whose first node
// was lost before the last one had confirmed.
func TestLossBeforeTheLastConfirmation(t *testing.T) {
	t.Parallel()
	nodes, key := newNodes(t, 3), named()
	raising, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	lost := make(tellLost, 1)
	leases := newLeasesOver(t, nodes, map[int]filter{1: {sends: func(sent []byte) error {
		if raises(sent) {
			once.Do(func() { close(raising) })
			<-goOn
		}
		return nil
	}}}, lease.Observe(lost.observe), lease.RenewEvery(100*time.Millisecond))
	m, other := newManager(t, leases, quorum.NodeTimeout(15*time.Second)), newLeases(t, nodes[2:])[0]
	must(t, m.Install(t.Context()))
	defer release(t, acquireOf(t, other, key))
	release(t, acquireOf(t, leases[0], key))
	exec(t, nodes[0], ahead, key.String())
	result := make(chan error, 1)
	go func() {
		l, err := m.TryAcquire(t.Context(), key)
		if err == nil {
			err = errors.Join(errGranted, l.Release(context.WithoutCancel(t.Context())))
		}
		result <- err
	}()
	<-raising
	await(t, "the first node has confirmed", func() bool { return held(t, nodes[:1], key) == 1 })
	force(t, nodes[0], key)
	<-lost // its manager knows
	close(goOn)
	if err := <-result; errors.Is(err, errGranted) || !errors.Is(err, txlock.ErrNoQuorum) && !errors.Is(err, txlock.ErrBusy) {
		t.Errorf("TryAcquire: %v, want that there was no majority any more", err)
	}
	await(t, "what had confirmed is released", func() bool { return held(t, nodes[:2], key) == 0 })
}

var errGranted = errors.New("granted")

// tellLost is told of a lease that is lost.
type tellLost chan txlock.Key

func (o tellLost) observe(_ context.Context, e txlock.Event) {
	if e.Kind != txlock.Lost {
		return
	}
	select {
	case o <- e.Key:
	default: // one is enough
	}
}

// TestLateJoinerHasTheToken proves that a node which joins a lease later knows of its
// token, however far that is ahead of the node's clock.
func TestLateJoinerHasTheToken(t *testing.T) {
	t.Parallel()
	nodes, key := newNodes(t, 3), named()
	m := newQuorum(t, nodes, lease.TTL(30*time.Second), lease.RenewEvery(500*time.Millisecond))
	release(t, acquire(t, m, key))
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
	exec(t, nodes[0], ahead, key.String())
	exec(t, nodes[1], ahead, key.String())
	exec(t, nodes[2], "RENAME TABLE lockstep_leases TO gone")
	l := acquire(t, m, key)
	exec(t, nodes[2], "RENAME TABLE gone TO lockstep_leases")
	joined(t, l, 3)
	if token := number(t, nodes[2], "SELECT token FROM lockstep_leases WHERE name = ? AND slot = 0", key.String()); uint64(token) < l.Token() {
		t.Errorf("it has joined with token %d, the lease has %d", token, l.Token())
	}
	release(t, l)
}

// TestLeftIsThatOfTheMajority proves that Left says how long a majority is held, and not
// some of its nodes: here two of three hold it, one of which is not renewed.
func TestLeftIsThatOfTheMajority(t *testing.T) {
	t.Parallel()
	nodes, key := newNodes(t, 3), named()
	leases := newLeases(t, nodes, lease.TTL(20*time.Second))
	m, other := newManager(t, leases, quorum.NodeTimeout(10*time.Second)), newLeases(t, nodes[2:])[0]
	must(t, m.Install(t.Context()))
	defer release(t, acquireOf(t, other, key))
	l := acquire(t, m, key)
	joined(t, l, 2)
	renewed, err := l.Node(0)
	must(t, err)
	behind, err := l.Node(1)
	must(t, err)
	for begun := behind.Remaining(); begun-behind.Remaining() < 200*time.Millisecond; {
		time.Sleep(10 * time.Millisecond)
	}
	must(t, renewed.Renew(t.Context()))
	atMost := behind.Remaining()
	if left := l.Remaining(); left > atMost || left <= 0 {
		t.Errorf("%v are left, of a majority with %v", left, atMost)
	}
	if renewed.Remaining() <= atMost {
		t.Fatal("both have as much left: this proves nothing")
	}
	release(t, l)
}

// lose makes a database come back empty.
func lose(t testing.TB, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "DROP TABLE lockstep_leases")
	createLeases(t, db)
}

// age makes the data of a node older, instead of waiting.
func age(t testing.TB, db *testdb.DB, by time.Duration) {
	t.Helper()
	exec(t, db, "UPDATE lockstep_leases SET expires_us = expires_us - ? WHERE name = 'lockstep:epoch'", by.Microseconds())
}

// TestEmptyNode proves that nodes that come back empty don't let anybody in beside
// the holder, and count again after MaxTTL and ClockSkew.
func TestEmptyNode(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 5)
	const skew = time.Hour // by which a test may be late
	m, other := newQuorum(t, nodes), newManager(t, newLeases(t, nodes), quorum.ClockSkew(skew), quorum.NodeTimeout(10*time.Second))
	key := named()
	l := acquire(t, m, key)
	joined(t, l, 5)
	for _, db := range nodes[:3] { // the holder can't know before its next renewal
		lose(t, db)
	}
	_, err := other.TryAcquire(t.Context(), key)
	wants(t, "TryAcquire", err, txlock.ErrNoQuorum)
	if errors.Is(err, txlock.ErrBusy) || !strings.Contains(err.Error(), "its data are new") {
		t.Errorf("%v, want that the nodes' data are new", err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the holder can't know yet: %v", err)
	}
	wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })

	// Two nodes, and one that is nearly old enough: by a minute.
	age(t, nodes[0], skew)
	if early, err := other.TryAcquire(t.Context(), key); err == nil {
		release(t, early)
		t.Error("granted by a node whose data are younger than MaxTTL and ClockSkew")
	} else {
		wants(t, "TryAcquire", err, txlock.ErrNoQuorum)
	}
	age(t, nodes[0], time.Minute)
	next := acquire(t, other, key)
	higher(t, next, l)
	release(t, next)
}

// TestInstall proves that new databases count at once only by Install, and only
// where none of them has been used before.
func TestInstall(t *testing.T) {
	t.Parallel()
	key := named()
	t.Run("without", func(t *testing.T) {
		t.Parallel()
		nodes := newNodes(t, 3)
		const longest, skew = 3 * time.Second, 2 * time.Second
		m := newManager(t, newLeases(t, nodes, lease.TTL(longest)), quorum.MaxTTL(longest), quorum.ClockSkew(skew))
		began := time.Now()
		var err error
		await(t, "all nodes were used", func() bool { // one that is slow is not waited for
			wants(t, "TryAcquire", second(m.TryAcquire(t.Context(), key)), txlock.ErrNoQuorum)
			used := int64(0)
			for _, db := range nodes {
				used += number(t, db, "SELECT COUNT(*) FROM lockstep_leases WHERE name = 'lockstep:epoch'")
			}
			return used == 3
		})
		if err := m.Install(t.Context()); err != nil { // too late, and no harm
			t.Error(err)
		}
		_, err = m.TryAcquire(t.Context(), key)
		wants(t, "TryAcquire", err, txlock.ErrNoQuorum)
		var l *quorum.Lease
		await(t, "the nodes count", func() bool {
			l, err = m.TryAcquire(t.Context(), key)
			return err == nil
		})
		if took := time.Since(began); took < longest+skew {
			t.Errorf("they count after %v", took)
		}
		release(t, l)
	})
	t.Run("one of them was used", func(t *testing.T) {
		t.Parallel()
		nodes := newNodes(t, 3)
		m := newQuorum(t, nodes)
		lose(t, nodes[2])
		must(t, m.Install(t.Context()))
		l := acquire(t, m, key)
		if _, err := l.Node(2); err == nil {
			t.Error("a node that has lost its data counts after Install")
		}
		release(t, l)
		await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
		lose(t, nodes[1])
		wants(t, "TryAcquire with two of three lost", second(m.TryAcquire(t.Context(), key)), txlock.ErrNoQuorum)
	})
	t.Run("one doesn't answer", func(t *testing.T) {
		t.Parallel()
		nodes := newNodes(t, 3)
		m := newManager(t, newLeases(t, nodes))
		exec(t, nodes[1], "RENAME TABLE lockstep_leases TO gone")
		wants(t, "Install", m.Install(t.Context()), txlock.ErrNoQuorum, txlock.ErrSchema)
		for _, i := range []int{0, 2} {
			if n := number(t, nodes[i], "SELECT COUNT(*) FROM lockstep_leases"); n != 0 {
				t.Errorf("node %d has %d rows", i, n)
			}
		}
		exec(t, nodes[1], "RENAME TABLE gone TO lockstep_leases")
		must(t, m.Install(t.Context()))
		release(t, acquire(t, m, key))
	})
}

// TestSameDatabase proves that two pools of one database are not counted as two.
func TestSameDatabase(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 2)
	managers := newLeases(t, append(nodes, nodes[0]))
	m := newManager(t, managers)
	wants(t, "Install", m.Install(t.Context()), txlock.ErrInvalidOption)
	l, err := m.TryAcquire(t.Context(), named())
	if err == nil {
		release(t, l)
		t.Error("granted by one database twice")
	}
}

package quorum_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

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

// TestSteppedClock shows what is not promised: a clock that is set forward in the one
// database that two majorities share lets both in. The token still rises, and a
// transaction in that database is guarded for the second only.
func TestSteppedClock(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	leases := newLeases(t, nodes)
	m, other := newManager(t, leases), newQuorum(t, nodes)
	key := named()
	somebody, err := leases[2].Acquire(t.Context(), key)
	must(t, err)
	l := acquire(t, m, key) // in 0 and 1
	release(t, somebody)
	exec(t, nodes[1], "UPDATE lockstep_leases SET expires_us = 1 WHERE name = ?", key.String())
	second := acquire(t, other, key) // in 1 and 2
	if l.Err() != nil || second.Err() != nil {
		t.Errorf("the first: %v, the second: %v; want them to believe", l.Err(), second.Err())
	}
	higher(t, second, l)
	tx, err := poolOf(leases[1]).BeginTx(t.Context(), nil)
	must(t, err)
	node, err := l.Node(1)
	must(t, err)
	wants(t, "Guard of the first", node.Guard(t.Context(), tx), txlock.ErrLost)
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	wants(t, "Err of the first", l.Err(), txlock.ErrLost)
	release(t, second)
}

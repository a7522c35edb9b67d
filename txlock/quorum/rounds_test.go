package quorum_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// lose makes a database come back empty.
func lose(t testing.TB, db *testdb.DB) {
	t.Helper()
	db.Exec(t, "DROP TABLE lockstep_leases")
	createLeases(t, db)
}

// TestInstall proves that new databases count at once only by Install, and only where all answer
// and none of them has been used before; and that those that come back empty don't let anybody in
// beside the holder, and count again after MaxTTL and ClockSkew.
func TestInstall(t *testing.T) {
	t.Parallel()
	const skew = time.Hour // by which a test may be late
	nodes, key := newNodes(t, 3), named()
	m, other := newManager(t, newLeases(t, nodes), quorum.NodeTimeout(10*time.Second)), newManager(t, newLeases(t, nodes), quorum.ClockSkew(skew), quorum.NodeTimeout(10*time.Second))
	nodes[1].Exec(t, "RENAME TABLE lockstep_leases TO gone")
	wants(t, "Install", m.Install(t.Context()), txlock.ErrNoQuorum, txlock.ErrSchema)
	for _, i := range []int{0, 2} {
		if n := number(t, nodes[i], "SELECT COUNT(*) FROM lockstep_leases"); n != 0 {
			t.Errorf("node %d has %d rows", i, n)
		}
	}
	nodes[1].Exec(t, "RENAME TABLE gone TO lockstep_leases")
	must(t, m.Install(t.Context()))

	lose(t, nodes[2])
	must(t, m.Install(t.Context()))
	l := acquire(t, m, key)
	if _, err := l.Node(2); err == nil {
		t.Error("a node that has lost its data counts after Install")
	}
	lose(t, nodes[1]) // the holder can't know before its next renewal
	refused := func() error {
		t.Helper()
		early, err := other.TryAcquire(t.Context(), key)
		if err == nil {
			release(t, early)
			t.Error("granted by nodes whose data are younger than MaxTTL and ClockSkew")
		}
		return err
	}
	if err := refused(); !errors.Is(err, txlock.ErrNoQuorum) || errors.Is(err, txlock.ErrBusy) || !strings.Contains(err.Error(), "its data are new") {
		t.Errorf("%v, want that the nodes' data are new", err)
	}
	wants(t, "Renew", l.Renew(t.Context()), txlock.ErrLost)
	await(t, "all nodes are free", func() bool { return held(t, nodes, key) == 0 })
	ages := func(by time.Duration) { // instead of waiting
		for _, db := range nodes[1:] {
			db.Exec(t, fmt.Sprintf("UPDATE lockstep_leases SET expires_us = expires_us - %d WHERE name = 'lockstep:epoch'", by.Microseconds()))
		}
	}
	ages(skew) // old enough but for a minute
	wants(t, "TryAcquire", refused(), txlock.ErrNoQuorum)
	ages(time.Minute)
	next := acquire(t, other, key)
	higher(t, next, l)
	release(t, next)
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

package quorum_test

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

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

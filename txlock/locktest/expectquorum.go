package locktest

import (
	"context"
	"fmt"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/internal/nodes"
)

// QuorumLeases is what mocks, one for each database, expect of a quorum.Manager over a
// lease.Manager on each. The first of them are the least majority, which answers; the
// others are as databases that are down: nothing is expected of them, and what they are
// asked their mocks refuse.
//
// It can't be otherwise: all databases are asked at once, and a call returns with the
// majority, whether the others have been asked by then or not. For the same reason say all
// that is expected before the first call, and where there is more than one lease let the
// mocks match in any order; what is left they know after Manager.Close. Majorities that
// are lost, or change, and waits are cases for Memory.Quorum.
//
// quorum.MaxTTL must allow for the TTL of an hour that Leases advises, and
// quorum.NodeTimeout be long where the machine is busy.
type QuorumLeases struct{ nodes []*Leases }

// ExpectQuorum is for a quorum.Manager that is new, over managers that are new.
func ExpectQuorum(t testing.TB, mocks []sqlmock.Sqlmock, options ...Option) *QuorumLeases {
	t.Helper()
	q := new(QuorumLeases)
	for _, mock := range mocks[:len(mocks)/2+1] {
		q.nodes = append(q.nodes, ExpectLeases(t, mock, options...))
	}
	return q
}

// ExpectAcquire expects Acquire, TryAcquire or the beginning of Do.
func (q *QuorumLeases) ExpectAcquire(key txlock.Key) *ExpectedMajority {
	return &ExpectedMajority{q, key}
}

// ExpectedMajority is a lease that a majority is asked for.
type ExpectedMajority struct {
	quorum *QuorumLeases
	key    txlock.Key
}

// Granted gives the lease in each database with this token.
func (e *ExpectedMajority) Granted(token uint64) {
	for _, node := range e.quorum.nodes {
		node.ExpectAcquire(e.key).Granted(token)
		node.expectEpoch(e.key)
	}
}

// Busy refuses the lease, which somebody else holds: TryAcquire returns txlock.ErrBusy.
func (e *ExpectedMajority) Busy() {
	for _, node := range e.quorum.nodes {
		node.ExpectAcquire(e.key).Busy()
	}
}

// ExpectRelease expects Lease.Release, or the end of Do.
func (q *QuorumLeases) ExpectRelease(key txlock.Key) {
	for _, node := range q.nodes {
		node.ExpectRelease(key).Succeeds()
	}
}

// expectEpoch expects the question how old the data of a database are, which are old
// enough to count.
func (l *Leases) expectEpoch(key txlock.Key) {
	l.expect(fmt.Sprintf("the epoch after Acquire(%q)", key), txlock.Key{}, calm, nil, func() error {
		_, err := nodes.Of(l.manager).Epoch(context.Background())
		return err
	})
}

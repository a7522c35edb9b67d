package quorum_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dca00107/lockstep/internal/lease/memstore"
	"github.com/dca00107/lockstep/internal/lease/store"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/lease"
	"github.com/dca00107/lockstep/txlock/quorum"
)

// job is a key of the tests in memory, each of which has nodes of its own.
var job = txlock.Named("job")

// memory are nodes in memory, for a test in a bubble: time passes when everybody waits.
type memory struct {
	t     *testing.T
	nodes []*memstore.Server
	begun time.Time
}

// inMemory runs a test without servers, on so many nodes.
func inMemory(t *testing.T, n int, test func(t *testing.T, db *memory)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := time.AfterFunc(72*time.Hour, func() { panic(t.Name() + " does not end") })
		defer limit.Stop()
		db := &memory{t: t, begun: time.Now()}
		for range n {
			db.nodes = append(db.nodes, memstore.New())
		}
		test(t, db)
	})
}

// process returns a manager of a process of its own, and its ways to the nodes.
func (db *memory) process(options ...quorum.Option) (*quorum.Manager, []*memstore.Store) {
	db.t.Helper()
	var leases []*lease.Manager
	var stores []*memstore.Store
	for _, node := range db.nodes {
		s := node.Store()
		pool := s.Pool()
		m, err := lease.NewManager(pool, lease.PurgeEvery(0, time.Hour))
		must(db.t, err)
		db.t.Cleanup(func() {
			closeIt(db.t, m)
			must(db.t, pool.Close())
		})
		leases, stores = append(leases, m), append(stores, s)
	}
	return newManager(db.t, leases, options...), stores
}

// manager is process on nodes that count.
func (db *memory) manager() *quorum.Manager {
	db.t.Helper()
	m, _ := db.process()
	must(db.t, m.Install(db.t.Context()))
	return m
}

// held counts the nodes where somebody holds the lease.
func (db *memory) held() (n int) {
	db.t.Helper()
	for _, node := range db.nodes {
		seen, err := node.Store().Look(db.t.Context(), store.Row{Key: job.String()})
		must(db.t, err)
		if seen.Left > 0 {
			n++
		}
	}
	return n
}

// within checks how much time has passed in the test.
func (db *memory) within(what string, least, most time.Duration) {
	db.t.Helper()
	if got := time.Since(db.begun); got < least || got > most {
		db.t.Errorf("%s after %v, want %v to %v", what, got, least, most)
	}
}

// late lets the calls of a node arrive later.
func late(d time.Duration) memstore.Fault {
	return func(_ context.Context, _ string, _ store.Row, call func() error) error {
		time.Sleep(d)
		return call()
	}
}

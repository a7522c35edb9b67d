//go:build cluster

package cluster

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

// TestSinglePrimary has clients on the primary of a Group Replication that has one, which is
// killed, hangs or is cut off, so that the group elects another; the old one joins again. Or another
// is made the primary, and the old one refuses writes: the pools leave it. What TestFaults promises
// of several primaries holds, on every member.
func TestSinglePrimary(t *testing.T) {
	if slices.Contains(testdb.Engines(), testdb.MySQL) {
		singlePrimary(t, "CLUSTER_DURATION", nil)
	}
}

// singlePrimary leads clients to the primary by a route that follows it, or behind what stands
// before the members.
func singlePrimary(t *testing.T, lasting string, behind func(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (lead func(*mysql.Config))) {
	nodes, err := testdb.StartGroup(t.Context(), 3, testdb.Parted(), testdb.Args(
		"--loose-group-replication-single-primary-mode=ON", "--loose-group-replication-enforce-update-everywhere-checks=OFF"))
	check(t, err)
	db := nodes[0].Open(t)
	t.Cleanup(func() { // before the database is dropped, which only a primary can
		if t.Failed() {
			for i, node := range nodes {
				t.Logf("node %d wrote:\n%s", i, node.Log())
			}
		}
		if err := testdb.StopAll(nodes); err != nil {
			t.Error(err)
		}
	})
	work, to := load.New(t, db), new(route)
	to.to(nodes[0])
	following, lead := follow(t, to, nodes), to.lead
	if behind != nil {
		lead = behind(t, db, nodes)
	}
	clients := load.NewClients(t, len(nodes), db, lead)
	work.Run(t, clients, func() {
		faults, elected := make(map[string]int), 0
		turn := 0
		for end := time.Now().Add(load.FaultsLast(t, lasting)); time.Now().Before(end) && !t.Failed(); turn++ {
			before := following.primary()
			if turn%3 == 0 && behind == nil { // a router decides itself when it leaves
				following.handOver(t, db, nodes)
				faults["read only"]++
			} else {
				faults[fault(t, db, before)]++
			}
			if following.primary() != before {
				elected++
			}
			time.Sleep(rand.N(2 * time.Second))
		}
		t.Logf("faults: %v, %d times another primary was elected", faults, elected)
		if elected == 0 {
			t.Error("no other primary was elected")
		}
		load.Connected(t, load.Pools(clients)...)
	})
	for i, node := range nodes {
		t.Logf("node %d:", i)
		work.Check(t, caughtUp(t, db.At(t, node)))
	}
	work.CheckHolds(t)
}

// follower knows which member is the primary.
type follower struct {
	mu  sync.Mutex
	now *testdb.Server
}

func (f *follower) primary() *testdb.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// follow routes new connections to the member that a majority has elected, as a router does.
func follow(t *testing.T, to *route, nodes []*testdb.Server) *follower {
	t.Helper()
	f := &follower{now: nodes[0]}
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	t.Cleanup(func() {
		stop()
		following.Wait()
	})
	for _, node := range nodes {
		pool := load.Administrator(t, node, time.Second)
		following.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				var itself bool
				err := pool.QueryRowContext(ctx, `SELECT COALESCE(SUM(MEMBER_ROLE = 'PRIMARY' AND MEMBER_ID = @@server_uuid), 0) AND COUNT(*) >= 2
					FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'`).Scan(&itself)
				if err != nil || !itself {
					continue
				}
				f.mu.Lock()
				f.now = node
				to.to(node)
				f.mu.Unlock()
			}
		})
	}
	return f
}

// handOver makes another member the primary, and returns when the clients have left the old one.
func (f *follower) handOver(t *testing.T, db *testdb.DB, nodes []*testdb.Server) {
	t.Helper()
	old := f.primary()
	next := nodes[(slices.Index(nodes, old)+1+rand.IntN(len(nodes)-1))%len(nodes)]
	var id string
	check(t, db.At(t, next).Admin().QueryRowContext(t.Context(), "SELECT @@server_uuid").Scan(&id))
	before := db.At(t, old)
	before.Exec(t, "DO group_replication_set_as_primary('"+id+"', 2)") // transactions have 2 s to end
	if !testdb.Await(time.Minute, func() bool { return f.primary() == next }) {
		t.Error("the clients aren't led to the new primary")
	}
	left(t, before)
}

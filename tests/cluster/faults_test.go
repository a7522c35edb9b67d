//go:build cluster

package cluster

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

// callLimit bounds a call of a client, on a node that may hang.
const callLimit = load.CallLimit

// TestFaults has clients on all nodes at once, while nodes are killed, hang or are cut
// off, and come back. Updates under a lock, by versions and under a guarded lease are not lost, what
// was acknowledged stays, what was refused is not there, leases are held by one at a
// time and their tokens rise, also in the data.
func TestFaults(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		work := load.New(t, db)
		var clients []*load.Client
		for i, node := range nodes {
			clients = append(clients, load.NewClient(t, i, caughtUpConfig(t, db, node)))
		}
		work.Run(t, clients, func() {
			faults := make(map[string]int)
			for end := time.Now().Add(load.FaultsLast(t, "CLUSTER_DURATION")); time.Now().Before(end) && !t.Failed(); {
				faults[fault(t, db, nodes[rand.IntN(len(nodes))])]++
				time.Sleep(rand.N(2 * time.Second))
			}
			t.Logf("faults: %v", faults)
		})
		for i, node := range nodes {
			t.Logf("node %d:", i)
			work.Check(t, caughtUp(t, db.At(t, node)))
		}
		work.CheckHolds(t)
	})
}

// fault makes a node fail and come back, and waits until it is whole again.
func fault(t *testing.T, db *testdb.DB, node *testdb.Server) (kind string) {
	t.Helper()
	kind = []string{"killed", "hung", "cut off"}[rand.IntN(3)]
	switch kind {
	case "killed":
		killed(t, node)
	case "hung":
		hung(t, db.At(t, node))
	case "cut off":
		cutOff(t, db.At(t, node))
	}
	return kind
}

func killed(t *testing.T, node *testdb.Server) {
	t.Helper()
	if err := node.Kill(); err != nil {
		t.Fatalf("kill: %v", err)
	}
	time.Sleep(rand.N(3 * time.Second))
	if err := node.Restart(t.Context()); err != nil {
		t.Fatalf("rejoin: %v", err)
	}
}

func hung(t *testing.T, at *testdb.DB) {
	t.Helper()
	if err := at.Server().Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("stop: %v", err)
	}
	time.Sleep(rand.N(10 * time.Second)) // it is put out after 5 s
	if err := at.Server().Signal(syscall.SIGCONT); err != nil {
		t.Fatalf("continue: %v", err)
	}
	caughtUp(t, at)
}

// cutOff cuts a node off from the others, but not from its clients.
func cutOff(t *testing.T, at *testdb.DB) {
	t.Helper()
	part(t, at.Server())
	time.Sleep(rand.N(10 * time.Second)) // it is put out after 5 s
	heal(t, at.Server())
	caughtUp(t, at)
}

func part(t *testing.T, node *testdb.Server) {
	t.Helper()
	if err := node.Part(t.Context()); err != nil {
		t.Fatalf("cut a node off: %v", err)
	}
}

func heal(t *testing.T, node *testdb.Server) {
	t.Helper()
	if err := node.Heal(t.Context()); err != nil {
		t.Fatalf("connect a node again: %v", err)
	}
}

// caughtUp returns the administrator's pool of a node that is one of three and shows
// all that was committed on any of them.
func caughtUp(t *testing.T, db *testdb.DB) *sql.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		size, err := 0, db.Server().Ready(ctx)
		if err == nil {
			size, err = clusterSize(ctx, db)
		}
		if err == nil && size == 3 {
			return db.Admin()
		}
		if ctx.Err() != nil {
			t.Fatalf("the node is not one of the cluster again, which has %d: %v", size, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// clusterSize tells how many nodes the cluster has, by a read that waits for what the
// others have committed: on Group Replication the administrator's do.
func clusterSize(ctx context.Context, db *testdb.DB) (size int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	all := " AND (SELECT COUNT(*) FROM " + db.Name() + ".lockstep_leases) >= 0"
	if db.Engine() == testdb.TiDB { // all read one store
		return 3, db.Admin().QueryRowContext(ctx, "SELECT 3 WHERE TRUE"+all).Scan(&size)
	}
	if db.Engine() == testdb.MariaDB {
		err = db.Admin().QueryRowContext(ctx, `SET STATEMENT wsrep_sync_wait = 1 FOR SELECT VARIABLE_VALUE
			FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'wsrep_cluster_size'`+all).Scan(&size)
		return size, err
	}
	err = db.Admin().QueryRowContext(ctx, `SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'`+all).Scan(&size)
	return size, err
}

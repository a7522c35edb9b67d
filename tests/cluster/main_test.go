//go:build cluster

package cluster

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/locksuite"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/load"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// clusters are those of this process, of three servers each.
var clusters = map[testdb.Engine]*struct {
	start func(context.Context, int, ...testdb.Option) ([]*testdb.Server, error)
	nodes []*testdb.Server
}{
	testdb.MariaDB: {start: testdb.StartGalera},
	testdb.MySQL:   {start: testdb.StartGroup},
	testdb.TiDB:    {start: testdb.StartTiDB},
}

// cluster returns the nodes of the engine's cluster: Galera, a Group Replication, or TiDB servers
// over one store. The first of them is what testdb gives to the tests that know of no cluster. What a failed
// test leaves may lack a node, or answer nothing: the next one has a new cluster.
func cluster(t *testing.T, engine testdb.Engine) []*testdb.Server {
	t.Helper()
	testdb.NeedsServer(t)
	c := clusters[engine]
	if c.nodes == nil {
		nodes, err := c.start(context.Background(), 3, testdb.Parted())
		check(t, err)
		testdb.AtClose(func() error { return testdb.StopAll(nodes) })
		c.nodes = nodes
	}
	check(t, os.Setenv(engine.DSNVariable(), c.nodes[0].Config().FormatDSN()))
	nodes := c.nodes
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for i, node := range nodes {
			t.Logf("node %d wrote:\n%s", i, node.Log())
			wants(t, "kill", node.Kill(), nil)
		}
		c.nodes = nil
	})
	return nodes
}

// clientsOf opens a client of each node, which has caught up.
func clientsOf(t *testing.T, db *testdb.DB, nodes []*testdb.Server) (clients []*load.Client) {
	t.Helper()
	for i, node := range nodes {
		clients = append(clients, load.NewClient(t, i, caughtUpConfig(t, db, node)))
	}
	return clients
}

// onAll runs a test on each.
func onAll(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	onSome(t, test, testdb.MariaDB, testdb.MySQL, testdb.TiDB)
}

// onClusters runs a test on those whose nodes have copies of the rows, and refuse a COMMIT that
// collides with one on another.
func onClusters(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	onSome(t, test, testdb.MariaDB, testdb.MySQL)
}

// onTiDB runs a test on TiDB servers over one store.
func onTiDB(t *testing.T, test func(t *testing.T, nodes []*testdb.Server)) {
	t.Helper()
	onSome(t, test, testdb.TiDB)
}

func onSome(t *testing.T, test func(t *testing.T, nodes []*testdb.Server), engines ...testdb.Engine) {
	t.Helper()
	for _, engine := range testdb.Engines() {
		if slices.Contains(engines, engine) {
			t.Run(string(engine), func(t *testing.T) { test(t, cluster(t, engine)) })
		}
	}
}

var check, wants = leasetest.Must, leasetest.Wants

func second[T any](_ T, err error) error { return err }

// TestSuite shows the behaviours of locks through one node: there all hold, but for
// shared locks, which are refused.
func TestSuite(t *testing.T) {
	for _, engine := range testdb.Engines() {
		cluster(t, engine)
	}
	adapters := []locksuite.Adapter{
		{Name: "guarded", Guarded: true, Open: locksuite.OpenSQL(true, locksuite.BeginTx)},
		{Name: "plain", Open: locksuite.OpenSQL(false, locksuite.BeginTx)},
	}
	locksuite.Run(t, adapters...)
	locksuite.RunPreparing(t, adapters...)
}

// TestNodes proves that the faults are faults: a node that was killed is not to be
// reached, one that hangs doesn't answer, one that is cut off answers and hears nothing
// of the others, which go on, and all have in the end what was written meanwhile.
func TestNodes(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "written", "id INT PRIMARY KEY")
		written := func(node int, within time.Duration) (n int, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			err = db.At(t, nodes[node]).Admin().QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table).Scan(&n)
			return n, err
		}
		check(t, nodes[2].Kill())
		db.Exec(t, "INSERT INTO "+table+" VALUES (1)")
		if n, err := written(2, time.Second); err == nil {
			t.Errorf("a node that was killed answers: %d", n)
		}
		check(t, nodes[2].Restart(t.Context()))
		caughtUp(t, db.At(t, nodes[2]))
		if n, err := written(2, callLimit); n != 1 || err != nil {
			t.Errorf("a node that has come back has %d rows, %v, want 1", n, err)
		}
		check(t, nodes[1].Signal(syscall.SIGSTOP))
		db.Exec(t, "INSERT INTO "+table+" VALUES (2)")
		if n, err := written(1, time.Second); err == nil {
			t.Errorf("a node that hangs answers: %d", n)
		}
		check(t, nodes[1].Signal(syscall.SIGCONT))
		caughtUp(t, db.At(t, nodes[1]))
		if n, err := written(1, callLimit); n != 2 || err != nil {
			t.Errorf("a node that goes on has %d rows, %v, want 2", n, err)
		}
		part(t, nodes[0])
		there := db.At(t, nodes[1])
		there.Exec(t, "INSERT INTO "+table+" VALUES (3)") // when the others have put it out
		wants(t, "a node that is cut off doesn't answer", load.Administrator(t, nodes[0], callLimit).PingContext(t.Context()), nil)
		if n, err := written(0, time.Second); err == nil && n == 3 {
			t.Error("a node that is cut off has what was written after that")
		}
		heal(t, nodes[0])
		caughtUp(t, db)
		if n, err := written(0, callLimit); n != 3 || err != nil {
			t.Errorf("a node that was cut off has %d rows, %v, want 3", n, err)
		}
	})
}

// TestSavepoints proves that the nodes, which have a binary log, don't get what was
// rolled back to a savepoint. Without one MariaDB 10.11.14 sends it to the others.
func TestSavepoints(t *testing.T) {
	onAll(t, func(t *testing.T, nodes []*testdb.Server) {
		db := nodes[0].Open(t)
		table := db.CreateTable(t, "kept", "id INT PRIMARY KEY")
		tx, err := db.Admin().BeginTx(t.Context(), nil)
		check(t, err)
		defer func() { _ = tx.Rollback() }()
		for _, statement := range []string{
			"SELECT COUNT(*) FROM " + table, "SAVEPOINT s", "INSERT INTO " + table + " VALUES (1)",
			"ROLLBACK TO SAVEPOINT s", "INSERT INTO " + table + " VALUES (2)",
		} {
			if _, err := tx.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		check(t, tx.Commit())
		for i, node := range nodes {
			var ids string
			if err := caughtUp(t, db.At(t, node)).QueryRow("SELECT GROUP_CONCAT(id) FROM " + table).Scan(&ids); err != nil || ids != "2" {
				t.Errorf("node %d has the rows %q, %v, want 2 alone", i, ids, err)
			}
		}
	})
}

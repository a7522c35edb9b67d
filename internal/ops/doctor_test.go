package ops_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
)

// TestClocksOfNodes proves that check compares the clocks of nodes with that of the server:
// one is right, one by its session is four years ahead, one doesn't answer.
func TestClocksOfNodes(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			ahead := db.Connect(t, func(c *mysql.Config) { c.Params = map[string]string{"timestamp": "1900000000"} })
			away := db.Connect(t)
			must(t, away.Close())
			found := findings(t, ops.New(db.Connect(t)), db.Connect(t), ahead, away)
			for name, want := range map[string]struct {
				state ops.State
				text  string
			}{
				"clock": {ops.OK, "ahead of this machine"}, "clock of node 1": {ops.OK, "ahead of the server"},
				"clock of node 2": {ops.Warn, "ahead of the server"}, "clock of node 3": {ops.Error, "it doesn't report that: sql: database is closed"},
			} {
				if f := found[name]; f.State != want.state || !strings.Contains(f.Text, want.text) || (f.Fix == "") != (f.State == ops.OK) {
					t.Errorf("%s: %+v, want %v with %q", name, f, want.state, want.text)
				}
			}
		})
	}
}

// TestClusters proves what check says of the nodes of a cluster, whose variables are canned:
// tests/cluster has real ones.
func TestClusters(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			for _, c := range []struct {
				answer string
				want   ops.State
				text   string
			}{
				{"'wsrep_on', 'ON'", ops.Warn, "wsrep_on is ON"},
				{"'group_replication_single_primary_mode', 'OFF'", ops.Warn, "group_replication_single_primary_mode is OFF"},
				{"'', '' LIMIT 0", ops.OK, "one server takes writes"},
			} {
				base, err := mysql.NewConnector(db.Config())
				must(t, err)
				pool := sql.OpenDB(canned{base, c.answer})
				t.Cleanup(func() { _ = pool.Close() })
				f := findings(t, ops.New(pool))["cluster"]
				if f.State != c.want || !strings.Contains(f.Text, c.text) || (f.Fix == "") != (c.want == ops.OK) {
					t.Errorf("with %s check says %+v, want %v with %q", c.answer, f, c.want, c.text)
				}
			}
		})
	}
}

// TestNodeIsNotReady proves that check says of a node of Galera whether it takes part in its
// cluster, and what to do, although such a node refuses everything else; its answers are
// canned.
func TestNodeIsNotReady(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			db := testdb.Shared(t, engine).OpenLeases(t)
			for _, c := range []struct {
				ready, status string
				want          ops.State
			}{{"ON", "Primary", ops.OK}, {"OFF", "non-Primary", ops.Error}, {"OFF", "Primary", ops.Error}, {"ON", "non-Primary", ops.Error}} {
				base, err := mysql.NewConnector(db.Config())
				must(t, err)
				pool := sql.OpenDB(node{base, c.ready, c.status, c.want != ops.OK, nil})
				t.Cleanup(func() { _ = pool.Close() })
				found := findings(t, ops.New(pool))
				f := found["node"]
				if f.State != c.want || !strings.Contains(f.Text, "wsrep_ready is "+c.ready+", wsrep_cluster_status is "+c.status) || (f.Fix == "") != (c.want == ops.OK) {
					t.Errorf("%+v: check says %+v", c, f)
				}
				if more := len(found) > 1; more != (c.want == ops.OK) {
					t.Errorf("%+v: check says %+v", c, found)
				}
			}
			if f, has := findings(t, ops.New(db.Connect(t)))["node"]; has {
				t.Errorf("of a server without a cluster check says %+v", f)
			}
		})
	}
}

// TestNodeLeaves has a node of Galera leave its cluster at any statement of check, which says so and
// nothing else.
func TestNodeLeaves(t *testing.T) {
	t.Parallel()
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		return // Galera is MariaDB's
	}
	db := testdb.Shared(t, testdb.MariaDB).OpenLeases(t)
	for stays, left := int64(0), true; left; stays++ {
		base, err := mysql.NewConnector(db.Config())
		must(t, err)
		n := node{base, "ON", "Primary", false, new(atomic.Int64)}
		n.stays.Store(stays)
		pool := sql.OpenDB(n)
		t.Cleanup(func() { _ = pool.Close() })
		found := findings(t, ops.New(pool))
		f := found["node"]
		if left = n.stays.Load() < 0; left == (f.State == ops.OK) || left == (len(found) > 1) || left && (!strings.Contains(f.Text, "it has left the primary component") || f.Fix == "") {
			t.Errorf("of a node that answers %d statements check says %+v", stays, found)
		}
		if stays == 0 && !left {
			t.Error("no statement was refused")
		}
	}
}

// node makes connections to a server that seems to be a node of Galera.
type node struct {
	driver.Connector
	ready, status string
	refuses       bool          // all but SHOW
	stays         *atomic.Int64 // for so many statements, then it leaves the cluster; nil: for ever
}

func (n node) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := n.Connector.Connect(ctx)
	return nodeConn{conn, n}, err
}

type nodeConn struct {
	driver.Conn
	node node
}

func (c nodeConn) Prepare(query string) (driver.Stmt, error) {
	switch {
	case query == "SHOW VARIABLES":
		query = "SELECT 'wsrep_on', 'ON'"
	case query == "SHOW GLOBAL STATUS":
		query = "SELECT 'wsrep_ready', '" + c.node.ready + "' UNION ALL SELECT 'wsrep_cluster_status', '" + c.node.status + "'"
	case c.node.refuses, c.node.stays != nil && c.node.stays.Add(-1) < 0:
		return nil, &mysql.MySQLError{Number: 1047, Message: "WSREP has not yet prepared node for application use"}
	}
	return c.Conn.Prepare(query)
}

func (c nodeConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

// findings are what check says, by subject.
func findings(t *testing.T, room *ops.Room, nodes ...*sql.DB) map[string]ops.Finding {
	t.Helper()
	found, err := room.Check(t.Context(), nodes...)
	must(t, err)
	by := make(map[string]ops.Finding)
	for _, f := range found {
		by[f.Name] = f
	}
	return by
}

// canned makes connections to a server that seems to belong to a cluster.
type canned struct {
	driver.Connector
	answer string
}

func (c canned) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return cannedConn{conn, c.answer}, err
}

// cannedConn has the server select the answer in place of its own variables.
type cannedConn struct {
	driver.Conn
	answer string
}

func (c cannedConn) Prepare(query string) (driver.Stmt, error) {
	if query == schema.ClusterQuery {
		query = "SELECT " + c.answer
	}
	return c.Conn.Prepare(query)
}

func (c cannedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

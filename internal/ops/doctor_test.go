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
	onServers(t, func(t *testing.T, db *testdb.DB) {
		ahead := db.Connect(t, testdb.ClockAt(1900000000e6))
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

// TestClusters proves what check says of the nodes of a cluster, whose variables are canned:
// tests/cluster has real ones.
func TestClusters(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range []struct {
			answer string
			want   ops.State
			text   string
		}{
			{"'wsrep_on', 'ON'", ops.Warn, "wsrep_on is ON"},
			{"'group_replication_single_primary_mode', 'OFF'", ops.Warn, "group_replication_single_primary_mode is OFF"},
			{"'', '' LIMIT 0", ops.OK, "one server takes writes"},
		} {
			pool := through(t, db.Config(), func(query string) (string, error) {
				if query == schema.ClusterQuery {
					query = "SELECT " + c.answer
				}
				return query, nil
			})
			f := findings(t, ops.New(pool))["cluster"]
			if f.State != c.want || !strings.Contains(f.Text, c.text) || (f.Fix == "") != (c.want == ops.OK) {
				t.Errorf("with %s check says %+v, want %v with %q", c.answer, f, c.want, c.text)
			}
		}
	})
}

// TestNodeIsNotReady proves that check says of a node of Galera whether it takes part in its
// cluster, and what to do, although such a node refuses everything else; its answers are
// canned.
func TestNodeIsNotReady(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		for _, c := range []struct {
			ready, status string
			want          ops.State
		}{{"ON", "Primary", ops.OK}, {"OFF", "non-Primary", ops.Error}, {"OFF", "Primary", ops.Error}, {"ON", "non-Primary", ops.Error}} {
			found := findings(t, ops.New(through(t, db.Config(), galera(c.ready, c.status, func() bool { return c.want != ops.OK }))))
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

// TestNodeLeaves has a node of Galera leave its cluster at any statement of check, which says so and
// nothing else.
func TestNodeLeaves(t *testing.T) {
	t.Parallel()
	if !slices.Contains(testdb.Engines(), testdb.MariaDB) {
		return // Galera is MariaDB's
	}
	db := testdb.Shared(t, testdb.MariaDB).OpenLeases(t)
	for stays, left := int64(0), true; left; stays++ {
		var rest atomic.Int64 // statements that it answers
		rest.Store(stays)
		found := findings(t, ops.New(through(t, db.Config(), galera("ON", "Primary", func() bool { return rest.Add(-1) < 0 }))))
		f := found["node"]
		if left = rest.Load() < 0; left == (f.State == ops.OK) || left == (len(found) > 1) || left && (!strings.Contains(f.Text, "it has left the primary component") || f.Fix == "") {
			t.Errorf("of a node that answers %d statements check says %+v", stays, found)
		}
		if stays == 0 && !left {
			t.Error("no statement was refused")
		}
	}
}

// galera is what changes the statements to a node of Galera, which refuses them as a node does that
// takes no part in its cluster, but for SHOW.
func galera(ready, status string, refuses func() bool) func(query string) (string, error) {
	return func(query string) (string, error) {
		switch {
		case query == "SHOW VARIABLES":
			query = "SELECT 'wsrep_on', 'ON'"
		case query == "SHOW GLOBAL STATUS":
			query = "SELECT 'wsrep_ready', '" + ready + "' UNION ALL SELECT 'wsrep_cluster_status', '" + status + "'"
		case refuses():
			return "", &mysql.MySQLError{Number: 1047, Message: "WSREP has not yet prepared node for application use"}
		}
		return query, nil
	}
}

// through opens a pool whose statements are changed, so that the server seems to be another one.
func through(t *testing.T, cfg *mysql.Config, change func(query string) (string, error)) *sql.DB {
	t.Helper()
	base, err := mysql.NewConnector(cfg)
	must(t, err)
	pool := sql.OpenDB(changed{base, change})
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

type changed struct {
	driver.Connector
	change func(query string) (string, error)
}

func (c changed) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return changedConn{conn, c.change}, err
}

type changedConn struct {
	driver.Conn
	change func(query string) (string, error)
}

func (c changedConn) Prepare(query string) (driver.Stmt, error) {
	query, err := c.change(query)
	if err != nil {
		return nil, err
	}
	return c.Conn.Prepare(query)
}

func (c changedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
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

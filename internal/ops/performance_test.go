package ops_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
)

// ownMySQL runs a test on a MySQL server of its own.
func ownMySQL(t *testing.T, test func(t *testing.T, db *testdb.DB), args ...string) {
	t.Helper()
	t.Parallel()
	for _, engine := range testdb.Engines() {
		if engine == testdb.MySQL {
			test(t, withArgs(args...)(t, engine))
		}
	}
}

// tells reports whether a picture has a gap that hides something, or doesn't.
func tells(p *ops.Picture, hides bool, what, fix string) bool {
	return slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool {
		return g.Hides == hides && strings.Contains(g.What, what) && strings.Contains(g.Fix, fix)
	})
}

// notOK returns what check finds of the sight of a user.
func notOK(t *testing.T, db *testdb.DB) (text string) {
	t.Helper()
	found := testdb.Got(ops.New(db.Admin()).Check(t.Context()))(t)
	for _, f := range found {
		if f.Name == "sight" && f.State != ops.OK {
			text += f.Text + ": " + f.Fix + "\n"
		}
	}
	return text
}

// TestWithoutPerformanceSchema proves that a look at MySQL without its performance schema shows what it
// can, and says what it can't: the server has the same tables then, without rows.
func TestWithoutPerformanceSchema(t *testing.T) {
	ownMySQL(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t)
		must(t, txlock.Ensure(t.Context(), pool, txlock.Named("hot")))
		tx, scope := beginTx(t, pool)
		lock(t, scope, "hot")
		waiter := waiting(t, db, pool, txlock.Named("hot")) // which can't be seen
		p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return len(p.Locks) == 1 })
		s := p.Sessions[uint64(testdb.ConnID(t, tx))]
		if l := p.Locks[0]; l.Key != "hot" || l.Session != s.ID || s.User == "" || s.Doing() != "idle" || l.Waiters.String() != "-" {
			t.Errorf("while session %d waits, the lock is %#v, of %+v", waiter, l, s)
		}
		testdb.ErrorIf(t, !tells(p, true, "row waits, shared locks", "performance_schema=ON"), "not seen is %v", p.Gaps)
		text := notOK(t, db)
		testdb.ErrorIf(t, !strings.Contains(text, "row waits, shared locks"), "check says %q", text)
	}, "--performance-schema=OFF")
}

// TestPartOfPerformanceSchema proves that a look and check are not refused to a user who may read only some
// tables of MySQL's performance schema, and name the privilege on all of them.
func TestPartOfPerformanceSchema(t *testing.T) {
	ownMySQL(t, func(t *testing.T, db *testdb.DB) {
		stock := db.CreateTable(t, "stock", "id INT PRIMARY KEY")
		db.Exec(t, "INSERT INTO "+stock+" VALUES (1)")
		for _, statement := range []string{"CREATE USER 'part'@'%' IDENTIFIED BY 'part'", "GRANT PROCESS ON *.* TO 'part'@'%'", "GRANT ALL ON `" + db.Name() + "`.* TO 'part'@'%'"} {
			db.Exec(t, statement)
		}
		part, pool := db.Connect(t, func(c *mysql.Config) { c.User, c.Passwd = "part", "part" }), db.Connect(t)
		sees := func(table string, all bool) {
			t.Helper()
			const fix = "GRANT SELECT ON performance_schema.* TO 'part'@'%'"
			p := testdb.Got(ops.New(part).Look(t.Context()))(t)
			if granted := len(p.Gaps) == 0; all && !granted || slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool { return g.Fix != fix }) {
				t.Errorf("without %s a look has not seen %v", table, p.Gaps)
			}
			found := testdb.Got(ops.New(part).Check(t.Context()))(t)
			at := slices.IndexFunc(found, func(f ops.Finding) bool { return f.Name == "sight" })
			sight := found[at]
			testdb.ErrorIf(t, (sight.State == ops.OK) != all || !all && sight.Fix != fix, "without %s check finds %+v", table, sight)
		}
		tables := []string{"data_locks", "data_lock_waits", "threads", "metadata_locks", "events_statements_current", "session_connect_attrs", "setup_consumers", "setup_instruments"}
		for _, table := range append(tables, "events_statements_history", "events_transactions_current") {
			db.Exec(t, "GRANT SELECT ON performance_schema."+table+" TO 'part'@'%'")
		}
		sees("nothing", true)
		without := func() {
			t.Helper()
			for _, table := range tables {
				db.Exec(t, "REVOKE SELECT ON performance_schema."+table+" FROM 'part'@'%'")
				sees(table, false)
				db.Exec(t, "GRANT SELECT ON performance_schema."+table+" TO 'part'@'%'")
			}
		}
		without()
		first, _ := beginTx(t, pool)
		must(t, testdb.Err(first.ExecContext(t.Context(), "DELETE FROM "+stock)))
		tx, scope := beginTx(t, pool)
		lock(t, scope, "hot")
		db.KeepWaiting(t, tx, func(ctx context.Context) error { return testdb.Err(tx.ExecContext(ctx, "DELETE FROM "+stock)) })
		without()
	})
}

// TestBuiltWithoutPerformanceSchema proves that a look needs no performance schema of a server, which MariaDB can be
// built without, and knows its server by any version, also one with blanks, and from a session that is not fit for locks.
func TestBuiltWithoutPerformanceSchema(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		version := map[testdb.Engine]string{testdb.MariaDB: "11.8.9-MariaDB-0+deb13u1 from Debian", testdb.MySQL: "9.7.4 from Debian"}[db.Engine()]
		latin := db.AdminConfig(func(c *mysql.Config) { c.Params = map[string]string{"character_set_connection": "latin1"} })
		lock(t, begin(t, db.Connect(t)), "hot")
		for variable, other := range map[string]string{"@@performance_schema": "@@lockstep_unknown", "@@version": "'" + version + "'"} {
			room := ops.New(through(t, latin, func(query string) (string, error) { return strings.ReplaceAll(query, variable, other), nil }))
			p := lookUntil(t, room, func(p *ops.Picture) bool { return exclusive(p) == 1 })
			is := p.Version == version && len(p.Hiding()) == 0
			if variable == "@@performance_schema" {
				is = tells(p, true, "", "performance_schema=ON") || tells(p, false, "", "performance_schema=ON")
			}
			testdb.ErrorIf(t, !is, "by %s for %s the version is %q, and not seen is %v", other, variable, p.Version, p.Gaps)
		}
	})
}

// TestUnrecorded proves that a look and check say what MySQL doesn't record: who holds the table that a session
// waits for, which isn't taken for the root then, and the last statements, in place of which no older one is shown.
func TestUnrecorded(t *testing.T) {
	ownMySQL(t, func(t *testing.T, db *testdb.DB) {
		text := notOK(t, db)
		testdb.ErrorIf(t, text != "", "by default, check says %q", text)
		set := func(table, name, enabled string) {
			db.Exec(t, fmt.Sprintf("UPDATE performance_schema.%s SET enabled = '%s' WHERE name = '%s'", table, enabled, name))
		}
		set("setup_instruments", "wait/lock/metadata/sql/mdl", "NO")
		if text := notOK(t, db); !strings.Contains(text, "the table that is waited for") || !strings.Contains(text, "setup_instruments") {
			t.Errorf("without the instrument of tables, check says %q", text)
		}
		pool, stock := db.Connect(t), db.CreateTable(t, "stock", "n BIGINT")
		holder, _ := beginTx(t, pool)
		must(t, testdb.Err(holder.ExecContext(t.Context(), "INSERT INTO "+stock+" VALUES (1)")))
		ctx, cancel := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		defer func() { cancel(); must(t, holder.Rollback()); waits.Wait() }()
		waits.Go(func() { _, _ = db.Admin().ExecContext(ctx, "ALTER TABLE "+stock+" COMMENT = 'changed'") }) // it is cancelled
		db.WaitForStatement(t, "ALTER", 1)
		tx, scope := beginTx(t, pool)
		lock(t, scope, "hot")
		waits.Go(func() { _, _ = tx.ExecContext(ctx, "UPDATE "+stock+" SET n = 2") })
		root, middle := uint64(testdb.ConnID(t, holder)), uint64(0)
		var wait ops.Wait
		p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool {
			for _, wait = range p.Waits {
				if middle = wait.Session; strings.HasPrefix(p.Sessions[middle].Statement, "UPDATE") {
					return true
				}
			}
			return false
		})
		if wait.Kind != ops.Table || !wait.Unsure || !slices.Equal(wait.Blockers, []uint64{root}) || !tells(p, false, "the table that is waited for", "setup_instruments") {
			t.Errorf("the wait behind session %d is %+v, and not seen is %v", root, wait, p.Gaps)
		}
		l := p.Locks
		testdb.ErrorIf(t, len(l) != 1 || l[0].Session != middle, "session %d waits for the table, and the locks are %#v", middle, l)

		set("setup_consumers", "events_statements_current", "NO")
		if text := notOK(t, db); !strings.Contains(text, "last statements") || !strings.Contains(text, "setup_consumers") {
			t.Errorf("without the consumer of statements, check says %q", text)
		}
		p = lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return p.Sessions[root].Command == "Sleep" })
		if s := p.Sessions[root]; s.Doing() != "idle" || !tells(p, false, "last statements", "setup_consumers") {
			t.Errorf("without the consumer of statements the session is %+v, and not seen is %v", s, p.Gaps)
		}

		time.Sleep(3 * time.Second) // the server tells whole seconds
		must(t, testdb.Err(holder.ExecContext(t.Context(), "DO 1")))
		set("setup_consumers", "events_statements_current", "YES")
		p = lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return p.Sessions[root].Command == "Sleep" })
		if s := p.Sessions[root]; s.Doing() != "idle" || !tells(p, false, "last statements", "setup_consumers") {
			t.Errorf("after statements that were not recorded the session is %+v, and not seen is %v", s, p.Gaps)
		}
	})
}

// TestSecondWait proves that a wait is as long as the session has waited for that row, and not as long as its
// statement runs, which has waited for another one before.
func TestSecondWait(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, keys := db.Connect(t), []txlock.Key{txlock.Named("a"), txlock.Named("b")}
		must(t, txlock.Ensure(t.Context(), pool, keys...))
		first, scope := beginTx(t, pool)
		must(t, testdb.Err(scope.Lock(t.Context(), keys[0])))
		_, scope = beginTx(t, pool)
		must(t, testdb.Err(scope.Lock(t.Context(), keys[1])))
		waiter, _ := beginTx(t, pool)
		db.KeepWaiting(t, waiter, func(ctx context.Context) error {
			s, err := txlock.Join(ctx, waiter)
			if err == nil {
				_, err = s.LockAll(ctx, keys...)
			}
			return err
		})
		time.Sleep(4 * time.Second)
		must(t, first.Commit())
		began := time.Now()
		var wait ops.Wait
		lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool {
			for _, wait = range p.Waits {
				if wait.Key == "b" {
					return true
				}
			}
			return false
		})
		most := ops.Seconds(time.Since(began).Seconds()) + 2
		testdb.ErrorIf(t, wait.For > most, "the session has waited for %s, %s at most", wait.For, most)
	})
}

// TestIdle proves that a session is idle since its last statement has ended, however long that has lasted.
func TestIdle(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t, func(c *mysql.Config) { c.InterpolateParams = true }) // else the last statement closes another one
		tx, scope := beginTx(t, pool)
		lock(t, scope, "hot")
		must(t, testdb.Err(tx.ExecContext(t.Context(), "DO SLEEP(3)")))
		began := time.Now()
		p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return len(p.Locks) == 1 })
		most := ops.Seconds(time.Since(began).Seconds())
		s := p.Sessions[p.Locks[0].Session]
		testdb.ErrorIf(t, !s.Idle() || !s.For.Known() || s.For > most+0.1, "%s after its last statement the session is %+v", most, s)
	})
}

// TestAgesAgree proves that ages which a look reads one after the other agree: of a session, its transaction
// and its lock, and of a lease.
func TestAgesAgree(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		slow := through(t, db.AdminConfig(), func(query string) (string, error) {
			if strings.Contains(query, "ListLeases") || strings.Contains(query, "PROCESSLIST WHERE id IN") || strings.Contains(query, "events_statements_current") {
				time.Sleep(500 * time.Millisecond)
			}
			return query, nil
		})
		pool := db.Connect(t)
		tx, scope := beginTx(t, pool)
		session := uint64(testdb.ConnID(t, tx))
		must(t, testdb.Err(manager(t, pool).Acquire(t.Context(), txlock.Named("report"))))
		lock(t, scope, "hot")
		p := lookUntil(t, ops.New(slow), func(p *ops.Picture) bool { return len(p.Locks) == 1 && len(p.Leases) == 1 })
		s, l := p.Sessions[session], p.Locks[0]
		testdb.ErrorIf(t, s.For < 0.5 || s.TxAge < s.For || l.Held < s.For || s.TxAge < l.Held, "the session is %+v, and holds %#v", s, l)
		held := p.Leases[0]
		testdb.ErrorIf(t, held.Renewed < 0.5 || held.Held < held.Renewed, "the lease is %+v", held)
	})
}

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

// TestClusters proves what check says of the nodes of a cluster, whose answers are canned (tests/cluster has real ones),
// and of a node of Galera whether it takes part in its cluster, although such a node refuses everything else.
func TestClusters(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		says := func(name string, change func(query string) (string, error), want ops.State, text string) (all int) {
			t.Helper()
			found := findings(t, ops.New(through(t, db.Config(), change)))
			if f := found[name]; f.State != want || !strings.Contains(f.Text, text) || (f.Fix == "") != (want == ops.OK) {
				t.Errorf("of the %s check says %+v, want %v with %q", name, f, want, text)
			}
			return len(found)
		}
		for answer, text := range map[string]string{
			"'wsrep_on', 'ON'": "wsrep_on is ON", "'', '' LIMIT 0": "one server takes writes",
			"'group_replication_single_primary_mode', 'OFF'": "group_replication_single_primary_mode is OFF",
		} {
			says("cluster", func(query string) (string, error) {
				return strings.Replace(query, schema.ClusterQuery, "SELECT "+answer, 1), nil
			}, map[bool]ops.State{true: ops.Warn, false: ops.OK}[strings.Contains(text, " is ")], text)
		}
		for _, c := range []struct {
			ready, status string
			want          ops.State
		}{{"ON", "Primary", ops.OK}, {"OFF", "non-Primary", ops.Error}, {"OFF", "Primary", ops.Error}, {"ON", "non-Primary", ops.Error}} {
			all := says("node", galera(c.ready, c.status, func() bool { return c.want != ops.OK }), c.want, "wsrep_ready is "+c.ready+", wsrep_cluster_status is "+c.status)
			testdb.Equal(t, fmt.Sprintf("more than the node with %+v", c), all > 1, c.want == ops.OK)
		}
		f, has := findings(t, ops.New(db.Connect(t)))["node"]
		testdb.ErrorIf(t, has, "of a server without a cluster check says %+v", f)
	})
}

// TestNodeLeaves has a node of Galera leave its cluster at any statement of check, which says so and nothing else.
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
		testdb.ErrorIf(t, stays == 0 && !left, "no statement was refused")
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
	base := testdb.Got(mysql.NewConnector(cfg))(t)
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
	found := testdb.Got(room.Check(t.Context(), nodes...))(t)
	by := make(map[string]ops.Finding)
	for _, f := range found {
		by[f.Name] = f
	}
	return by
}

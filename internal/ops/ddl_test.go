package ops_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// queued counts the sessions that wait in a database for a table, but for DDL.
var queued = map[testdb.Engine]string{
	testdb.MariaDB: "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE db = ? AND state = 'Waiting for table metadata lock' AND info NOT LIKE 'ALTER%'",
	testdb.MySQL:   "SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_db = ? AND processlist_state = 'Waiting for table metadata lock' AND processlist_info NOT LIKE 'ALTER%'",
}

// TestLookBehindDDL proves that a look at a table that DDL waits for ends, says what it couldn't
// read, shows who waits for whom, and leaves no session behind the DDL.
func TestLookBehindDDL(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for _, table := range []string{"locks", "leases"} {
			t.Run(string(engine)+"/"+table, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				pool, name := db.Connect(t), "lockstep_"+table
				tx, scope := beginTx(t, pool)
				lock(t, scope, "order:42")
				var rows int
				must(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+name).Scan(&rows))
				holder := uint64(testdb.ConnID(t, tx))

				admin := db.Admin()
				conn, err := admin.Conn(t.Context())
				must(t, err)
				changer := uint64(testdb.ConnID(t, conn))
				ctx, cancel := context.WithCancel(t.Context())
				changed := make(chan struct{})
				go func() {
					defer close(changed)
					_, _ = conn.ExecContext(ctx, "ALTER TABLE "+name+" COMMENT = 'changed'") // it is cancelled, or done at the end
				}()
				defer func() { must(t, tx.Rollback()); <-changed; cancel(); _ = conn.Close() }()

				p := lookUntil(t, ops.New(admin), func(p *ops.Picture) bool {
					return slices.ContainsFunc(p.Waits, func(w ops.Wait) bool { return w.Session == changer }) &&
						slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool { return strings.HasPrefix(g.What, name+" can't be read") })
				})
				i := slices.IndexFunc(p.Waits, func(w ops.Wait) bool { return w.Session == changer })
				if w := p.Waits[i]; w.Kind != ops.Table || !slices.Contains(w.Blockers, holder) || (w.Table != name) != w.Unsure {
					t.Errorf("the wait of the DDL is of %s for %v (%v), and session %d holds the table: %v", w.Row, w.Blockers, w.Unsure, holder, p.Gaps)
				}
				if s := p.Sessions[changer]; !strings.Contains(s.Doing(), "waiting for table metadata lock") || p.Sessions[holder].User == "" {
					t.Errorf("the sessions are %+v", p.Sessions)
				}
				if root := p.Tree(); len(root) == 0 || !slices.Contains(root[0].Holders, holder) {
					t.Errorf("the tree is %+v", root)
				}

				short, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err = ops.New(admin).Look(short) // which its caller gives up
				end()
				if err == nil {
					t.Error("a look behind DDL took less than a second")
				}
				if !testdb.Await(8*time.Second, func() bool {
					var behind int
					must(t, admin.QueryRowContext(t.Context(), queued[engine], db.Name()).Scan(&behind))
					return behind == 0
				}) {
					t.Error("a session of a look waits behind the DDL")
				}
			})
		}
	}
}

// TestWaitsForTables proves that each wait for a table is listed once while sessions wait for
// several, one after the other, and that a table whose name isn't known hides nothing.
func TestWaitsForTables(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		var tables []string
		for _, name := range []string{"a", "b", "c"} {
			tables = append(tables, db.CreateTable(t, name, "n BIGINT"))
		}
		tx, scope := beginTx(t, db.Connect(t))
		lock(t, scope, "order:42")
		for _, table := range tables {
			var rows int
			must(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&rows))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var changes sync.WaitGroup
		defer func() { cancel(); changes.Wait(); must(t, tx.Rollback()) }()
		room := ops.New(db.Admin())
		waiters := make(map[uint64]int)
		for _, i := range []int{0, 1, 0, 2, 1, 0} {
			conn, err := db.Admin().Conn(t.Context())
			must(t, err)
			changer := uint64(testdb.ConnID(t, conn))
			changes.Go(func() {
				_, _ = conn.ExecContext(ctx, "ALTER TABLE "+tables[i]+" COMMENT = 'changed'") // it is cancelled
				_ = conn.Close()
			})
			waiters[changer] = 0
			lookUntil(t, room, func(p *ops.Picture) bool {
				return slices.ContainsFunc(p.Waits, func(w ops.Wait) bool { return w.Session == changer })
			})
		}
		p := lookUntil(t, room, func(*ops.Picture) bool { return true })
		for _, w := range p.Waits {
			waiters[w.Session]++
		}
		for session, n := range waiters {
			if n != 1 {
				t.Errorf("the wait of session %d is listed %d times", session, n)
			}
		}
		if hiding := p.Hiding(); len(hiding) > 0 {
			t.Errorf("not shown may be what is behind %v", hiding)
		}
	})
}

package ops_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestHotKey proves that a picture is of one moment while processes lock the same key in turn: no row has two
// holders one of whom has it exclusively, and who holds a row exclusively doesn't wait for it.
func TestHotKey(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t)
		hot := txlock.Named("hot")
		must(t, txlock.Ensure(t.Context(), pool, hot))
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer func() { stop(); all.Wait() }()
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					increment(ctx, pool, hot)
				}
			})
		}
		room, held := ops.New(db.Admin()), 0
		for looks := testdb.Long(12, 300); looks > 0 || held == 0; looks-- {
			p := testdb.Got(room.Look(t.Context()))(t)
			for _, wrong := range contradictions(p) {
				t.Errorf("%s: %#v, waits %#v", wrong, p.Locks, p.Waits)
			}
			held += len(p.Locks)
		}
	}, testdb.Open)
}

// TestDirtyReads proves that a look knows what is committed on sessions that read what is not.
func TestDirtyReads(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		scope := begin(t, db.Connect(t))
		lock(t, scope, "held")
		must(t, testdb.Err(scope.Once(t.Context(), txlock.Named("once"))))
		room := ops.New(open(t, db, db.Engine().LevelVariable(), "'READ-UNCOMMITTED'"))
		p := testdb.Got(room.Look(t.Context()))(t)
		all := testdb.Got(room.OnceOf(t.Context(), "once"))(t)
		testdb.ErrorIf(t, len(p.Locks) != 1 || len(all) != 1 || !all[0].Open || p.Locks[0].Session == 0 || p.Locks[0].Since.IsZero(),
			"the locks are %+v, the keys of Once %+v", p.Locks, all)
	})
}

// TestGrantBefore proves that a look knows the grant before the one that is held, and that Updates
// counts both: from these top reads how often a key is granted.
func TestGrantBefore(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, hot, room := db.Connect(t), txlock.Named("hot"), ops.New(db.Admin())
		must(t, txlock.Ensure(t.Context(), pool, hot))
		must(t, testdb.Err(room.Look(t.Context()))) // by which it knows its server
		began := testdb.Got(room.Updates(t.Context()))(t)
		tx, scope := beginTx(t, pool)
		first := testdb.Got(scope.Lock(t.Context(), hot))(t)
		must(t, tx.Commit())
		second := testdb.Got(begin(t, pool).Lock(t.Context(), hot))(t)
		p := lookUntil(t, room, func(p *ops.Picture) bool { return len(p.Locks) == 1 })
		l := p.Locks[0]
		testdb.ErrorIf(t, l.Token != second.Token() || l.Before != first.Token(), "the lock is %#v, want the token %d after %d", l, second.Token(), first.Token())
		n, err := room.Updates(t.Context())
		testdb.ErrorIf(t, err != nil || n < began+2, "before two grants there were %v updates, afterwards %v, %v", began, n, err)
	})
}

// contradictions says what can't be true of one moment.
func contradictions(p *ops.Picture) (wrong []string) {
	for i, a := range p.Locks {
		for _, b := range p.Locks[:i] {
			if a.Row == b.Row && (a.Mode == ops.Exclusive || b.Mode == ops.Exclusive) {
				wrong = append(wrong, fmt.Sprintf("sessions %d and %d hold %s", a.Session, b.Session, a.Row))
			}
		}
		for _, w := range p.Waits {
			if a.Mode == ops.Exclusive && a.Row == w.Row && a.Session == w.Session {
				wrong = append(wrong, fmt.Sprintf("session %d holds %s and waits for it", a.Session, a.Row))
			}
		}
	}
	for _, w := range p.Waits {
		if len(w.Blockers) > 1 && !w.Unsure && w.Kind == ops.Named {
			wrong = append(wrong, fmt.Sprintf("session %d waits for the holders %v", w.Session, w.Blockers))
		}
	}
	return wrong
}

// increment locks the key in a transaction of its own.
func increment(ctx context.Context, pool *sql.DB, key txlock.Key) {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if scope, err := txlock.Join(ctx, tx); err == nil {
		if _, err := scope.Lock(ctx, key); err == nil {
			_ = tx.Commit() // it is cancelled at the end
		}
	}
}

// beyondUTF8MB3 proves that a look shows the same, at once and by times that agree, while a session executes a
// statement whose text MySQL can't list, with an emoji and bytes that aren't text.
func beyondUTF8MB3(t *testing.T, db *testdb.DB) {
	if db.Engine() != testdb.MySQL {
		return // MariaDB lists the transactions
	}
	stock := db.CreateTable(t, "stock", "id INT PRIMARY KEY, n VARBINARY(255)")
	db.Exec(t, "INSERT INTO "+stock+" VALUES (1, '')")
	pool, shared, prepared := db.Connect(t), txlock.Named("shared"), txlock.Named("prepared")
	must(t, txlock.Ensure(t.Context(), pool, txlock.Named("hot"), shared, prepared))
	detach(t, db, pool, prepared)
	for _, statement := range []string{"CREATE USER 'few'@'%' IDENTIFIED BY 'few'", "GRANT PROCESS ON *.* TO 'few'@'%'", "GRANT SELECT ON `" + db.Name() + "`.* TO 'few'@'%'"} {
		db.Exec(t, statement) // now: it waits for statements that wait
	}
	few := db.Connect(t, func(c *mysql.Config) { c.User, c.Passwd = "few", "few" })
	reader, scope := beginTx(t, pool)
	must(t, testdb.Err(scope.RLock(t.Context(), shared)))
	first, _ := beginTx(t, pool)
	must(t, testdb.Err(first.ExecContext(t.Context(), "UPDATE "+stock+" SET n = 'x' WHERE id = 1")))
	second, scope := beginTx(t, pool)
	lock(t, scope, "hot")
	root, middle := uint64(testdb.ConnID(t, first)), uint64(testdb.ConnID(t, second))
	db.KeepWaiting(t, second, func(ctx context.Context) error {
		_, err := second.ExecContext(ctx, "UPDATE "+stock+" SET /* 🚚 */ n = CONCAT('𠀋', _binary'\xd3\x04\xfd\xe1\x1d') WHERE id = 1")
		return err
	})
	third := uint64(waiting(t, db, pool, txlock.Named("hot")))
	took := time.Hour
	p := lookUntil(t, timed{ops.New(db.Admin()), &took}, func(p *ops.Picture) bool {
		return len(p.Waits) == 2 && min(p.Waits[0].For, p.Waits[1].For) >= 1 && // the server counts whole seconds
			!slices.ContainsFunc(p.Locks, func(l ops.Lock) bool { return l.Held < 1 })
	})
	if took >= 2*time.Second { // in which it would have looked again
		t.Errorf("it takes %v", took)
	}
	testdb.ErrorIf(t, slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool { return g.Hides }), "not seen is %v", p.Gaps)
	tree := p.Tree()
	testdb.ErrorIf(t, len(tree) != 1 || tree[0].Kind != ops.Other || flat(tree) != fmt.Sprintf("[%d](%d hot[%[2]d](%d ))", root, middle, third),
		"the tree is %s", flat(tree))
	for _, w := range p.Waits {
		s := p.Sessions[w.Session]
		testdb.ErrorIf(t, !s.InTx || s.TxAge < w.For-1 || s.TxAge > w.For+30, "session %d waits %s in a transaction of %s", w.Session, w.For, s.TxAge)
	}
	for _, l := range p.Locks {
		is := l.Key == "prepared" && l.Detached || l.Key == "hot" && l.Held >= 1 && l.Session == middle ||
			l.Key == "shared" && l.Mode == ops.Shared && l.Held > 1 && l.Session == uint64(testdb.ConnID(t, reader))
		testdb.ErrorIf(t, !is || l.Unsure, "a lock is %#v", l)
	}
	s := p.Sessions[middle]
	testdb.ErrorIf(t, s.RowLocks < 1 || len(p.Locks) < 2, "the second session is %+v, beside the locks %v", s, p.Locks)
	p = blind(t, few, "GRANT SELECT ON performance_schema.* TO 'few'@'%'")
	testdb.ErrorIf(t, len(p.Locks)+len(p.Waits) > 0, "the locks are %#v, and the waits %+v", p.Locks, p.Waits)
	db.Exec(t, fmt.Sprintf("UPDATE performance_schema.threads SET instrumented = 'NO' WHERE processlist_id = %d", root))
	p = blind(t, db.Admin(), "instrument transactions of all sessions")
	i := slices.IndexFunc(p.Locks, func(l ops.Lock) bool { return l.Key == "hot" })
	testdb.ErrorIf(t, i < 0 || p.Locks[i].Held < 1 || p.Sessions[middle].Age() != "-" || p.Sessions[third].Age() != "-", "the locks are %#v, of %+v", p.Locks, p.Sessions)
}

// blind looks while MySQL lists no transactions, and its performance schema can't take the place of the
// list. It checks that the gap says so, and how it could.
func blind(t *testing.T, pool *sql.DB, fix string) *ops.Picture {
	t.Helper()
	p := testdb.Got(ops.New(pool).Look(t.Context()))(t)
	if !slices.ContainsFunc(p.Gaps, func(g ops.Gap) bool {
		return g.Hides && g.Denied == strings.Contains(fix, "GRANT") && strings.Contains(g.What, "an emoji") && strings.Contains(g.Fix, fix)
	}) {
		t.Errorf("not seen is %v", p.Gaps)
	}
	return p
}

// TestUnknownTransactions proves that no number is shown for what isn't known: who may not read the
// server's list of transactions sees neither how old one is nor, of a shared lock, for how long it is held.
func TestUnknownTransactions(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := db.Connect(t), txlock.Named("hot")
		must(t, txlock.Ensure(t.Context(), pool, key))
		tx, scope := beginTx(t, pool)
		lock(t, scope, key.String())
		p := lookUntil(t, ops.New(pool), func(p *ops.Picture) bool { return len(p.Locks) == 1 })
		s := p.Sessions[uint64(testdb.ConnID(t, tx))]
		text := testdb.Got(json.Marshal(s))(t)
		testdb.ErrorIf(t, !s.InTx || s.Age() != "-" || !strings.Contains(string(text), `"transaction_s":null`) || !p.Locks[0].Held.Known(),
			"without PROCESS the session is %s, and the lock %#v", text, p.Locks[0])
		if db.Engine() == testdb.MySQL { // an account that reads its locks, and not its transactions
			scope := begin(t, pool)
			must(t, txlock.Ensure(t.Context(), pool, txlock.Named("shared")))
			must(t, testdb.Err(scope.RLock(t.Context(), txlock.Named("shared"))))
			account := "'" + db.Config().User + "'@'%'"
			db.Exec(t, "GRANT SELECT ON performance_schema.* TO "+account)
			p := lookUntil(t, ops.New(pool), func(p *ops.Picture) bool { return len(p.Locks) == 2 })
			l := p.Locks[1]
			testdb.ErrorIf(t, l.Mode != ops.Shared || l.Held.String() != "-", "the shared lock is %#v", l)
		}
	})
}

// timed is a Room that notes how long its last look has taken.
type timed struct {
	*ops.Room
	took *time.Duration
}

// Look looks.
func (r timed) Look(ctx context.Context, keys ...string) (*ops.Picture, error) {
	began := time.Now()
	p, err := r.Room.Look(ctx, keys...)
	*r.took = min(*r.took, time.Since(began)) // of all looks
	return p, err
}

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
				conn := testdb.Got(admin.Conn(t.Context()))(t)
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
				s := p.Sessions[changer]
				testdb.ErrorIf(t, !strings.Contains(s.Doing(), "waiting for table metadata lock") || p.Sessions[holder].User == "", "the sessions are %+v", p.Sessions)
				root := p.Tree()
				testdb.ErrorIf(t, len(root) == 0 || !slices.Contains(root[0].Holders, holder), "the tree is %+v", root)

				short, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err := ops.New(admin).Look(short) // which its caller gives up
				end()
				testdb.Fails(t, "a look behind DDL in less than a second", err)
				testdb.ErrorIf(t, !testdb.Await(8*time.Second, func() bool {
					var behind int
					must(t, admin.QueryRowContext(t.Context(), queued[engine], db.Name()).Scan(&behind))
					return behind == 0
				}), "a session of a look waits behind the DDL")
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
			conn := testdb.Got(db.Admin().Conn(t.Context()))(t)
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
			testdb.Equal(t, fmt.Sprintf("how often the wait of session %d is listed", session), n, 1)
		}
		hiding := p.Hiding()
		testdb.ErrorIf(t, len(hiding) > 0, "not shown may be what is behind %v", hiding)
	})
}

// TestActivity proves that MySQL shows the last statement of the program in the transaction of an
// idle holder, not a later one of lockstep's, and none from an earlier transaction.
func TestActivity(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		if db.Engine() != testdb.MySQL {
			return // MariaDB tells no last statement
		}
		pool := db.Connect(t, func(c *mysql.Config) { c.InterpolateParams = true }) // else the ten are of two locks
		pool.SetMaxOpenConns(1)
		must(t, txlock.Ensure(t.Context(), pool, txlock.Named("activity:1"), txlock.Named("activity:2")))
		must(t, testdb.Err(pool.ExecContext(t.Context(), "DO 41")))
		tx, scope := beginTx(t, pool)
		session := uint64(testdb.ConnID(t, tx))
		shows := func(want string) {
			t.Helper()
			lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return p.Sessions[session].Statement == want })
		}
		lock(t, scope, "activity:1")
		must(t, testdb.Err(tx.ExecContext(t.Context(), "DO 42")))
		lock(t, scope, "activity:2")
		shows("DO 42")
		must(t, tx.Rollback())

		tx, scope = beginTx(t, pool)
		lock(t, scope, "activity:1")
		shows("lockstep LockNamed")
		must(t, tx.Rollback())
	})
}

package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// waiting keeps a transaction waiting for a key, and returns its session.
func waiting(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key) int64 {
	t.Helper()
	tx, scope := beginTx(t, pool)
	session := testdb.ConnID(t, tx)
	db.KeepWaiting(t, tx, func(ctx context.Context) error { _, err := scope.Lock(ctx, key); return err })
	return session
}

// TestGaps proves that who locks a new key and waits for a gap between rows is shown, with the
// transaction that has locked the gap: one whose first wait ended by a rollback.
func TestGaps(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for key, gap := range map[string]string{"m": "the gap before z in lockstep_locks", "zz": ""} {
			t.Run(string(engine)+"/"+key, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				pool := db.Connect(t)
				must(t, txlock.Ensure(t.Context(), pool, txlock.Named("a"), txlock.Named("z")))
				first, scope := beginTx(t, pool)
				lock(t, scope, key)
				second, scope := beginTx(t, pool)
				session, granted := testdb.ConnID(t, second), make(chan error, 1)
				go func() { _, err := scope.Lock(t.Context(), txlock.Named(key)); granted <- err }()
				db.WaitForLockWait(t, session)
				must(t, first.Rollback())
				must(t, <-granted)

				waiter := uint64(waiting(t, db, pool, txlock.Named(key[:1]+"0")))
				p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return len(p.Waits) == 1 && len(p.Waits[0].Blockers) > 0 })
				if wait := p.Waits[0]; wait.Session != waiter || wait.Detached || wait.Kind != ops.Between || wait.Table != "lockstep_locks" || gap != "" && wait.String() != gap {
					t.Errorf("session %d waits for %s (%+v)", waiter, wait.Row, wait)
				}
				root := p.Tree()
				if len(root) != 1 || !slices.Equal(root[0].Holders, []uint64{uint64(session)}) || !strings.Contains(strings.Join(p.Notes(root[0]), "; "), "new keys wait") {
					t.Errorf("the tree is %+v", root)
				}
				if slices.ContainsFunc(p.Locks, func(l ops.Lock) bool { return l.Kind == ops.Between }) {
					t.Errorf("a gap is listed as a lock: %#v", p.Locks)
				}
			})
		}
	}
}

// prepare locks a key in an XA transaction, prepares it, and returns its session. If it ends, the
// transaction has none any more.
func prepare(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key, first ...string) (session int64) {
	t.Helper()
	conn := leasetest.Got(pool.Conn(t.Context()))(t)
	session = testdb.ConnID(t, conn)
	xid := fmt.Sprintf("'ops-%s-%d'", db.Name(), session)
	for _, statement := range append(first,
		"XA START "+xid, fmt.Sprintf("INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES ('%s', UNIX_TIMESTAMP() * 1000000, 'importer', CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000) "+
			"ON DUPLICATE KEY UPDATE token = VALUES(token), owner = VALUES(owner), conn_id = VALUES(conn_id), locked_us = VALUES(locked_us)", key),
		"XA END "+xid, "XA PREPARE "+xid,
	) {
		must(t, second(conn.ExecContext(t.Context(), statement)))
	}
	t.Cleanup(func() {
		_ = conn.Close() // its session may have been ended
		must(t, second(db.Admin().ExecContext(context.WithoutCancel(t.Context()), "XA ROLLBACK "+xid)))
	})
	return session
}

// detach locks a key in a prepared transaction without a session.
func detach(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key) {
	t.Helper()
	session := prepare(t, db, pool, key)
	db.Kill(t, session)
	db.WaitGone(t, session)
}

// TestNewKeys proves that locks on keys without a committed row are shown: those that sessions hold
// and those of prepared transactions without a session, beside such locks on rows that are committed.
func TestNewKeys(t *testing.T) {
	t.Parallel()
	for _, engine := range testdb.Engines() {
		for name, c := range map[string]struct {
			held, prepared []string
			committed      []string
		}{
			"held":         {held: []string{"a", "b"}},
			"one prepared": {prepared: []string{"a"}},
			"all":          {held: []string{"a", "b"}, prepared: []string{"c", "d"}, committed: []string{"b", "d"}},
		} {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.Shared(t, engine).OpenLeases(t)
				pool := db.Connect(t)
				for _, key := range c.committed {
					must(t, txlock.Ensure(t.Context(), pool, txlock.Named(key)))
				}
				sessions := make(map[string]uint64)
				for _, key := range c.held {
					tx, scope := beginTx(t, pool)
					lock(t, scope, key)
					sessions[key] = uint64(testdb.ConnID(t, tx))
				}
				for _, key := range c.prepared {
					detach(t, db, pool, txlock.Named(key))
					sessions[key] = 0
				}
				p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return len(p.Locks) == len(sessions) })
				for _, l := range p.Locks {
					if session, ours := sessions[l.Key]; !ours || l.Session != session || l.Detached != (session == 0) || l.Endable() == l.Detached || l.Mode != ops.Exclusive || l.Unsure || l.Changing {
						t.Errorf("the lock of %q is %#v, want session %d", l.Key, l, session)
					}
				}
			})
		}
	}
}

// endOfPrepared proves that ending a session doesn't look like a release where its transaction
// is prepared, and so stays.
func endOfPrepared(t *testing.T, db *testdb.DB) {
	key := txlock.Named("prepared:8")
	must(t, txlock.Ensure(t.Context(), db.Connect(t), key))
	var stay []string
	if db.Engine() == testdb.MySQL {
		stay = []string{"SET SESSION xa_detach_on_prepare = OFF"} // as before 8.0.29
	}
	session := prepare(t, db, db.Admin(), key, stay...)
	room := ops.New(db.Admin())
	lookUntil(t, room, func(p *ops.Picture) bool { return len(p.Locks) == 1 && p.Locks[0].Session == uint64(session) })
	ended, err := room.End(t.Context(), func(l ops.Lock) bool { return l.Key == key.String() })
	testdb.ErrorIf(t, !errors.Is(err, ops.ErrDetached) || len(ended) != 1, "End has ended %+v: %v", ended, err)
}

// end proves that End rolls back the transactions of what is picked, and nothing else.
func end(t *testing.T, db *testdb.DB) {
	pool := db.Connect(t)
	for _, key := range []string{"end:1", "end:2"} {
		must(t, txlock.Ensure(t.Context(), pool, txlock.Named(key)))
		lock(t, begin(t, pool), key)
	}
	room := ops.New(db.Admin())
	lookUntil(t, room, func(p *ops.Picture) bool { return exclusive(p) == 2 })
	ended, err := room.End(t.Context(), func(l ops.Lock) bool { return l.Key == "end:1" })
	if err != nil || len(ended) != 1 || ended[0].Key != "end:1" {
		t.Fatalf("End has ended %+v: %v", ended, err)
	}
	lookUntil(t, room, func(p *ops.Picture) bool { return exclusive(p) == 1 && p.Locks[0].Key == "end:2" })
	if _, err := ops.New(pool).End(t.Context(), func(ops.Lock) bool { return true }); err != nil { // its own user's session
		t.Error(err)
	}
}

// TestReaders proves that readers who keep a writer waiting are listed among the locks, and that one
// who can't be told from others is said to be so, and isn't ended.
func TestReaders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, key := db.Connect(t), txlock.Named("readers:7")
		must(t, txlock.Ensure(t.Context(), pool, key))
		for range 2 {
			must(t, second(begin(t, pool).RLock(t.Context(), key)))
		}
		waiting(t, db, pool, key)
		p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return len(p.Locks) == 2 && len(p.Waits) == 1 })
		for _, l := range p.Locks {
			if l.Mode != ops.Shared || l.Key != key.String() || l.Waiters != 1 || l.Unsure != (db.Engine() == testdb.MariaDB) || l.Endable() == l.Unsure {
				t.Errorf("a reader's lock is %#v", l)
			}
		}
	})
}

func wait(key string, session uint64, blockers ...uint64) ops.Wait {
	return ops.Wait{Row: ops.Row{Kind: ops.Named, Key: key}, Session: session, Blockers: blockers}
}

var stock = ops.Row{Kind: ops.Table, Table: "stock"}

// flat writes a tree: a row, its holders, and in brackets its waiters with what they hold.
func flat(nodes []*ops.Node) string {
	var all []string
	for _, n := range nodes {
		text := n.Key + fmt.Sprint(n.Holders)
		if n.Deadlock {
			text += "!"
		}
		for _, w := range n.Waiters {
			text += fmt.Sprintf("(%d %s)", w.Session, flat(w.Holds))
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// TestTree draws chains, a queue, a holder of two rows, and circles; and around a key, which session 3 holds, what
// its holder waits for, up to the root.
func TestTree(t *testing.T) {
	t.Parallel()
	table := ops.Wait{Row: stock, Session: 2, Blockers: []uint64{1}}
	row := ops.Wait{Row: ops.Row{Kind: ops.Other, Table: "stock (PRIMARY)"}, Session: 3, Blockers: []uint64{2}}
	held := []ops.Lock{{Row: ops.Row{Kind: ops.Named, Key: "a"}, Session: 3}, {Row: ops.Row{Kind: ops.Named, Key: "b"}, Session: 9}}
	for name, c := range map[string]struct {
		waits []ops.Wait
		want  string
	}{
		"nobody":     {nil, ""},
		"a queue":    {[]ops.Wait{wait("a", 2, 1), wait("a", 3, 1)}, "a[1](2 )(3 )"},
		"a chain":    {[]ops.Wait{wait("b", 3, 2), wait("a", 2, 1)}, "a[1](2 b[2](3 ))"},
		"two rows":   {[]ops.Wait{wait("a", 2, 1), wait("b", 3, 1)}, "a[1](2 ) b[1](3 )"},
		"readers":    {[]ops.Wait{wait("a", 3, 1, 2)}, "a[1 2](3 )"},
		"unknown":    {[]ops.Wait{wait("a", 3)}, "a[](3 )"},
		"a circle":   {[]ops.Wait{wait("a", 2, 1), wait("b", 1, 2)}, "a[1]!(2 b[2](1 ))"},
		"behind DDL": {[]ops.Wait{table, {Row: stock, Session: 3, Blockers: []uint64{2}, Queued: true}, wait("a", 4, 3)}, "[1](2 [2](3 a[3](4 )))"},
		"unsure":     {[]ops.Wait{wait("a", 2, 1), {Row: stock, Session: 1, Blockers: []uint64{2}, Unsure: true}}, "a[1](2 [2](1 ))"},
		"and a tail": {[]ops.Wait{wait("a", 2, 1), wait("b", 1, 2), wait("b", 3, 2)}, "a[1]!(2 b[2](1 )(3 ))"},

		"around: waiters":               {[]ops.Wait{wait("a", 4, 3), wait("b", 5, 9)}, "a[3](4 )"},
		"around: the holder waits":      {[]ops.Wait{row, wait("b", 5, 9)}, "[2](3 )"},
		"around: and its root":          {[]ops.Wait{table, row, wait("a", 4, 3), wait("b", 5, 9)}, "[1](2 [2](3 a[3](4 )))"},
		"around: not who waits for row": {[]ops.Wait{{Row: row.Row, Session: 7, Blockers: []uint64{3}}}, ""},
	} {
		p := &ops.Picture{Waits: c.waits, Locks: held}
		if strings.HasPrefix(name, "around") {
			p = p.Around(func(r ops.Row) bool { return r.Key == "a" })
		}
		leasetest.Equal(t, name+": the tree", flat(p.Tree()), c.want)
	}
}

// TestSeconds writes times for people.
func TestSeconds(t *testing.T) {
	t.Parallel()
	for s, want := range map[ops.Seconds]string{0: "0.0s", 1.25: "1.2s", 41.4: "41s", 192: "3m12s", 93780: "26h3m", -2: "-2.0s"} {
		leasetest.Equal(t, fmt.Sprintf("how %v is written", float64(s)), s.String(), want)
	}
}

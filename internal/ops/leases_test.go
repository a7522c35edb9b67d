package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/elect"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// holdLeases makes leases that are held for a day, the first of which are named lease:0 and lease:1.
func holdLeases(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	const clock = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
	db.Exec(t, fmt.Sprintf(`INSERT INTO lockstep_leases (name, slot, owner, holders, token, ttl_us, expires_us, used_for, guards, label)
		SELECT CONCAT('lease:', n), 0, 'web-1/4711', RPAD(';', 23, 'x'), %[1]s, 86400000000, %[1]s + 86400000000, 0, 0, 'web-1' FROM %[2]s`, clock, numbers(n)))
}

// rowsRead returns how many rows the session of a pool of one connection has read.
func rowsRead(t *testing.T, pool *sql.DB) (all int) {
	t.Helper()
	rows := testdb.Got(pool.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'"))(t)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var n int
		must(t, rows.Scan(&name, &n))
		all += n
	}
	must(t, rows.Err())
	return all
}

// TestManyLeases proves that looks read the table of leases as rarely as its size demands, say how old what they
// show is, and show what is right for that age; who is the first in a queue is right for the look itself.
func TestManyLeases(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		n := testdb.Long(4_000, 20_000)
		holdLeases(t, db, n)
		leave := waitInLine(t, db.Connect(t))
		admin, _ := watched(t, db)
		room := ops.New(admin)
		look := func() (p *ops.Picture, rows int) {
			began := rowsRead(t, admin)
			p = testdb.Got(room.Look(t.Context()))(t)
			return p, rowsRead(t, admin) - began
		}
		waits := func(p *ops.Picture) bool {
			return slices.ContainsFunc(p.Waits, func(w ops.Wait) bool { return w.Key == "queue" }) ||
				slices.ContainsFunc(p.Leases, func(l ops.Lease) bool { return l.Kind == "waiter" })
		}
		p, all := look()
		testdb.FatalIf(t, len(p.Leases) != n+2 || p.LeasesAge != 0 || !waits(p) || all < n,
			"the first look shows %d leases, %v old, a waiter %v, and reads %d rows", len(p.Leases), p.LeasesAge, waits(p), all)
		leave()
		changed, shown := false, false // two leases, and whether they were read since
		read := p.Taken
		for reads := 1; reads < 3; {
			testdb.Refresh()
			p, rows := look()
			if p.LeasesAge == 0 {
				paused := p.Taken.Sub(read)
				testdb.ErrorIf(t, paused < time.Duration(n)*500*time.Microsecond, "the leases were read again after %v", paused)
				shown, read = changed, p.Taken
				reads++
			} else if rows > all/5 {
				t.Errorf("a look that shows leases %v old reads %d rows, and one that reads them %d", p.LeasesAge, rows, all)
			}
			testdb.ErrorIf(t, waits(p), "who has left a queue is shown in it")
			if late, asked := p.Leases[0].Late(), p.Leases[1].Asked == "maintenance"; late != shown || asked != shown {
				t.Errorf("leases that are %v old show that one is late %t and one asked for %t, want %t", p.LeasesAge, late, asked, shown)
			}
			testdb.ErrorIf(t, p.Leases[0].Key != "lease:0", "the first lease is %q: a viewer has masked it in another picture", p.Leases[0].Key)
			p.Leases[0].Key = "masked"
			if !changed {
				db.Exec(t, "UPDATE lockstep_leases SET expires_us = expires_us - ttl_us * 3 DIV 4 WHERE name = 'lease:0'")
				db.Exec(t, "UPDATE lockstep_leases SET asked_us = expires_us, release_reason = 'maintenance' WHERE name = 'lease:1'")
				changed = true
			}
		}
		db.Exec(t, "DELETE FROM lockstep_leases WHERE name = 'lease:0'")
		room.Forget()
		p, _ = look()
		testdb.ErrorIf(t, p.Leases[0].Key != "lease:1" || p.LeasesAge != 0, "after Forget the first lease is %+v, %v old", p.Leases[0], p.LeasesAge)
	})
}

// manager is a manager of leases, which is closed at the end of the test.
func manager(t *testing.T, pool *sql.DB, opts ...lease.ManagerOption) *lease.Manager {
	t.Helper()
	m := testdb.Got(lease.NewManager(pool, append(opts, lease.PurgeEvery(0, time.Hour))...))(t)
	t.Cleanup(func() { must(t, m.Close(context.WithoutCancel(t.Context()))) })
	return m
}

// TestLeaders proves that each candidate of an election is shown, also of those that have one name.
func TestLeaders(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool := db.Connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		names := []string{"web-1", "web-1", "web-1", "web-2"}
		ended := make(chan error, len(names))
		for _, name := range names {
			e := testdb.Got(elect.New(manager(t, pool), txlock.Named("scheduler"), elect.InstanceName(name)))(t)
			go func() {
				ended <- e.Run(ctx, func(ctx context.Context, _ *elect.Term) error { <-ctx.Done(); return ctx.Err() })
			}()
		}
		var shown []string
		for deadline := time.Now().Add(30 * time.Second); len(shown) < len(names) && time.Now().Before(deadline); testdb.Refresh() {
			p := testdb.Got(ops.New(db.Admin()).Look(t.Context()))(t)
			for _, l := range p.Leaders() {
				shown = append([]string{l.By}, l.Standby...)
			}
		}
		slices.Sort(shown)
		testdb.ErrorIf(t, !slices.Equal(shown, names), "the candidates are %q, want %q", shown, names)
		cancel()
		for range names {
			err := <-ended
			testdb.ErrorIf(t, !errors.Is(err, context.Canceled), "%v", err)
		}
	})
}

// waitInLine lets a waiter wait for a lease that is held, until leave is called.
func waitInLine(t *testing.T, pool *sql.DB) (leave func()) {
	t.Helper()
	m, key := manager(t, pool, lease.Fair()), txlock.Named("queue")
	must(t, testdb.Err(m.Acquire(lease.WithOwner(t.Context(), "holder"), key)))
	ctx, cancel := context.WithCancel(lease.WithOwner(t.Context(), "waiter"))
	ended := make(chan error, 1)
	go func() { _, err := m.Acquire(ctx, key); ended <- err }()
	inLine := func(p *ops.Picture) bool {
		return slices.ContainsFunc(p.Leases, func(l ops.Lease) bool { return l.Kind == "waiter" && l.Owner == "waiter" })
	}
	lookUntil(t, ops.New(pool), inLine)
	return func() {
		cancel()
		testdb.Fails(t, "the waiter", <-ended)
		lookUntil(t, ops.New(pool), func(p *ops.Picture) bool { return !inLine(p) })
	}
}

// TestLate proves that a lease whose holder hasn't renewed it is late, and that one which isn't renewed
// by design never is: that of the cleanup, and one that is kept for a while after its release.
func TestLate(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		m := testdb.Got(lease.NewManager(db.Connect(t), lease.TTL(time.Hour), lease.PurgeEvery(500*time.Millisecond, time.Hour)))(t)
		t.Cleanup(func() { must(t, m.Close(context.WithoutCancel(t.Context()))) })
		must(t, testdb.Err(m.Acquire(t.Context(), txlock.Named("crashed"))))
		kept := testdb.Got(m.Acquire(t.Context(), txlock.Named("kept"), lease.HoldAtLeast(time.Hour)))(t)
		must(t, kept.Release(t.Context()))
		must(t, testdb.Err(m.Acquire(t.Context(), txlock.Named("spared"))))
		own := func(p *ops.Picture) bool {
			return slices.ContainsFunc(p.Leases, func(l ops.Lease) bool { return l.Key == "lockstep:cleanup" })
		}
		lookUntil(t, ops.New(db.Admin()), own)
		db.Exec(t, "UPDATE lockstep_leases SET ttl_us = 300000000, expires_us = UNIX_TIMESTAMP() * 1000000 + 300000000 WHERE name = 'lockstep:cleanup'") // so that the test may be slow
		for _, passed := range []string{"1 DIV 2", "3 DIV 4", "99 DIV 100"} {
			db.Exec(t, "UPDATE lockstep_leases SET expires_us = UNIX_TIMESTAMP() * 1000000 + ttl_us - ttl_us * "+passed+" WHERE name <> 'spared'")
			p := testdb.Got(ops.New(db.Admin()).Look(t.Context()))(t)
			testdb.ErrorIf(t, len(p.Leases) != 4, "the leases are %+v", p.Leases)
			for _, l := range p.Leases {
				renews := l.Key == "crashed" || l.Key == "spared"
				if late := l.Key == "crashed" && passed != "1 DIV 2"; l.Late() != late || l.Renewed.Known() != renews || strings.Contains(l.Describe(), "renewed") != renews || strings.Contains(l.Renewal(), "late") != late {
					t.Errorf("when %s of its TTL have passed, a lease is %s: late %v", passed, l.Describe(), l.Late())
				}
			}
		}
	})
}

// TestJobs proves what is said of jobs as the programs and the server have them: which run, died, fail, are overdue,
// paused or take too long, and their last runs. What is wrong by a row is in jobrow.TestOf.
func TestJobs(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx := db.Connect(t), t.Context()
		jobs := testdb.Got(job.New(pool, manager(t, pool), job.InstanceName("web-1:4711")))(t)
		defer func() { must(t, jobs.Close(ctx)) }()
		room := ops.New(db.Admin())
		none := testdb.Got(room.Jobs(ctx))(t)
		testdb.ErrorIf(t, len(none.Jobs) != 0 || none.Jobs == nil || time.Since(none.Now).Abs() > time.Minute, "there are %v", none)

		at, broken := time.Now().Add(-time.Hour), errors.New("no paper")
		tick := func(name string, after time.Duration, want error) {
			t.Helper()
			wants(t, name, testdb.Err(jobs.Tick(ctx, txlock.Named(name), at.Add(after), func(context.Context, time.Time) error { return want })), want)
		}
		for _, name := range []string{"done", "died", "late", "paused", "fails"} {
			tick(name, 0, nil)
		}
		tick("fails", time.Minute, broken)
		tick("fails", 2*time.Minute, broken)
		c := testdb.Got(jobs.Claim(ctx, txlock.Named("runs"), at))(t)
		must(t, testdb.Err(jobs.Pause(ctx, txlock.Named("paused"), "alice")))
		must(t, testdb.Err(jobs.RunNow(ctx, txlock.Named("paused"))))
		const ago = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) - 1000000 * "
		for _, change := range []string{
			"ended_us = 0, done_us = done_us - 1, next_us = " + ago + "3600 WHERE name = 'died'",
			"next_us = " + ago + "7200, schedule = 'Every(1h0m0s)', differs = 'Every(2h0m0s)', differs_us = " + ago + "5 WHERE name = 'late'",
			"next_us = " + ago + "7200 WHERE name = 'paused'",
			"started_us = " + ago + "600, limit_us = 60000000 WHERE name = 'runs'",
		} {
			db.Exec(t, "UPDATE lockstep_jobs SET "+change)
		}

		all := testdb.Got(room.Jobs(ctx))(t)
		var said []string
		for _, j := range all.Jobs {
			said = append(said, fmt.Sprint(j.Key, " ", j.State, " took ", j.Took.Known(), " requested ", !j.Requested.IsZero(), " ",
				j.PausedBy, strings.Join(j.Trouble(all.Now), "; ")))
		}
		testdb.Says(t, "the jobs", strings.Join(said, "\n"),
			"died died took false requested false overdue by 1h0m; it lost its lease without a result\ndone done took true requested false \n"+
				"fails failed took true requested false failed 2 times in ",
			": no paper\nlate done took true requested false overdue by 2h0m; another process runs it by Every(2h0m0s)",
			"\npaused paused took true requested true alicepaused by alice ", "\nruns running took true requested false too long by 9m")
		j, _ := all.Job("runs")
		testdb.ErrorIf(t, time.Since(all.Now).Abs() > time.Minute || j.Took < 590 || j.Took > 900, "at %v the job that runs has taken %v", all.Now, j.Took)
		j, has := all.Job("nobody")
		testdb.ErrorIf(t, has, "there is %v", j)

		runs := testdb.Got(room.JobRuns(ctx, "fails"))(t)
		if len(runs) != 3 || runs[0].Outcome != "failed" || runs[0].Err != "no paper" || runs[2].Outcome != "done" || runs[0].By != "web-1:4711" || runs[0].Started.IsZero() {
			t.Errorf("the runs are %+v", runs)
		}
		missed, err := room.JobRuns(ctx, "nobody")
		testdb.ErrorIf(t, err != nil || len(missed) != 0 || missed == nil, "the runs of no job are %v, %v", missed, err)
		must(t, c.Finish(ctx, nil))
		all = testdb.Got(room.Jobs(ctx))(t)
		j, _ = all.Job("runs")
		testdb.ErrorIf(t, j.State != "done" || j.TooLong != 0, "the job that has run is %+v", j)
	})
}

// TestSchedules proves that it is said of a job that two versions of a program run it by other
// schedules, as long as both do.
func TestSchedules(t *testing.T) {
	onServers(t, func(t *testing.T, db *testdb.DB) {
		pool, ctx := db.Connect(t), t.Context()
		jobs := testdb.Got(job.New(pool, manager(t, pool), job.Log(nil)))(t)
		ended := make(chan error, 2)
		for _, schedule := range []job.Schedule{job.Every(time.Second), job.Every(2 * time.Second)} {
			go func() {
				ended <- jobs.Run(ctx, txlock.Named("nightly"), schedule, func(context.Context, time.Time) error { return nil })
			}()
		}
		room := ops.New(db.Admin())
		var j ops.JobStatus
		if !testdb.Await(time.Minute, func() bool {
			all := testdb.Got(room.Jobs(ctx))(t)
			j, _ = all.Job("nightly")
			both := j.Schedule + j.Differs
			return both == "Every(1s)Every(2s)" || both == "Every(2s)Every(1s)"
		}) {
			t.Fatalf("the job is %+v", j)
		}
		must(t, jobs.Close(ctx))
		must(t, errors.Join(<-ended, <-ended))
	})
}

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
				testdb.ErrorIf(t, slices.ContainsFunc(p.Locks, func(l ops.Lock) bool { return l.Kind == ops.Between }), "a gap is listed as a lock: %#v", p.Locks)
			})
		}
	}
}

// prepare locks a key in an XA transaction, prepares it, and returns its session. If it ends, the
// transaction has none any more.
func prepare(t *testing.T, db *testdb.DB, pool *sql.DB, key txlock.Key, first ...string) (session int64) {
	t.Helper()
	conn := testdb.Got(pool.Conn(t.Context()))(t)
	session = testdb.ConnID(t, conn)
	xid := fmt.Sprintf("'ops-%s-%d'", db.Name(), session)
	for _, statement := range append(first,
		"XA START "+xid, fmt.Sprintf("INSERT INTO lockstep_locks (name, token, owner, conn_id, locked_us) VALUES ('%s', UNIX_TIMESTAMP() * 1000000, 'importer', CONNECTION_ID(), UNIX_TIMESTAMP() * 1000000) "+
			"ON DUPLICATE KEY UPDATE token = VALUES(token), owner = VALUES(owner), conn_id = VALUES(conn_id), locked_us = VALUES(locked_us)", key),
		"XA END "+xid, "XA PREPARE "+xid,
	) {
		must(t, testdb.Err(conn.ExecContext(t.Context(), statement)))
	}
	t.Cleanup(func() {
		_ = conn.Close() // its session may have been ended
		must(t, testdb.Err(db.Admin().ExecContext(context.WithoutCancel(t.Context()), "XA ROLLBACK "+xid)))
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
	testdb.FatalIf(t, err != nil || len(ended) != 1 || ended[0].Key != "end:1", "End has ended %+v: %v", ended, err)
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
			must(t, testdb.Err(begin(t, pool).RLock(t.Context(), key)))
		}
		waiting(t, db, pool, key)
		p := lookUntil(t, ops.New(db.Admin()), func(p *ops.Picture) bool { return len(p.Locks) == 2 && len(p.Waits) == 1 })
		for _, l := range p.Locks {
			testdb.ErrorIf(t, l.Mode != ops.Shared || l.Key != key.String() || l.Waiters != 1 || l.Unsure != (db.Engine() == testdb.MariaDB) || l.Endable() == l.Unsure,
				"a reader's lock is %#v", l)
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
		testdb.Equal(t, name+": the tree", flat(p.Tree()), c.want)
	}
}

// TestSeconds writes times for people.
func TestSeconds(t *testing.T) {
	t.Parallel()
	for s, want := range map[ops.Seconds]string{0: "0.0s", 1.25: "1.2s", 41.4: "41s", 192: "3m12s", 93780: "26h3m", -2: "-2.0s"} {
		testdb.Equal(t, fmt.Sprintf("how %v is written", float64(s)), s.String(), want)
	}
}

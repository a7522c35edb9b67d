package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/locksqlc"
	"github.com/dca00107/lockstep/schema"
	"github.com/dca00107/lockstep/txlock"
	"github.com/dca00107/lockstep/txlock/job"
	"github.com/dca00107/lockstep/txlock/lease"
)

// answer runs a command with --json, and reads the one object that it prints.
func (s *stage) answer(want int, into any, args ...string) {
	s.Helper()
	output, code := s.call(append(args, "--json")...)
	if at := strings.Index(output, "{"); code != want || at < 0 || json.NewDecoder(strings.NewReader(output[at:])).Decode(into) != nil {
		s.Fatalf("lockstep %v returns %d, not %d, and prints:\n%s", args, code, want, output)
	}
}

// TestReleaseOfOne proves that a slot names one permit of several, that the holder of the slot of a hashed key is
// ended only if that is meant, and that nothing changes where the user may not end sessions.
func TestReleaseOfOne(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		permits := testdb.Got(s.manager().Semaphore(txlock.Named("imports"), 2))(s)
		for i := range 2 {
			s.must(testdb.Err(permits.Acquire(lease.WithOwner(s.ctx, fmt.Sprintf("import %d", i+1)))))
		}
		held := func() (owners []string, slots []int64) {
			var leases leasesForm
			s.answer(done, &leases, "leases")
			for _, l := range leases.Leases {
				owners, slots = append(owners, l.Owner), append(slots, l.Slot)
			}
			return owners, slots
		}
		owners, slots := held()
		s.says(nothing, `"imports" is held, but not in slot 77`, "release", "imports", "--slot", "77", "--yes")
		s.says(nothing, `no holder of "order:42" is visible`, "release", "order:42", "--yes")
		var released releasedForm
		s.answer(done, &released, "release", "imports", "--slot", fmt.Sprint(slots[0]), "--yes")
		if left, _ := held(); len(owners) != 2 || !slices.Equal(left, owners[1:]) || len(released.Leases) != 1 || released.Leases[0].Owner != owners[0] {
			t.Errorf("%q were held, %q are after the release of slot %d, which has answered %+v", owners, left, slots[0], released)
		}

		tx, scope := s.begin()
		s.lockHashed(scope)
		s.listed()
		s.says(nothing, "confirm with --hashed", "release", "cart:42", "--yes")
		op := s.operator()
		op.may(looks(s.db.Engine()))
		output, code := s.call("release", "cart:42", "--hashed", "--yes", "--json")
		if code != declined || !strings.Contains(output, `"locks": []`) || !strings.Contains(output, "may not end session 51: GRANT CONNECTION") || strings.Contains(output, "Error 1") {
			t.Errorf("release without the privilege to end sessions returns %d, and prints:\n%s", code, output)
		}
		s.must(tx.Commit())

		if s.db.Engine() == testdb.MySQL { // whose administrators are safe from others
			holder := &operator{stage: s, name: s.db.Config().User}
			holder.change(grant, need{"SYSTEM_USER", "*.*"})
			op.change(grant, need{"CONNECTION_ADMIN", "*.*"})
			s.pool = s.db.Connect(t, program)
			tx, scope = s.begin()
			s.lockHashed(scope)
			s.says(declined, ", and SYSTEM_USER if the other has that", "release", "cart:42", "--hashed", "--yes")
			op.change(grant, need{"SYSTEM_USER", "*.*"})
			s.says(done, "", "release", "cart:42", "--hashed", "--yes")
			s.db.WaitGone(s, s.last)
			_ = tx.Rollback() // its session is gone
		}

		tx, scope = s.begin()
		s.lockHashed(scope)
		s.listed()
		s.dsn = s.db.AdminDSN()
		s.answer(done, &released, "release", "cart:42", "--hashed", "--yes")
		s.db.WaitGone(s, s.last)
		if err := tx.Commit(); err == nil || len(released.Locks) != 1 || released.Locks[0].Slot != int64(txlock.ParseKey("cart:42").Slot()) {
			t.Errorf("release with --hashed has answered %+v, and Commit %v", released, err)
		}
	})
}

// TestReleaseLeavesWaiters proves that the lease is taken from its holder alone, and that who
// waits for it in the queue of Fair has it next.
func TestReleaseLeavesWaiters(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.acquire("web-1/4711", "nightly report")
		m := s.manager(lease.Fair())
		granted := make(chan error, 1)
		go func() {
			l, err := m.Acquire(lease.WithOwner(s.ctx, "web-2/815"), txlock.Named("report"))
			if err == nil {
				err = l.Release(s.ctx)
			}
			granted <- err
		}()
		testdb.FatalIf(t, !testdb.Await(time.Minute, func() bool {
			var leases leasesForm
			s.answer(done, &leases, "leases")
			return slices.ContainsFunc(leases.Leases, func(l ops.Lease) bool { return l.Kind == "waiter" })
		}), "the waiter is not listed")
		var released releasedForm
		s.answer(done, &released, "release", "report", "--yes")
		testdb.ErrorIf(t, len(released.Leases) != 1 || released.Leases[0].Owner != "web-1/4711" || len(released.Locks) != 0,
			"release has answered %+v", released)
		s.must(<-granted)
	})
}

// answering answers yes to a question when it is asked, and something was done.
type answering func()

func (a answering) Read(b []byte) (int, error) { a(); return copy(b, "yes\n"), io.EOF }

// meanwhile runs a command, and does something before its question is answered.
func (s *stage) meanwhile(do func(), args ...string) (output string, code int) {
	var out bytes.Buffer
	code = run(s.ctx, args, s.getenv, answering(do), &out, &out)
	return out.String(), code
}

// TestReleaseOfTheNext proves that a session isn't ended that has committed what was shown,
// and locked the key again, while somebody thought about the question.
func TestReleaseOfTheNext(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		conn := testdb.Got(s.pool.Conn(s.ctx))(s)
		defer func() { s.must(conn.Close()) }()
		s.last = testdb.ConnID(s, conn)
		s.number(s.last)
		locked := func() *sql.Tx {
			tx := testdb.Got(conn.BeginTx(s.ctx, nil))(s)
			scope := testdb.Got(txlock.Join(s.ctx, tx))(s)
			s.lock(scope, orders.Key(42))
			s.listed()
			return tx
		}
		tx := locked()
		output, code := s.meanwhile(func() { s.must(tx.Commit()); tx = locked() }, "release", "order:42")
		testdb.ErrorIf(t, code != nothing, "release returns %d, and prints:\n%s", code, output)
		s.must(tx.Commit())
	})
}

// TestReleaseBehindDDL proves that nobody is told that a lock is free which can't be seen any more, because
// somebody has begun to change its table while the question was open.
func TestReleaseBehindDDL(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		tx, _ := s.locks(orders.Key(42))
		s.listed()
		output, code := s.meanwhile(func() { s.alter("lockstep_locks") }, "release", "order:42")
		testdb.ErrorIf(t, code == done || !strings.Contains(output, ops.ErrUnknown.Error()), "release returns %d, and prints:\n%s", code, output)
		s.must(tx.Rollback())
	})
}

// TestTablesBehindDDL proves that what can't be read because of DDL is said in lockstep's words.
func TestTablesBehindDDL(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for table, commands := range map[string][][]string{"lockstep_jobs": {{"jobs"}, {"jobs", "show", "mails"}}, "lockstep_once": {{"once"}}} {
			tx, _ := s.begin()
			var n int
			s.must(tx.QueryRowContext(s.ctx, "SELECT COUNT(*) FROM "+table).Scan(&n))
			s.alter(table)
			for _, command := range commands {
				output, code := s.call(command...)
				if code != trouble || !strings.Contains(output, table) || !strings.Contains(output, "behind DDL") || !strings.Contains(output, "see waits") || strings.Contains(output, "Error 1") {
					t.Errorf("%v returns %d, and prints:\n%s", command, code, output)
				}
			}
			s.must(tx.Rollback())
		}
	})
}

// TestReleaseOfTheNextLease proves that a lease is neither taken nor asked for from a holder that has
// acquired it while somebody thought about the question, or without an answer, and that one which nobody holds, or a writer
// that waits for readers, is no holder's.
func TestReleaseOfTheNextLease(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		m := s.manager()
		first := s.acquire("web-1/4711", "nightly report")
		for _, args := range [][]string{{"ask", "report"}, {"release", "report"}, {"install"}} {
			output, code := s.call(append(args, "--json")...)
			testdb.ErrorIf(t, code != declined || strings.Contains(output, "{"), "lockstep %v without an answer returns %d, and prints:\n%s", args, code, output)
		}
		s.must(first.Release(s.ctx))
		for _, command := range []string{"release", "ask"} {
			l, key := s.acquire("web-1/4711", "nightly report"), txlock.Named("report")
			output, code := s.meanwhile(func() {
				s.must(l.Release(s.ctx))
				l = testdb.Got(m.Acquire(s.ctx, key))(s)
			}, command, "report")
			testdb.ErrorIf(t, code != nothing || l.Renew(s.ctx) != nil || isAsked(l),
				"%s returns %d, prints:\n%s\nand then the lease has the error %v, asked: %t", command, code, output, l.Err(), isAsked(l))
			s.must(l.Release(s.ctx))
		}

		kept := testdb.Got(m.Acquire(s.ctx, txlock.Named("kept"), lease.HoldAtLeast(time.Hour)))(s)
		s.must(kept.Release(s.ctx))
		output, code := s.call("ask", "kept", "--yes")
		testdb.ErrorIf(t, code != nothing || strings.Contains(output, "request"), "ask of a lease that was released returns %d, and prints:\n%s", code, output)
		s.shows([]string{"release", "kept", "--yes"}, "Nobody holds it")

		reader := testdb.Got(m.AcquireShared(lease.WithOwner(s.ctx, "reader/1"), txlock.Named("doc")))(s)
		var writer *lease.Lease
		writing := make(chan error, 1)
		go func() {
			l, err := m.Acquire(lease.WithOwner(s.ctx, "writer/1"), txlock.Named("doc"))
			writer = l
			writing <- err
		}()
		s.shows([]string{"leases"}, "doc  waits")
		s.must(schema.InstallViews(s.ctx, s.db.Admin()))
		s.rows("SELECT kind FROM lockstep_held WHERE name = 'doc'", "reader")
		var asked askedForm
		s.answer(done, &asked, "ask", "doc", "--yes")
		var released releasedForm
		s.answer(done, &released, "release", "doc", "--yes")
		testdb.ErrorIf(t, len(released.Leases) != 1 || released.Leases[0].Kind != "reader", "release of the readers has answered %+v", released)
		s.must(<-writing)
		s.must(writer.Renew(s.ctx))
		testdb.ErrorIf(t, isAsked(writer) || len(asked.Leases) != 1, "ask of the readers has answered %+v, and the writer is asked: %t", asked, isAsked(writer))
		_ = reader.Release(s.ctx) // it was taken

		_, scope := s.begin()
		s.must(testdb.Err(scope.Once(s.ctx, txlock.Named("pay:1"))))
		waiter, other := s.begin()
		s.waits(waiter, func(ctx context.Context) error { return testdb.Err(other.Once(ctx, txlock.Named("pay:1"))) })
		s.shows([]string{"waits"}, "pay:1")
		output, code = s.call("release", "pay:1", "--yes")
		testdb.ErrorIf(t, code != nothing || !strings.Contains(output, "KILL"), "release of a key of Once returns %d, and prints:\n%s", code, output)
	})
}

func isAsked(l *lease.Lease) bool {
	_, asked := l.ReleaseReason()
	return asked
}

// TestJobs proves that the table of jobs fits 80 columns, and that jobs are paused, resumed and
// requested after a question only, as the programs see it.
func TestJobs(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		jobs := testdb.Got(job.New(s.pool, s.manager()))(s)
		name := "reports:" + strings.Repeat("of-all-branches-", 4)
		fails := func(context.Context, time.Time) error { return errors.New(strings.Repeat("no paper, ", 30)) }
		testdb.Fails(t, "the job", testdb.Err(jobs.Tick(s.ctx, txlock.Named(name), time.Now().Add(-time.Hour), fails)), "no paper")
		key := txlock.Named("nightly")
		s.must(testdb.Err(jobs.Tick(s.ctx, key, time.Now().Add(-time.Hour), func(context.Context, time.Time) error { return nil })))

		output, code := s.call("jobs")
		for line := range strings.Lines(output) {
			n := utf8.RuneCountInString(strings.TrimRight(line, "\n"))
			testdb.ErrorIf(t, n > 80, "a line has %d columns: %s", n, line)
		}
		testdb.ErrorIf(t, code != done || !strings.Contains(output, "reports:of-all-br...") || !strings.Contains(output, "failed 12s ago: no") || !strings.Contains(output, "nightly"),
			"jobs returns %d and prints:\n%s", code, output)
		var shows jobForm
		output, code = s.call("jobs", "show", name, "--json")
		if code != done || json.Unmarshal([]byte(output), &shows) != nil || shows.Job.Failing != 1 || len(shows.Runs) != 1 || shows.Runs[0].Outcome != "failed" || shows.Now.IsZero() {
			t.Errorf("jobs show returns %d and prints:\n%s", code, output)
		}

		status := func() ops.JobStatus {
			t.Helper()
			all := testdb.Got(ops.New(s.db.Admin()).Jobs(s.ctx))(s)
			j, _ := all.Job("nightly")
			return j
		}
		says := func(want int, text string, args ...string) {
			t.Helper()
			s.says(want, text, append([]string{"jobs"}, args...)...)
		}
		s.stdin = "no\n"
		says(declined, "nothing was done", "pause", "nightly", "--by", "alice")
		j := status()
		testdb.ErrorIf(t, !j.Paused.IsZero(), "it is paused without an answer: %+v", j)
		says(nothing, "is not paused", "resume", "nightly", "--yes")
		says(nothing, "by a schedule", "run", "nightly", "--yes")
		s.stdin = "yes\n"
		says(done, "Paused.", "pause", "nightly", "--by", "alice")
		_, err := jobs.Tick(s.ctx, key, time.Now(), func(context.Context, time.Time) error { return nil })
		testdb.ErrorIf(t, !errors.Is(err, job.ErrPaused), "a tick of the paused job: %v", err)
		says(done, "paused by alice", "show", "nightly")
		says(done, `"state": "paused"`, "--json")
		says(nothing, "is paused already, by \"alice", "pause", "nightly", "--yes")
		s.db.Exec(t, "UPDATE lockstep_jobs SET schedule = 'Every(1h0m0s)' WHERE name = 'nightly'")
		says(done, "Requested.", "run", "nightly", "--yes")
		says(nothing, "was requested already", "run", "nightly", "--yes")
		says(done, `"did": "resume"`, "resume", "nightly", "--yes", "--json")
		j = status()
		testdb.ErrorIf(t, !j.Paused.IsZero() || j.Requested.IsZero(), "after resume and run it is %+v", j)
		says(done, "Paused.", "pause", "nightly", "--by", "al\x1bice\nState: done", "--yes") // which makes no line of its own
		says(done, `paused by al\x1bice\nState: done`, "show", "nightly")
		says(nothing, `"nightly" is paused already, by "al\x1bice\nState: done"`, "pause", "nightly", "--yes")
		says(done, `"nightly", which was paused by al\x1bice\nState: done`, "resume", "nightly", "--yes")
		says(usage, "must have 1 to 255", "pause", "nightly", "--by", "", "--yes")
		says(usage, "accepts 1 arg", "pause")
		says(nothing, "there is no job", "pause", "nobody", "--yes")
		says(nothing, "there is no job", "show", "nobody", "--json")
	})
}

// broken are faults of the tables, with the subject of check that tells of each. schema.TestCheckFinds
// has others, whose statements are part of the error.
var broken = []struct{ name, subject, by string }{
	{"a trigger", "tables", "CREATE TRIGGER counts AFTER UPDATE ON lockstep_locks FOR EACH ROW SET @n = 1"},
	{"a column of others", "tables", "ALTER TABLE lockstep_locks ADD tenant INT NOT NULL"},
	{"a unique key", "tables", "ALTER TABLE lockstep_locks ADD UNIQUE KEY once (name, token)"},
	{"a constraint", "tables", "ALTER TABLE lockstep_locks ADD CONSTRAINT few CHECK (token < 1 << 62)"},
	{"a constraint of a column", "tables", "ALTER TABLE lockstep_locks MODIFY token BIGINT UNSIGNED NOT NULL CHECK (token < 1 << 62)"},
	{"two constraints of a name", "tables", "ALTER TABLE lockstep_locks MODIFY token BIGINT UNSIGNED NOT NULL CHECK (token < 1 << 62), ADD CONSTRAINT `token` CHECK (owner <> 'CHECK')"},
	{"a view", "tables", "DROP TABLE lockstep_jobs; CREATE VIEW lockstep_jobs AS SELECT * FROM lockstep_once"},
	{"two faults", "tables", "ALTER TABLE lockstep_locks ENGINE = MyISAM; DROP TABLE lockstep_jobs"},
	{"too few centers", "center rows", "DELETE FROM lockstep_centers WHERE slot > 65000"},
	{"too many centers", "center rows", "INSERT INTO lockstep_centers VALUES (70000, 0, '-', 0, 0)"},
	{"no right to update", "privileges", "REVOKE UPDATE, DELETE ON lockstep_locks FROM "},
}

// uncallable are those of the procedures, which MySQL has.
var uncallable = []struct{ name, subject, by string }{
	{"a missing procedure", "procedures", "DROP PROCEDURE lockstep_lock_1"},
	{"another procedure", "procedures", "DROP PROCEDURE lockstep_lock_1; CREATE PROCEDURE lockstep_lock_1() SELECT 1"},
	{"no right to call", "procedures", "REVOKE EXECUTE ON %s.* FROM "},
	{"no right to call what is missing", "procedures", "DROP PROCEDURE lockstep_try_1; REVOKE EXECUTE ON %s.* FROM "},
}

// decided is what a person is told behind a statement.
var decided = regexp.MustCompile(`: a person decides.*`)

// TestRemedies proves that the remedy of each fault of the tables and procedures mends it: it does what check says,
// as an administrator, and check finds the subject right afterwards, as the user of the programs.
func TestRemedies(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		s.must(schema.Install(t.Context(), s.db.Admin()))
		faults := broken
		if s.db.Engine() == testdb.MySQL && !testdb.WithoutProcedures() {
			faults = slices.Concat(broken, uncallable)
		}
		for _, fault := range faults {
			t.Run(fault.name, func(t *testing.T) {
				by := fault.by
				if strings.HasSuffix(by, "FROM ") {
					by = strings.ReplaceAll(by, "%s", "`"+s.db.Name()+"`") + s.account()
				}
				for statement := range strings.SplitSeq(by, "; ") {
					s.db.Exec(t, statement)
				}
				if fault.name == "a view" {
					defer func() { _, _ = s.db.Admin().ExecContext(s.ctx, "DROP VIEW IF EXISTS lockstep_jobs") }()
				}
				look := func() ops.Finding {
					switch fault.name {
					case "a trigger", "another procedure": // which only who has the privilege TRIGGER sees, or made it
						return s.finding(fault.subject, s.db.Admin())
					}
					return s.finding(fault.subject, s.db.Connect(t)) // anew: a connection keeps the privileges of its database
				}
				said, f := "", look()
				for tries := 0; f.State != ops.OK && tries < 3; tries++ { // a table with two faults tells the second one afterwards
					said = f.Fix
					for remedy := range strings.SplitSeq(decided.ReplaceAllString(f.Fix, ""), "; ") {
						s.remedy(remedy)
					}
					f = look()
				}
				testdb.ErrorIf(t, f.State != ops.OK || said == "", "after %q check says %+v", said, f)
			})
		}
	})
}

// finding returns what check says of a subject.
func (s *stage) finding(subject string, as *sql.DB) ops.Finding {
	s.Helper()
	return s.findings(as, subject)[0]
}

// findings returns what check says of subjects.
func (s *stage) findings(as *sql.DB, subjects ...string) (all []ops.Finding) {
	s.Helper()
	found := testdb.Got(ops.New(as).Check(s.ctx))(s)
	for _, subject := range subjects {
		i := slices.IndexFunc(found, func(f ops.Finding) bool { return f.Name == subject })
		testdb.FatalIf(s, i < 0, "check says nothing of %s", subject)
		all = append(all, found[i])
	}
	return all
}

// remedy does what check says: a command of lockstep, or a statement.
func (s *stage) remedy(what string) {
	s.Helper()
	if command, is := strings.CutPrefix(what, "lockstep "); is {
		s.says(done, "", append(strings.Fields(command), "--yes")...)
		return
	}
	_, err := s.db.Admin().ExecContext(s.ctx, what)
	testdb.ErrorIf(s, err != nil, "%s: %v", what, err)
}

// TestRemediesOfSettings proves the same of the server's settings, which sessions have that come
// later, and of those of sessions. Where the server looks for no deadlock, waits shows it.
func TestRemediesOfSettings(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for subject, c := range map[string]struct {
			by    string
			state ops.State
		}{
			"read only":              {"SET GLOBAL read_only = ON", ops.Error},
			"isolation":              {"SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", ops.Warn},
			"deadlocks":              {"SET GLOBAL innodb_deadlock_detect = OFF", ops.Warn},
			"binary log":             {"SET GLOBAL binlog_format = 'STATEMENT'", ops.Error},
			"forgotten transactions": {"SET GLOBAL wait_timeout = 28800", ops.Warn},
		} {
			s.db.Exec(t, c.by)
			f := s.finding(subject, s.db.Connect(t))
			statement := regexp.MustCompile(`SET GLOBAL [^;,]*`).FindString(f.Fix)
			if f.State != c.state || statement == "" {
				t.Errorf("after %s check says %+v", c.by, f)
				continue
			}
			s.db.Exec(t, statement)
			f = s.finding(subject, s.db.Connect(t))
			testdb.ErrorIf(t, f.State != ops.OK, "after %s check says %+v", statement, f)
		}
		if s.db.Engine() == testdb.MariaDB {
			s.db.Exec(t, "SET GLOBAL idle_transaction_timeout = 120")
			f := s.finding("forgotten transactions", s.db.Connect(t))
			testdb.ErrorIf(t, f.Text != "end after 120 s at most", "with idle_transaction_timeout = 120 check says %+v", f)
		}
		s.remediesOfSessions()
		s.db.Exec(t, "SET GLOBAL innodb_deadlock_detect = OFF")
		t.Run("a deadlock", func(t *testing.T) { newStage(t, s.db).deadlock() })
	}, func(tb testing.TB, engine testdb.Engine) *testdb.DB {
		return testdb.Dedicated(tb, engine, testdb.Args("--log-bin=log", "--server-id=1", "--performance-schema=ON")).OpenLeases(tb)
	})
}

// remediesOfSessions does what check says of sessions on which locks don't hold: it takes the
// setting out of the data source name, and out of init_connect.
func (s *stage) remediesOfSessions() {
	s.Helper()
	for _, c := range []struct{ subject, name, value, says string }{
		{"autocommit", "autocommit", "0", "remove autocommit=0 from the data source name and from init_connect"},
		{"character set", "character_set_connection", "latin1", "use charset=utf8mb4 in the data source name, and remove other character sets from it and from init_connect"},
		{"session", "completion_type", "CHAIN", "remove the setting from the data source name and from init_connect"},
		{"session", "sql_select_limit", "1", "remove sql_select_limit from the data source name and from init_connect"},
		{"session", "sql_select_limit", "1000", "remove sql_select_limit from the data source name and from init_connect"},
	} {
		wrong := func(cfg *mysql.Config) { cfg.Params = map[string]string{c.name: c.value} }
		f := s.finding(c.subject, s.db.Connect(s, wrong))
		testdb.ErrorIf(s, f.State != ops.Error || !strings.Contains(f.Fix, c.says), "with %s in the data source name check says %+v, want %q", c.name, f, c.says)
		f = s.finding(c.subject, s.db.Connect(s))
		testdb.ErrorIf(s, f.State != ops.OK, "without it check says %+v", f)
		s.db.Exec(s, "SET GLOBAL init_connect = 'SET "+c.name+" = "+c.value+"'")
		f = s.finding(c.subject, s.db.Connect(s))
		testdb.ErrorIf(s, f.State != ops.Error || !strings.Contains(f.Fix, c.says), "with %s in init_connect check says %+v, want %q", c.name, f, c.says)
		if c.subject == "character set" {
			f := s.finding(c.subject, s.db.Connect(s, mysqlCharset))
			testdb.ErrorIf(s, f.State != ops.OK, "with charset=utf8mb4 check says %+v", f)
		}
		s.db.Exec(s, "SET GLOBAL init_connect = ''")
		f = s.finding(c.subject, s.db.Connect(s))
		testdb.ErrorIf(s, f.State != ops.OK, "without %s in init_connect check says %+v", c.name, f)
	}
}

// mysqlCharset is charset=utf8mb4 in a data source name.
func mysqlCharset(cfg *mysql.Config) {
	if err := cfg.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		panic(err)
	}
}

// account is that of the programs, as GRANT wants it.
func (s *stage) account() string {
	s.Helper()
	var account string
	s.must(s.db.Connect(s).QueryRowContext(s.ctx, "SELECT CURRENT_USER()").Scan(&account))
	return ops.Grantee(account)
}

// TestErrorRemedies proves that a call which was refused succeeds when what its error says was done.
func TestErrorRemedies(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		account := s.account()
		_, host, _ := strings.Cut(account, "@") // which the programs don't know
		locks := func() error {
			return locksqlc.Run(s.ctx, s.db.Connect(s), []txlock.Key{orders.Key(1)}, func(*sql.Tx) error { return nil })
		}
		for _, c := range []struct {
			fault, remedy string
			call          func() error
		}{
			{"DROP TABLE lockstep_locks", `schema\.Install\(ctx, db\)`, locks},
			{"REVOKE UPDATE ON lockstep_locks FROM " + account, "GRANT [^@]*@", locks},
			{"DROP TABLE lockstep_locks; REVOKE ALL PRIVILEGES, GRANT OPTION FROM " + account, "GRANT .*?@'[^']*'", func() error { return schema.Install(s.ctx, s.db.Connect(s)) }},
			{"DROP VIEW IF EXISTS lockstep_held", "GRANT .*@'[^']*'; GRANT PROCESS ON .*?@'[^']*'", func() error { return schema.InstallViews(s.ctx, s.db.Connect(s)) }},
		} {
			for statement := range strings.SplitSeq(c.fault, "; ") {
				s.db.Exec(t, statement)
			}
			err := c.call()
			testdb.FatalIf(t, err == nil, "in spite of %q the call succeeds", c.fault)
			switch remedy := regexp.MustCompile(c.remedy).FindString(err.Error()); {
			case remedy == "":
				t.Fatalf("%v has no remedy %s", err, c.remedy)
			case strings.HasPrefix(remedy, "schema."):
				s.must(schema.Install(s.ctx, s.db.Admin()))
			default:
				for statement := range strings.SplitSeq(remedy, "; ") {
					if strings.HasSuffix(statement, "@") {
						statement += host
					}
					s.db.Exec(t, statement)
				}
			}
			wants(t, fmt.Sprintf("after what %q says the call", err), c.call(), nil)
		}
		for _, found := range s.findings(s.db.Connect(t), "tables", "privileges") {
			testdb.ErrorIf(t, found.State != ops.OK, "afterwards check says %+v", found)
		}
	})
}

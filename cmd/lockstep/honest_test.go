package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// TestNothingFound proves that the exit code is 1 where nothing is found, with --json too, and that
// who can't see the locks isn't told that there are none.
func TestNothingFound(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, args := range [][]string{{"locks"}, {"leases"}, {"waits"}, {"show", "order:42"}, {"jobs"}, {"once"}, {"leaders"}} {
			var output string
			var code int
			// Another test's wait for a table, which MariaDB doesn't name, may be one for ours.
			testdb.Await(time.Minute, func() bool { output, code = s.call(append(args, "--json")...); return code == nothing })
			if code != nothing || !strings.Contains(output, "{") {
				t.Errorf("lockstep %v --json returns %d, and prints:\n%s", args, code, output)
			}
		}
		s.dsn = s.db.DSN() // without PROCESS
		for _, args := range [][]string{{"locks"}, {"waits"}, {"show", "order:42"}, {"release", "order:42"}} {
			output, code := s.call(args...)
			if code != declined || !strings.Contains(output, "GRANT PROCESS") || !strings.Contains(output, "it can't be seen: ") && !strings.Contains(output, "visible to this user") {
				t.Errorf("lockstep %v without PROCESS returns %d, and prints:\n%s", args, code, output)
			}
		}
		for _, args := range [][]string{{"leases"}, {"leaders"}, {"ask", "report"}} { // which don't need it
			if output, code := s.call(args...); code != nothing || strings.Contains(output, "GRANT") {
				t.Errorf("lockstep %v without PROCESS returns %d, and prints:\n%s", args, code, output)
			}
		}
	})
}

// TestReleaseSaysWhere proves that release of what is held otherwise says so, and changes nothing: by
// another key of a hashed family's slot, or in another slot of a lease.
func TestReleaseSaysWhere(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		_, scope := s.begin()
		s.lockHashed(scope)
		s.listed()
		s.acquire("web-1/4711", "nightly report")
		for want, args := range map[string][]string{
			"confirm with --hashed":               {"release", "cart:42", "--yes"},
			`"report" is held, but not in slot 5`: {"release", "report", "--slot", "5", "--yes"},
			`no holder of "order:42" is visible`:  {"release", "order:42", "--yes"},
		} {
			s.says(nothing, want, args...)
		}
		var leases leasesForm
		s.answer(done, &leases, "leases")
		if output, code := s.call("show", "cart:42"); code != done || len(leases.Leases) != 1 {
			t.Errorf("afterwards show returns %d, and prints:\n%s", code, output)
		}
	})
}

// TestUnseen proves that the exit code tells what this user may not see from what no one can.
func TestUnseen(t *testing.T) {
	t.Parallel()
	hides, lacks, programs := ops.Gap{Hides: true}, ops.Gap{Hides: true, Denied: true}, ops.Gap{Denied: true}
	for want, gaps := range map[int][][]ops.Gap{
		nothing: {nil, {programs}}, trouble: {{hides}, {programs, hides}}, declined: {{lacks}, {hides, lacks}, {lacks, hides}},
	} {
		for _, g := range gaps {
			if got := unseen(g); got != want {
				t.Errorf("the exit code for %+v is %d, not %d", g, got, want)
			}
		}
	}
}

// TestUnseenWaiters proves that who can't see all waiters of leases is told so, as text and as JSON,
// and no one else is.
func TestUnseenWaiters(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		l := s.acquire("web-1/4711", "nightly report")
		tx, _ := s.begin()
		s.must(l.Guard(s.ctx, tx))
		other, _ := s.begin()
		s.waits(other, func(ctx context.Context) error {
			return second(other.ExecContext(ctx, "UPDATE lockstep_leases SET version = version WHERE name = 'report' AND slot = 0"))
		})
		op := s.operator()
		op.may(rows())
		missing := looks(s.db.Engine())[len(rows()):]
		for i := range len(missing) + 1 {
			var text string
			var leases leasesForm
			sees := func() bool {
				text, _ = s.call("leases")
				s.answer(done, &leases, "leases")
				return i < len(missing) || leases.Leases[0].Waiters == 1
			}
			if !testdb.Await(time.Minute, sees) {
				t.Errorf("with all privileges the lease has %d waiters", leases.Leases[0].Waiters)
			}
			told := strings.Contains(text, "Not seen: ") && slices.ContainsFunc(leases.Gaps, func(g ops.Gap) bool { return g.Denied && g.Hides })
			if told != (i < len(missing)) || told != strings.Contains(text, "GRANT") {
				t.Errorf("with %v leases says %v, and prints:\n%s", missing[:i], leases.Gaps, text)
			}
			if text, _ := s.call("leases", "--json"); strings.Contains(text, `"waiters": null`) != told {
				t.Errorf("with %v leases prints:\n%s", missing[:i], text)
			}
			if i < len(missing) {
				op.change(grant, missing[i])
			}
		}
	})
}

// TestShowWithoutTables proves that show tells what it can of a key where tables can't be read, and which
// those are.
func TestShowWithoutTables(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		_, scope := s.begin()
		s.lock(scope, orders.Key(42))
		s.listed()
		shows := func(code int, key string, locks int, denied bool) {
			t.Helper()
			var form shown
			s.answer(code, &form, "show", key)
			if len(form.Locks) != locks {
				t.Errorf("the locks of %s are %#v", key, form.Locks)
			}
			for _, what := range []string{"keys of Once", "jobs"} {
				if !slices.ContainsFunc(form.Gaps, func(g ops.Gap) bool {
					return g.Hides && g.Denied == denied && strings.HasPrefix(g.What, what) && strings.Contains(g.Fix, "GRANT SELECT") == denied
				}) {
					t.Errorf("of %s show doesn't see %v", key, form.Gaps)
				}
			}
		}
		op := s.operator()
		op.may(looks(s.db.Engine()))
		shows(done, "order:42", 1, true)
		shows(declined, "order:43", 0, true)
		for _, table := range []string{"once", "jobs"} {
			op.change(grant, need{"SELECT", table})
			s.db.Exec(t, "DROP TABLE lockstep_"+table)
		}
		shows(done, "order:42", 1, false)
		shows(trouble, "order:43", 0, false)
	})
}

// TestBench proves that bench measures the locks that it names.
func TestBench(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		var measured measuredForm
		s.answer(done, &measured, "bench", "--lasts", "40ms", "--workers", "2", "--yes")
		if len(measured.Measured) != 4 || measured.Measured[1].PerSecond <= 0 {
			t.Errorf("bench has measured %v", measured)
		}
	})
}

// TestDoneInPart proves that a command that is refused after it has changed something says what it has
// changed.
func TestDoneInPart(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		op := s.operator()
		for _, table := range []string{"locks", "leases", "once", "jobs"} {
			op.change(grant, need{"SELECT", table})
		}
		purge := []string{"purge", "--older-than", "1h", "--yes"}
		s.unused()
		if output, code := s.call(append(purge, "--json")...); code != declined || strings.Contains(output, "{") {
			t.Errorf("purge that may delete nothing returns %d, and prints:\n%s", code, output)
		}
		op.change(grant, need{"DELETE", "locks"})
		op.change(grant, need{"DELETE", "leases"})
		var removed removedForm
		s.answer(declined, &removed, append(purge, "--json")...)
		if len(removed.Removed) != 2 || removed.Removed["locks"] != 1 || removed.Removed["leases"] != 1 {
			t.Errorf("purge that is refused has answered %v", removed)
		}
		s.unused()
		if output, code := s.call(purge...); code != declined || !strings.Contains(output, "Removed 1 rows of locks, 1 of leases, 0 of Once, 0 of jobs.") || !strings.Contains(output, "DELETE ON ") {
			t.Errorf("purge that is refused returns %d, and prints:\n%s", code, output)
		}
		op.change(grant, need{"DELETE", "once"})
		op.change(grant, need{"DELETE", "jobs"})
		s.answer(done, &removed, append(purge, "--json")...)
		s.answer(nothing, &removed, append(purge, "--json")...)

		fresh := stageOn(t, testdb.Fresh(t, s.db.Engine()))
		op = fresh.operator()
		op.may(on(all, "CREATE", "INSERT", "SELECT"))
		if s.db.Engine() == testdb.MySQL {
			op.change(grant, need{"CREATE ROUTINE", all})
		}
		fresh.nothing()
		var installed installedForm
		fresh.answer(declined, &installed, "install", "--views", "--yes", "--json")
		if len(installed.Tables) != 5 || len(installed.Views) > 0 {
			t.Errorf("install that is refused has answered %+v", installed)
		}
		if output, code := fresh.call("install", "--views", "--yes"); code != declined || !strings.Contains(output, "There are 5 tables, 0 views and ") || !strings.Contains(output, "GRANT CREATE VIEW") || strings.Contains(output, "Installed.") {
			t.Errorf("install that is refused returns %d, and prints:\n%s", code, output)
		}
	})
}

// alike are keys whose texts, without quotes, look like others, each beside one that it looks like.
var alike = []string{"tab\there", `tab\there`, "nul\x00", `nul\x00`, "a  b", "a b", " a", "a", "slot 7", "once a", `"a"`, "c1\u0085x", "zero\u200bwidth", "zerowidth", "größe", "-"}

// TestAlikeKeys proves that no two keys look alike, and that each command takes a key as it is printed,
// and finds that one alone.
func TestAlikeKeys(t *testing.T) {
	looks := make(map[string]bool)
	for _, key := range alike {
		shown := ops.Shown(key)
		if looks[shown] {
			t.Errorf("two keys are printed as %s", shown)
		}
		looks[shown] = true
		for _, read := range []func(arg string) (string, error){keyOf, programKeyOf} {
			if got, err := read(shown); got != key || err != nil {
				t.Errorf("%s is read as %q, %v", shown, got, err)
			}
		}
	}
	onServers(t, func(t *testing.T, s *stage) {
		m := s.manager()
		for _, key := range alike[:3] {
			s.must(second(m.Acquire(s.ctx, txlock.Named(key))))
		}
		for _, key := range alike[:2] {
			name := ops.Shown(key)
			s.shows([]string{"leases"}, name)
			var found shown
			s.answer(done, &found, "show", name)
			var asked askedForm
			s.answer(done, &asked, "ask", name, "--yes")
			var released releasedForm
			s.answer(done, &released, "release", name, "--yes")
			if found.Key != key || len(found.Leases) != 1 || asked.Key != key || len(asked.Leases) != 1 || released.Key != key || len(released.Leases) != 1 {
				t.Errorf("show %s has found %+v, ask has answered %+v, and release %+v", name, found, asked, released)
			}
		}
		if output, code := s.call("leases"); code != done || strings.Contains(output, "tab") {
			t.Errorf("afterwards are held:\n%s", output)
		}
	})
}

// TestManyOnce proves that once says where there are more keys than it lists, as text and as JSON.
func TestManyOnce(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, key := range []string{"done:a", "done:b", "done:c"} {
			tx, scope := s.begin()
			s.must(second(scope.Once(s.ctx, txlock.Named(key))))
			s.must(tx.Commit())
		}
		_, open := s.begin()
		s.must(second(open.Once(s.ctx, txlock.Named("open"))))
		var opened onceForm
		s.answer(done, &opened, "once", "open")
		if output, _ := s.call("once", "open"); len(opened.Once) != 1 || !opened.Once[0].Open || !opened.Once[0].Done.IsZero() || !strings.Contains(output, "open   -     -") {
			t.Errorf("a key that is open is %+v, and printed so:\n%s", opened.Once, output)
		}
		for most, more := range map[string]bool{"2": true, "3": false, "4": false} {
			var once onceForm
			s.answer(done, &once, "once", "done:", "--most", most)
			output, _ := s.call("once", "done:", "--most", most)
			if once.More != more || strings.Contains(output, "There are more") != more || len(once.Once) > 3 || len(once.Once) != strings.Count(output, " done ") {
				t.Errorf("once --most %s has answered %+v, and prints:\n%s", most, once, output)
			}
		}
	})
}

// TestFullDisk proves that a command whose output is lost doesn't end as if it were written.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"sql", "install"}, {"--help"}} {
		var said bytes.Buffer
		code := run(t.Context(), args, func(string) string { return "" }, strings.NewReader(""), full{}, &said)
		if code != trouble || !strings.Contains(said.String(), errFull.Error()) {
			t.Errorf("lockstep %v returns %d, and prints %s", args, code, &said)
		}
	}
}

var errFull = errors.New("no space left on device")

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestEncryptionOfMyCnf proves that a my.cnf that demands an encrypted connection has one or none,
// and that settings which aren't obeyed are refused.
func TestEncryptionOfMyCnf(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		c := s.db.AdminConfig()
		host, port, _ := strings.Cut(c.Addr, ":")
		login := "[client]\nhost=" + host + "\nport=" + port + "\nuser=" + c.User + "\npassword=" + c.Passwd + "\ndatabase=" + c.DBName + "\n"
		for setting, want := range map[string]struct {
			code int
			says string
		}{
			"ssl-cipher=AES": {usage, "ssl-cipher"}, "tls_version=TLSv1.3": {usage, "tls-version"}, "ssl-mode=STRICT": {usage, "STRICT"},
			"ssl-ca=/no/such/file": {usage, "/no/such/file"}, "ssl-cert=/no/such/file": {usage, "/no/such/file"},
			"ssl-mode=VERIFY_IDENTITY": {trouble, ""}, "ssl_mode=VERIFY_CA": {trouble, ""}, "ssl-verify-server-cert": {trouble, ""},
			"ssl-mode=DISABLED": {nothing, ""}, "skip-ssl": {nothing, ""}, "ssl-mode=PREFERRED": {nothing, ""}, "ssl=0": {nothing, ""},
		} {
			output, code := called(t, nil, "", "--defaults-file", file(t, t.TempDir(), "my.cnf", login+setting+"\n"), "locks")
			if code != want.code || !strings.Contains(output, want.says) {
				t.Errorf("with %s it returns %d, and prints %s", setting, code, output)
			}
		}
	})
}

// TestPurgeOfMany proves that purge goes on beyond --timeout while it removes rows, and says so,
// and that it gives up when it removes none.
func TestPurgeOfMany(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		removes []int // in each part; none is left behind the last one
		stuck   bool
		total   int
		lines   string
	}{
		{[]int{500, 500, 1000}, false, 2000, "500 rows of locks were removed so far.\n1000 rows of locks were removed so far.\n2000 rows of locks were removed so far.\n"},
		{[]int{500}, true, 500, "500 rows of locks were removed so far.\n"},
		{nil, false, 0, ""},
		{nil, true, 0, ""},
	} {
		var said bytes.Buffer
		a := &app{err: &said, timeout: 50 * time.Millisecond}
		total, err := a.inParts(t.Context(), "locks", func(ctx context.Context) (int, error) {
			if len(test.removes) == 0 && !test.stuck {
				return 0, nil
			}
			<-ctx.Done()
			if len(test.removes) == 0 {
				return 0, ctx.Err()
			}
			n := test.removes[0]
			test.removes = test.removes[1:]
			return n, ctx.Err()
		})
		if total != test.total || said.String() != test.lines || errors.Is(err, context.DeadlineExceeded) != test.stuck {
			t.Errorf("%d rows are removed, %v, and it says:\n%s\nwant %d and\n%s", total, err, &said, test.total, test.lines)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/txlock"
)

// called runs the command, and again while other tests, which look, too, keep MySQL's list of transactions old.
func called(t *testing.T, env map[string]string, stdin string, args ...string) (output string, code int) {
	t.Helper()
	var out bytes.Buffer
	testdb.Await(time.Minute, func() bool {
		out.Reset()
		code = run(t.Context(), args, func(name string) string { return env[name] }, strings.NewReader(stdin), &out, &out)
		return !strings.Contains(out.String(), "list of transactions is old")
	})
	return out.String(), code
}

// file writes a file into a directory.
func file(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

var check, wants = testdb.Must, testdb.Wants

// TestUsage proves that wrong calls are told what to do, and have their exit code.
func TestUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const secret = "s3cret-word"
	cnf := file(t, dir, "my.cnf", "[client]\nuser=app\npassword=\""+secret+"\"\nhost=127.0.0.1\nport=1\n[lockstep]\ndatabase=shop\n")
	home := t.TempDir()
	file(t, home, ".my.cnf", "[client]\nuser=app\npassword="+secret+"\nhost=127.0.0.1\nport=1\ndatabase=shop\n")
	dsn := file(t, dir, "dsn", "app:"+secret+"@tcp(127.0.0.1:1)/shop\n")
	closed := map[string]string{"LOCKSTEP_DSN": "app:" + secret + "@tcp(127.0.0.1:1)/shop"}
	for _, c := range []struct {
		name  string
		args  []string
		env   map[string]string
		stdin string
		code  int
		says  string
	}{
		{"no server", []string{"locks"}, nil, "", usage, "set LOCKSTEP_DSN="},
		{"unknown command", []string{"lokcs"}, nil, "", usage, "lokcs"},
		{"unknown flag", []string{"locks", "--nope"}, nil, "", usage, "see lockstep locks --help"},
		{"no key", []string{"show"}, closed, "", usage, "accepts 1 arg"},
		{"password in the list of processes", []string{"locks", "--dsn", "app:" + secret + "@tcp(127.0.0.1:1)/shop"}, nil, "", usage, "all users of this machine can see"},
		{"password by its letter", []string{"locks", "-p" + secret}, closed, "", usage, "unknown shorthand flag: 'p': see"},
		{"a name in place of a command", []string{"app:" + secret + "@tcp(127.0.0.1:1)/shop", "locks"}, nil, "", usage, "no command"},
		{"a name as an argument", []string{"locks", "app:" + secret + "@tcp(127.0.0.1:1)/shop"}, nil, "", usage, "unknown command"},
		{"a name of a file", []string{"locks", "--dsn-file", "app:" + secret + "@tcp(127.0.0.1:1)/shop"}, nil, "", usage, "read the data source name"},
		{"a my.cnf that is none", []string{"locks", "--defaults-file", file(t, dir, "broken.cnf", "[client\npassword="+secret+"\n["+secret)}, nil, "", usage, "broken.cnf is not a my.cnf"},
		{"a my.cnf that isn't there", []string{"locks", "--defaults-file", "/nope"}, nil, "", usage, "no such file"},
		{"a password by the environment", []string{"check", "--dsn", "app@tcp(127.0.0.1:1)/shop"}, map[string]string{"LOCKSTEP_PASSWORD": secret}, "", trouble, "the server can't be reached"},
		{"broken name", []string{"locks"}, map[string]string{"LOCKSTEP_DSN": "app:" + secret + "@tcp(127.0.0.1"}, "", usage, "LOCKSTEP_DSN is not a data source name"},
		{"a server that isn't there", []string{"locks"}, closed, "", trouble, "the server can't be reached: is it running"},
		{"by a file", []string{"locks", "--dsn-file", dsn}, nil, "", trouble, "refused"},
		{"by the standard input", []string{"locks", "--dsn-file", "-"}, nil, "app:" + secret + "@tcp(127.0.0.1:1)/shop", trouble, "refused"},
		{"by my.cnf", []string{"locks", "--defaults-file", cnf}, nil, "", trouble, "refused"},
		{"by my.cnf at home", []string{"locks"}, map[string]string{"HOME": home}, "", trouble, "refused"},
		{"no my.cnf at home", []string{"locks"}, map[string]string{"HOME": dir}, "", usage, "no server is given"},
		{"a group that isn't there", []string{"locks", "--defaults-file", cnf, "--group", "nope"}, nil, "", usage, "has no group [nope]"},
		{"a question", []string{"install"}, closed, "no\n", declined, "nothing was done"},
		{"a question below the name", []string{"install", "--dsn-file", "-"}, nil, "app:" + secret + "@tcp(127.0.0.1:1)/shop\nyes\n", trouble, "refused"},
		{"a question to nobody", []string{"install"}, closed, "", declined, "nothing was done"},
		{"too young", []string{"purge", "--older-than", "1ms", "--yes"}, closed, "", usage, "at least a second"},
		{"too many", []string{"bench", "--workers", "100"}, closed, "", usage, "1 to 64 workers"},
		{"too few", []string{"once", "--most", "0"}, closed, "", usage, "from 1 to 100000"},
		{"too often", []string{"top", "--every", "1ms"}, closed, "", usage, "at least 100ms"},
		{"show nothing", []string{"show", ""}, closed, "", usage, "1 to 255 bytes"},
		{"show what is empty", []string{"show", `""`}, closed, "", usage, "1 to 255 bytes"},
		{"show what is too long", []string{"show", strings.Repeat("k", 256)}, closed, "", usage, "1 to 255 bytes"},
		{"show what is no text", []string{"show", `"\xff"`}, closed, "", usage, "valid UTF-8"},
		{"show what is quoted wrongly", []string{"show", `"a\"`}, closed, "", usage, "not a key in quotes"},
		{"show what is lockstep's own", []string{"show", "lockstep:cleanup"}, closed, "", trouble, "refused"},
		{"ask nothing", []string{"ask", ""}, closed, "", usage, "the name is empty"},
		{"ask lockstep", []string{"ask", "lockstep:cleanup"}, closed, "", usage, "lockstep's own"},
		{"release nothing", []string{"release", "", "--yes"}, closed, "", usage, "the name is empty"},
		{"release what is too long", []string{"release", strings.Repeat("k", 256), "--yes"}, closed, "", usage, "256 bytes"},
		{"show no job", []string{"jobs", "show", ""}, closed, "", usage, "the name is empty"},
		{"pause no job", []string{"jobs", "pause", "", "--yes"}, closed, "", usage, "the name is empty"},
		{"a prefix quoted wrongly", []string{"once", `"a"b"`}, closed, "", usage, "not a key in quotes"},
		{"help", nil, nil, "", done, "Exit codes:"},
		{"version", []string{"version"}, nil, "", done, "lockstep "},
		{"completion", []string{"completion", "bash"}, nil, "", done, "__start_lockstep"},
		{"statements", []string{"sql", "install", "--mariadb=false"}, nil, "", done, "DELIMITER //\nCREATE PROCEDURE lockstep_begin_1"},
		{"grants", []string{"sql", "grants"}, nil, "", done, "GRANT PROCESS, CONNECTION ADMIN ON *.*"},
		{"locks by SQL", []string{"sql", "locks"}, nil, "", done, "READ UNCOMMITTED;\nSELECT"},
		{"statements of what", []string{"sql", "nope"}, nil, "", usage, "invalid argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			output, code := called(t, c.env, c.stdin, c.args...)
			testdb.ErrorIf(t, code != c.code || !strings.Contains(output, c.says), "exit code %d, want %d, and it says %q:\n%s", code, c.code, c.says, output)
			testdb.ErrorIf(t, strings.Contains(output, secret), "it prints the password:\n%s", output)
		})
	}
}

// TestNodes proves that check compares the clocks of other servers, and that one that can't
// be reached is an error among the other findings.
func TestNodes(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		op := s.operator()
		op.change(grant, need{"SELECT", "locks"})
		args := []string{"check"}
		for _, other := range testdb.Engines() {
			node := s.db
			if other != s.db.Engine() {
				node = testdb.Fresh(t, other)
				op.at(node)
			}
			args = append(args, "--node", node.Config().Addr)
		}
		var found findingsForm
		s.answer(trouble, &found, append(args, "--node", "127.0.0.1:1")...)
		findings := make(map[string]ops.Finding)
		for _, f := range found.Findings {
			findings[f.Name] = f
		}
		for i := range testdb.Engines() {
			f := findings[fmt.Sprintf("clock of node %d", i+1)]
			testdb.ErrorIf(t, f.State != ops.OK || !strings.Contains(f.Text, "s ahead of the server, give or take"), "node %d: %+v", i+1, f)
		}
		away := findings[fmt.Sprintf("clock of node %d", len(testdb.Engines())+1)]
		testdb.ErrorIf(t, away.State != ops.Error || !strings.Contains(away.Text, "refused") || !strings.Contains(away.Fix, "see that the node runs"),
			"the node that is away: %+v", away)
	})
}

// TestServerErrors proves that what keeps the command from its server is said in a sentence, which has no password.
func TestServerErrors(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		op := s.operator()
		op.change(grant, need{"SELECT", "once"})
		for _, c := range []struct {
			name   string
			change func(*mysql.Config)
			args   []string
			says   string
		}{
			{"another password", func(c *mysql.Config) { c.Passwd += "-no" }, []string{"once"}, "the server doesn't let this user in: is the password right"},
			{"no password", func(c *mysql.Config) { c.Passwd = "" }, []string{"once"}, "the server doesn't let this user in"},
			{"another database", func(c *mysql.Config) { c.DBName += "_no" }, []string{"once"}, "the database can't be used: is its name right"},
			{"another port", func(c *mysql.Config) { c.Addr = "127.0.0.1:1" }, []string{"once"}, "the server can't be reached: is it running"},
			{"no time", func(*mysql.Config) {}, []string{"once", "--timeout", "1ns"}, "there was no answer within 1ns: --timeout"},
		} {
			s.dsn = s.db.DSN(func(config *mysql.Config) {
				config.User, config.Passwd = op.name, op.password
				c.change(config)
			})
			output, code := s.call(c.args...)
			testdb.ErrorIf(t, code != trouble || !strings.Contains(output, c.says) || strings.Contains(output, "Error 1") || strings.Contains(output, op.password),
				"%s: lockstep %v returns %d, and prints:\n%s", c.name, c.args, code, output)
		}
	})
}

// TestNothingFound proves that the exit code is 1 where nothing is found, with --json too, and that
// who can't see the locks isn't told that there are none.
func TestNothingFound(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, args := range [][]string{{"locks"}, {"leases"}, {"waits"}, {"show", "order:42"}, {"jobs"}, {"once"}, {"leaders"}} {
			var output string
			var code int
			// Another test's wait for a table, which MariaDB doesn't name, may be one for ours.
			testdb.Await(time.Minute, func() bool { output, code = s.call(append(args, "--json")...); return code == nothing })
			testdb.ErrorIf(t, code != nothing || !strings.Contains(output, "{"), "lockstep %v --json returns %d, and prints:\n%s", args, code, output)
		}
		s.dsn = s.db.DSN() // without PROCESS
		for _, args := range [][]string{{"locks"}, {"waits"}, {"show", "order:42"}, {"release", "order:42"}} {
			output, code := s.call(args...)
			if code != declined || !strings.Contains(output, "GRANT PROCESS") || !strings.Contains(output, "it can't be seen: ") && !strings.Contains(output, "visible to this user") {
				t.Errorf("lockstep %v without PROCESS returns %d, and prints:\n%s", args, code, output)
			}
		}
		for _, args := range [][]string{{"leases"}, {"leaders"}, {"ask", "report"}} { // which don't need it
			output, code := s.call(args...)
			testdb.ErrorIf(t, code != nothing || strings.Contains(output, "GRANT"), "lockstep %v without PROCESS returns %d, and prints:\n%s", args, code, output)
		}
	})
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
			return testdb.Err(other.ExecContext(ctx, "UPDATE lockstep_leases SET version = version WHERE name = 'report' AND slot = 0"))
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
			testdb.ErrorIf(t, !testdb.Await(time.Minute, sees), "with all privileges the lease has %d waiters", leases.Leases[0].Waiters)
			told := strings.Contains(text, "Not seen: ") && slices.ContainsFunc(leases.Gaps, func(g ops.Gap) bool { return g.Denied && g.Hides })
			testdb.ErrorIf(t, told != (i < len(missing)) || told != strings.Contains(text, "GRANT"),
				"with %v leases says %v, and prints:\n%s", missing[:i], leases.Gaps, text)
			text, _ = s.call("leases", "--json")
			testdb.ErrorIf(t, strings.Contains(text, `"waiters": null`) != told, "with %v leases prints:\n%s", missing[:i], text)
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
		s.locks(orders.Key(42))
		s.listed()
		shows := func(code int, key string, locks int, denied bool) {
			t.Helper()
			var form shown
			s.answer(code, &form, "show", key)
			testdb.ErrorIf(t, len(form.Locks) != locks, "the locks of %s are %#v", key, form.Locks)
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
		testdb.ErrorIf(t, len(measured.Measured) != 4 || measured.Measured[1].PerSecond <= 0, "bench has measured %v", measured)
	})
}

// TestDoneInPart proves that a command that is refused after it has changed something says what it has changed.
func TestDoneInPart(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		op := s.operator()
		for _, table := range []string{"locks", "leases", "once", "jobs"} {
			op.change(grant, need{"SELECT", table})
		}
		purge := []string{"purge", "--older-than", "1h", "--yes"}
		var removed removedForm
		s.unused()
		output, code := s.call(append(purge, "--json")...)
		testdb.ErrorIf(t, code != declined || strings.Contains(output, "{"), "purge that may delete nothing returns %d, and prints:\n%s", code, output)
		op.change(grant, need{"DELETE", "locks"})
		op.change(grant, need{"DELETE", "leases"})
		s.answer(declined, &removed, purge...)
		testdb.ErrorIf(t, len(removed.Removed) != 2 || removed.Removed["locks"] != 1 || removed.Removed["leases"] != 1,
			"purge that is refused has answered %v", removed)
		s.unused()
		told, _ := s.call(purge...)
		testdb.Says(t, "purge", told, "Removed 1 rows of locks, 1 of leases, 0 of Once, 0 of jobs.", "DELETE ON ")
		op.change(grant, need{"DELETE", "once"})
		op.change(grant, need{"DELETE", "jobs"})
		s.answer(done, &removed, purge...)
		s.answer(nothing, &removed, purge...)

		fresh := stageOn(t, testdb.Fresh(t, s.db.Engine()))
		op = fresh.operator()
		op.may(on(all, "CREATE", "INSERT", "SELECT"))
		if s.db.Engine() == testdb.MySQL {
			op.change(grant, need{"CREATE ROUTINE", all})
		}
		fresh.nothing()
		var installed installedForm
		fresh.answer(declined, &installed, "install", "--views", "--yes", "--json")
		testdb.ErrorIf(t, len(installed.Tables) != 5 || len(installed.Views) > 0, "install that is refused has answered %+v", installed)
		output, code = fresh.call("install", "--views", "--yes")
		testdb.Says(t, "install", output, "There are 5 tables, 0 views and ", "GRANT CREATE VIEW")
		testdb.ErrorIf(t, code != declined || strings.Contains(output, "Installed."), "install that is refused returns %d, and prints:\n%s", code, output)
		fresh.dsn = fresh.db.AdminDSN()
		fresh.answer(done, &installed, "install", "--views", "--yes")
		testdb.ErrorIf(t, len(installed.Tables) != 5 || len(installed.Views) != 2 || (len(installed.Procedures) > 0) != (s.db.Engine() == testdb.MySQL),
			"install has answered %+v", installed)
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
		testdb.ErrorIf(t, looks[shown], "two keys are printed as %s", shown)
		looks[shown] = true
		for _, read := range []func(arg string) (string, error){keyOf, programKeyOf} {
			got, err := read(shown)
			testdb.ErrorIf(t, got != key || err != nil, "%s is read as %q, %v", shown, got, err)
		}
	}
	onServers(t, func(t *testing.T, s *stage) {
		m := s.manager()
		for _, key := range alike[:3] {
			s.must(testdb.Err(m.Acquire(s.ctx, txlock.Named(key))))
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
			testdb.ErrorIf(t, found.Key != key || len(found.Leases) != 1 || asked.Key != key || len(asked.Leases) != 1 || released.Key != key || len(released.Leases) != 1,
				"show %s has found %+v, ask has answered %+v, and release %+v", name, found, asked, released)
		}
		output, code := s.call("leases")
		testdb.ErrorIf(t, code != done || strings.Contains(output, "tab"), "afterwards are held:\n%s", output)
	})
}

// TestManyOnce proves that once says where there are more keys than it lists, as text and as JSON.
func TestManyOnce(t *testing.T) {
	onServers(t, func(t *testing.T, s *stage) {
		for _, key := range []string{"done:a", "done:b", "done:c"} {
			tx, scope := s.begin()
			s.must(testdb.Err(scope.Once(s.ctx, txlock.Named(key))))
			s.must(tx.Commit())
		}
		_, open := s.begin()
		s.must(testdb.Err(open.Once(s.ctx, txlock.Named("open"))))
		var opened onceForm
		s.answer(done, &opened, "once", "open")
		if output, _ := s.call("once", "open"); len(opened.Once) != 1 || !opened.Once[0].Open || !opened.Once[0].Done.IsZero() || !strings.Contains(output, "open   -     -") {
			t.Errorf("a key that is open is %+v, and printed so:\n%s", opened.Once, output)
		}
		for most, more := range map[string]bool{"2": true, "3": false, "4": false} {
			var once onceForm
			s.answer(done, &once, "once", "done:", "--most", most)
			output, _ := s.call("once", "done:", "--most", most)
			testdb.ErrorIf(t, once.More != more || strings.Contains(output, "There are more") != more || len(once.Once) > 3 || len(once.Once) != strings.Count(output, " done "),
				"once --most %s has answered %+v, and prints:\n%s", most, once, output)
		}
	})
}

// TestFullDisk proves that a command whose output is lost doesn't end as if it were written.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"sql", "install"}, {"--help"}} {
		var said bytes.Buffer
		code := run(t.Context(), args, func(string) string { return "" }, strings.NewReader(""), full{}, &said)
		testdb.ErrorIf(t, code != trouble || !strings.Contains(said.String(), errFull.Error()), "lockstep %v returns %d, and prints %s", args, code, &said)
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
			testdb.ErrorIf(t, code != want.code || !strings.Contains(output, want.says), "with %s it returns %d, and prints %s", setting, code, output)
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
		testdb.ErrorIf(t, total != test.total || said.String() != test.lines || errors.Is(err, context.DeadlineExceeded) != test.stuck,
			"%d rows are removed, %v, and it says:\n%s\nwant %d and\n%s", total, err, &said, test.total, test.lines)
	}
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dca00107/lockstep/internal/ops"
	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

// called runs the command, and again while other tests, which look, too, keep MySQL's list of
// transactions old.
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

var check, wants = leasetest.Must, leasetest.Wants

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
			if code != c.code || !strings.Contains(output, c.says) {
				t.Errorf("exit code %d, want %d, and it says %q:\n%s", code, c.code, c.says, output)
			}
			if strings.Contains(output, secret) {
				t.Errorf("it prints the password:\n%s", output)
			}
		})
	}
}

// TestPrintable proves that a key can't move the cursor of the operator's terminal.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"order:42":        "order:42",
		"Größe 7":         "Größe 7",
		"a\x1b[2Jb":       `a\x1b[2Jb`,
		"two\nlines":      `two\nlines`,
		"\xff\xfe":        `\xff\xfe`,
		"right\u202eleft": `right\u202eleft`,
		"":                "-",
	} {
		leasetest.Equal(t, fmt.Sprintf("how %q is printed", text), cell(text), want)
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
			if f := findings[fmt.Sprintf("clock of node %d", i+1)]; f.State != ops.OK || !strings.Contains(f.Text, "s ahead of the server, give or take") {
				t.Errorf("node %d: %+v", i+1, f)
			}
		}
		away := findings[fmt.Sprintf("clock of node %d", len(testdb.Engines())+1)]
		if away.State != ops.Error || !strings.Contains(away.Text, "refused") || !strings.Contains(away.Fix, "see that the node runs") {
			t.Errorf("the node that is away: %+v", away)
		}
	})
}

// TestServerErrors proves that what keeps the command from its server is said in a sentence,
// which has no password.
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
			if code != trouble || !strings.Contains(output, c.says) || strings.Contains(output, "Error 1") || strings.Contains(output, op.password) {
				t.Errorf("%s: lockstep %v returns %d, and prints:\n%s", c.name, c.args, code, output)
			}
		}
	})
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestRunGivesServers(t *testing.T) {
	testdb.NeedsServer(t)
	for _, engine := range testdb.Engines() {
		t.Setenv(engine.DSNVariable(), "")
		out := filepath.Join(t.TempDir(), "out")
		code, err := run(string(engine), false, []string{
			"sh", "-c", `echo "$LOCKSTEP_ENGINES $` + engine.DSNVariable() + `" >"$0"; exit 7`, out,
		})
		if code != 7 || err != nil {
			t.Errorf("run = %d, %v, want the command's 7", code, err)
		}
		said, err := os.ReadFile(out)
		if err != nil || !regexp.MustCompile(`^`+string(engine)+` \w+:\w+@tcp\(127\.0\.0\.1:\d+\)/\n$`).Match(said) {
			t.Errorf("the command saw %q, %v", said, err)
		}
	}
}

func TestRunKeepsDSN(t *testing.T) {
	t.Setenv("LOCKSTEP_MYSQL_DSN", "given@tcp(192.0.2.1)/")
	code, err := run("mysql", false, []string{"sh", "-c", `test "$LOCKSTEP_MYSQL_DSN" = "given@tcp(192.0.2.1)/"`})
	if code != 0 || err != nil {
		t.Errorf("run = %d, %v: the DSN that was given is not kept", code, err)
	}
}

func TestRunFails(t *testing.T) {
	t.Setenv("LOCKSTEP_MYSQL_DSN", "given@tcp(192.0.2.1)/")
	for _, test := range []struct {
		list, script string
		code         int
		failed       bool
	}{
		{"oracle", "true", 1, true},
		{"none", "true", 1, true}, // so make test ENGINES=none fails
		{"mysql", "kill -9 $$", 137, false},
		{"mysql", "exit 3", 3, false},
	} {
		if code, err := run(test.list, false, []string{"sh", "-c", test.script}); code != test.code || (err != nil) != test.failed {
			t.Errorf("run(%q, %q) = %d, %v, want %d", test.list, test.script, code, err, test.code)
		}
	}
	if _, err := run("mysql", false, []string{"/nonexistent"}); err == nil {
		t.Error("a command that does not exist runs")
	}
}

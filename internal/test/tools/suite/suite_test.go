package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = testdb.Must

func TestMain(m *testing.M) { testdb.Main(m) }

// commandsOf returns the commands of parts, by their names.
func commandsOf(t *testing.T, what string, only ...string) map[string]string {
	t.Helper()
	parts := testdb.Got(chosen(what, time.Minute, only))(t)
	commands := make(map[string]string)
	for _, p := range parts {
		for _, c := range p.commands {
			commands[p.name] += c.String() + "\n"
		}
	}
	return commands
}

// TestParts proves that the tags of files say what runs where: what is behind !race runs without the race detector, alone of its package,
// what is behind another tag in its own part, and all packages of the library in one part.
func TestParts(t *testing.T) {
	t.Chdir("../../../..")
	makefile := testdb.Got(os.ReadFile("Makefile"))(t)
	for _, variable := range []string{"PARTS", "COMMANDS"} {
		_, rest, _ := strings.Cut(string(makefile), "\n"+variable)
		line, _, _ := strings.Cut(rest, "\n")
		t.Setenv(variable, strings.TrimLeft(line, " ="))
	}
	t.Setenv("RACED", "examples")
	t.Setenv("MODULES", ". lockgorm")
	tests := commandsOf(t, "test")
	for part, texts := range map[string][]string{
		"gorm":     {" -race .\n", "-run=^(", "|TestRandomConditions)$ github.com/dca00107/lockstep/lockgorm\n"},
		"others":   {"/lockstep/txlock/job ", "-parallel=8 -timeout=1m0s ./internal/test/tools/...\n"},
		"locks":    {" -race ./txlock ./internal/test/locksuite\n", "-run=^(TestLockAllOfTenThousand)$ github.com/dca00107/lockstep/txlock\n"},
		"stores":   {"-tags=onecpu -race -cpu=1 -run=^(TestStores"},
		"beside":   {"cd examples && "},
		"commands": {"cd cmd/lockgen", "TestRefused|"},
	} {
		testdb.Says(t, part, tests[part], texts...)
	}
	for part, commands := range tests {
		for _, text := range []string{"TestGolden", "TestSuite|", "TestRouter", "TestNoUpdateIsLost", "/internal/test/tools/docs"} { // the last has one goroutine
			testdb.ErrorIf(t, strings.Contains(commands, text), "%s names %s", part, text)
		}
	}
	testdb.Says(t, "the checks of the source", commandsOf(t, "verify", "source")["source"], "TestGolden")
	testdb.Says(t, "the tests of proxies", commandsOf(t, "test", "proxies")["proxies"], "-run=^(TestRouter)$")
	_, err := chosen("test", time.Minute, []string{"leases", "lease"})
	testdb.Fails(t, "a part that isn't there", err)
}

// TestAll proves that what fails is named, and what comes after it runs.
func TestAll(t *testing.T) {
	t.Parallel()
	sh := func(line string) command {
		return command{dir: t.TempDir(), env: []string{"CODE=3"}, args: []string{"sh", "-c", line}}
	}
	written := t.TempDir() + "/file"
	err := all([]part{
		{name: "good", commands: []command{sh("true")}},
		{name: "bad", commands: []command{sh("exit $CODE"), sh("echo > " + written)}},
	}, 1, true)
	testdb.Fails(t, "all", err, "bad: cd ", "exit status 3")
	testdb.ErrorIf(t, strings.Contains(err.Error(), "good"), "the error is %v", err)
	_, err = os.Stat(written)
	must(t, err)
}

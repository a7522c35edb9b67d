package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dca00107/lockstep/internal/test/leasetest"
	"github.com/dca00107/lockstep/internal/test/testdb"
)

var must = leasetest.Must

func TestMain(m *testing.M) { testdb.Main(m) }

// commandsOf returns the commands of parts, by their names.
func commandsOf(t *testing.T, what string, only ...string) map[string]string {
	t.Helper()
	parts, err := chosen(what, time.Minute, only)
	must(t, err)
	commands := make(map[string]string)
	for _, p := range parts {
		for _, c := range p.commands {
			commands[p.name] += c.String() + "\n"
		}
	}
	return commands
}

// TestParts proves that the tags of files say what runs where: what is behind !race runs
// without the race detector and nothing else of its package does, what is behind another
// tag in its own part, and all packages of the library in one part.
func TestParts(t *testing.T) {
	t.Chdir("../../../..")
	makefile, err := os.ReadFile("Makefile")
	must(t, err)
	for _, variable := range []string{"PARTS", "COMMANDS"} {
		_, rest, _ := strings.Cut(string(makefile), "\n"+variable)
		line, _, _ := strings.Cut(rest, "\n")
		t.Setenv(variable, strings.TrimLeft(line, " ="))
	}
	t.Setenv("RACED", "examples")
	t.Setenv("MODULES", ". lockgorm")
	tests := commandsOf(t, "test")
	for part, texts := range map[string][]string{
		"gorm":     {" -race .\n", "-run=^(", "|TestSuitePreparing)$ github.com/dca00107/lockstep/lockgorm\n"},
		"others":   {"/lockstep/txlock/job ", "-parallel=8 -timeout=1m0s ./internal/test/tools/...\n"},
		"locks":    {" -race ./txlock ./internal/test/locksuite\n", "-run=^(TestLockAllOfTenThousand)$ github.com/dca00107/lockstep/txlock\n"},
		"stores":   {"-tags=onecpu -race -cpu=1 -run=^(TestStores"},
		"beside":   {"cd examples && "},
		"commands": {"cd cmd/lockgen", "TestRefused|"},
	} {
		for _, text := range texts {
			if !strings.Contains(tests[part], text) {
				t.Errorf("%s has no %q:\n%s", part, text, tests[part])
			}
		}
	}
	if strings.Contains(tests["others"], "/internal/test/tools/docs") {
		t.Errorf("the race detector watches one goroutine:\n%s", tests["others"])
	}
	for _, text := range []string{"TestGolden", "TestSuite|", "TestRouter", "TestNoUpdateIsLost"} {
		for part, commands := range tests {
			if strings.Contains(commands, text) {
				t.Errorf("%s names %s", part, text)
			}
		}
	}
	if commands := commandsOf(t, "verify", "source")["source"]; !strings.Contains(commands, "TestGolden") {
		t.Errorf("the checks of the source have no TestGolden:\n%s", commands)
	}
	if commands := commandsOf(t, "test", "proxies")["proxies"]; !strings.Contains(commands, "-run=^(TestRouter)$") {
		t.Errorf("the tests of proxies have no TestRouter:\n%s", commands)
	}
	if _, err := chosen("test", time.Minute, []string{"leases", "lease"}); err == nil {
		t.Error("a part that isn't there was chosen")
	}
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
	if err == nil || !strings.Contains(err.Error(), "bad: cd ") || !strings.Contains(err.Error(), "exit status 3") || strings.Contains(err.Error(), "good") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(written); err != nil {
		t.Error(err)
	}
}

package testdb

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOneServer is what TestServersAreNeeded runs in other processes.
func TestOneServer(t *testing.T) {
	for _, engine := range Engines() {
		t.Run(string(engine), func(t *testing.T) { Open(t, engine) })
	}
}

// TestServersAreNeeded proves that a test without its server fails, and is skipped where
// LOCKSTEP_ENGINES is none and nowhere else.
func TestServersAreNeeded(t *testing.T) {
	t.Parallel()
	const skipped = "LOCKSTEP_ENGINES is none, and this needs a server"
	nowhere := []string{"LOCKSTEP_MARIADB_DSN=nobody@tcp(127.0.0.1:1)/", "LOCKSTEP_MYSQL_DSN=nobody@tcp(127.0.0.1:1)/"}
	for engines, want := range map[string]struct {
		passes bool
		says   string
	}{
		"none":         {true, skipped},
		"":             {false, "connection refused"},
		"mysql":        {false, "connection refused"},
		"None":         {false, "unknown engine"},
		"none,mariadb": {false, "unknown engine"},
		"nothing":      {false, "unknown engine"},
	} {
		t.Run(engines, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestOneServer$")
			cmd.Env = append(append(os.Environ(), nowhere...), "LOCKSTEP_ENGINES="+engines)
			out, err := cmd.CombinedOutput()
			if (err == nil) != want.passes || !strings.Contains(string(out), want.says) {
				t.Errorf("it ends with %v, and should say %q:\n%s", err, want.says, out)
			}
			if n := strings.Count(string(out), skipped); n > 1 || n == 1 != want.passes {
				t.Errorf("%d tests are skipped:\n%s", n, out)
			}
		})
	}
}

// TestNoneStartsNothing proves that with none a test can't start a server by itself.
func TestNoneStartsNothing(t *testing.T) {
	t.Setenv("LOCKSTEP_ENGINES", "none")
	for what, start := range map[string]func() error{
		"Start":       func() error { _, err := Start(t.Context(), MySQL); return err },
		"StartGalera": func() error { _, err := StartGalera(t.Context(), 1); return err },
		"StartGroup":  func() error { _, err := StartGroup(t.Context(), 1); return err },
		"StartTiDB":   func() error { _, err := StartTiDB(t.Context(), 1); return err },
	} {
		if err := start(); err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, use := range map[string]func(testing.TB){
		"Open":      func(tb testing.TB) { Open(tb, MySQL) },
		"Fresh":     func(tb testing.TB) { Fresh(tb, MySQL) },
		"Shared":    func(tb testing.TB) { Shared(tb, MySQL) },
		"Dedicated": func(tb testing.TB) { Dedicated(tb, MySQL) },
	} {
		var sub *testing.T
		t.Run(what, func(t *testing.T) { sub = t; use(t) })
		if !sub.Skipped() {
			t.Errorf("%s does not skip", what)
		}
	}
}

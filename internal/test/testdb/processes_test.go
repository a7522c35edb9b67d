package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// The environment of a process that makes databases, and dies: how.
const dieVariable = "LOCKSTEP_TEST_DIE"

// init makes this test binary that process, but for the copy that sweeps after it.
func init() {
	how := os.Getenv(dieVariable)
	if how == "" || os.Getenv(sweepVariable) != "" {
		return
	}
	sweeping.mayRun = true
	if err := makeAndDie(how); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func makeAndDie(how string) error {
	for _, engine := range Engines() {
		shared, err := process.open(engine, "")
		if err != nil {
			return err
		}
		fresh, err := newDB(context.Background(), shared.server)
		if err != nil {
			return err
		}
		AtClose(fresh.drop)
		for _, db := range []*DB{shared, fresh} {
			fmt.Println("made", engine, db.name, db.user)
		}
		pool, err := open(shared.Config())
		if err != nil {
			return err
		}
		// A session that has the tables, and would keep them from being dropped.
		tx, err := pool.Begin()
		if err == nil {
			_, err = tx.Exec("SELECT COUNT(*) FROM lockstep_locks")
		}
		if err == nil && how == "end" {
			err = tx.Rollback()
		}
		if err != nil {
			return err
		}
	}
	switch how {
	case "panic":
		panic("on purpose")
	case "kill":
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		return self.Kill()
	}
	return errors.Join(process.close(), sweeping.end())
}

// TestDeadProcessLeavesNothing lets processes die that have made databases on servers
// that somebody else runs. They and their users must be gone then.
func TestDeadProcessLeavesNothing(t *testing.T) {
	t.Parallel()
	env := os.Environ()
	for _, engine := range Engines() {
		env = append(env, engine.DSNVariable()+"="+Shared(t, engine).Config().FormatDSN())
	}
	for _, how := range []string{"panic", "kill", "end"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(slices.Clip(env), dieVariable+"="+how)
			cmd.WaitDelay = time.Minute // the sweeper has the output, and closes it last
			out, err := cmd.CombinedOutput()
			if (err == nil) != (how == "end") {
				t.Fatalf("it has ended with %v\n%s", err, out)
			}
			made := 0
			for line := range strings.Lines(string(out)) {
				var engine Engine
				var name, user string
				if n, _ := fmt.Sscanf(line, "made %s %s %s", &engine, &name, &user); n != 3 {
					continue
				}
				made++
				var left int
				check(t, Pool(t, Shared(t, engine).Config()).QueryRowContext(t.Context(), "SELECT (SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?) + "+
					"(SELECT COUNT(*) FROM mysql.user WHERE user = ?)", name, user).Scan(&left))
				ErrorIf(t, left > 0, "the database %s or its user is left", name)
			}
			ErrorIf(t, made != 2*len(Engines()), "%d databases were made: %s", made, out)
		})
	}
}

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
			n := strings.Count(string(out), skipped)
			ErrorIf(t, n > 1 || n == 1 != want.passes, "%d tests are skipped:\n%s", n, out)
		})
	}
}

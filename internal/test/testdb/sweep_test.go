package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
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
		connector, err := mysql.NewConnector(shared.Config())
		if err != nil {
			return err
		}
		// A session that has the tables, and would keep them from being dropped.
		tx, err := sql.OpenDB(connector).Begin()
		if err == nil {
			_, err = tx.Exec("SELECT COUNT(*) FROM lockstep_locks")
		}
		if err != nil {
			return err
		}
		if how == "end" {
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
	var env []string
	for _, engine := range Engines() {
		env = append(env, engine.DSNVariable()+"="+Shared(t, engine).Config().FormatDSN())
	}
	for _, how := range []string{"panic", "kill", "end"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(append(os.Environ(), env...), dieVariable+"="+how)
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
				admin := open(t, Shared(t, engine).Config())
				if left := query(t, admin, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '"+name+"'"); left != "0" {
					t.Errorf("%s: the database %s is there", engine, name)
				}
				if left := query(t, admin, "SELECT COUNT(*) FROM mysql.user WHERE user = '"+user+"'"); left != "0" {
					t.Errorf("%s: the user %s is there", engine, user)
				}
			}
			if made != 2*len(Engines()) {
				t.Errorf("%d databases were made: %s", made, out)
			}
		})
	}
}

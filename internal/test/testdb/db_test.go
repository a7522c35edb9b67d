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

	"github.com/go-sql-driver/mysql"
)

func TestMain(m *testing.M) { Main(m) }

func TestAppUserHasFewRights(t *testing.T) {
	OnServers(t, func(t *testing.T, engine Engine) {
		db := Open(t, engine)
		table := db.CreateTable(t, "rights", "id INT PRIMARY KEY, v INT NOT NULL")
		app := db.Connect(t)
		check(t, execAll(t.Context(), app, []string{
			"INSERT INTO " + table + " VALUES (1, 1), (2, 2)", "UPDATE " + table + " SET v = 3 WHERE id = 1", "DELETE FROM " + table + " WHERE id = 2",
		}))
		for _, refused := range []string{
			"CREATE TABLE more (id INT PRIMARY KEY)", "CREATE TEMPORARY TABLE more (id INT PRIMARY KEY)", "CREATE DATABASE more",
			"ALTER TABLE " + table + " ADD COLUMN w INT", "DROP TABLE " + table, "TRUNCATE TABLE lockstep_locks",
			"LOCK TABLES " + table + " WRITE", "SELECT COUNT(*) FROM mysql.user", "SET GLOBAL innodb_lock_wait_timeout = 1",
		} {
			_, err := app.ExecContext(t.Context(), refused)
			var server *mysql.MySQLError // of a database, a command on a table, a privilege
			if !errors.As(err, &server) || !slices.Contains([]uint16{1044, 1142, 1227}, server.Number) {
				t.Errorf("%s: %v, want it refused for want of rights", refused, err)
			}
		}
	})
}

// TestWaits proves that a session that waits for a row is told from one that holds it, from one that
// reads, and from one that does nothing, and that Kill ends a holder.
func TestWaits(t *testing.T) {
	OnServers(t, func(t *testing.T, engine Engine) {
		db := Shared(t, engine).Open(t) // whose sessions are this test's alone
		table := db.CreateTable(t, "waits", "id INT PRIMARY KEY")
		db.Exec(t, "INSERT INTO "+table+" VALUES (1)")
		pool := db.Connect(t, func(cfg *mysql.Config) { cfg.Logger = &mysql.NopLogger{} })
		var ids [3]int64
		var locks [3]func(how string) error
		for i := range ids { // the holder, the waiter, a reader
			tx, err := pool.BeginTx(context.WithoutCancel(t.Context()), nil)
			check(t, err)
			defer func() { _ = tx.Rollback() }()
			ids[i] = ConnID(t, tx)
			locks[i] = func(how string) error {
				return tx.QueryRowContext(context.Background(), "SELECT id FROM "+table+" WHERE id = 1"+how).Scan(new(int))
			}
		}
		sees := func(what string, wantWaiting, wantIdle []int64) {
			t.Helper()
			db.wait(t, what, func(context.Context) (bool, error) { // the server may be about to end a statement
				waiting, idle := db.RowLocks(t)
				return slices.Equal(waiting, wantWaiting) && slices.Equal(idle, wantIdle), nil
			})
			for i, id := range ids {
				if waits, err := db.WaitsForLock(t.Context(), id); err != nil || waits != slices.Contains(wantWaiting, id) {
					t.Errorf("%s: session %d waits: %t, %v", what, i, waits, err)
				}
			}
		}
		check(t, locks[0](" FOR UPDATE"))
		check(t, locks[2](""))
		sees(fmt.Sprintf("connection %d alone has a row locked", ids[0]), nil, ids[:1])
		locked := make(chan error, 1)
		go func() { locked <- locks[1](" FOR UPDATE") }()
		db.WaitForLockWait(t, ids[1])
		sees(fmt.Sprintf("connection %d waits for %d", ids[1], ids[0]), ids[1:2], ids[:1])
		if len(locked) > 0 {
			t.Fatalf("the waiter did not wait: %v", <-locked)
		}
		db.Kill(t, ids[0])
		check(t, <-locked)
		db.WaitGone(t, ids[0])
		ErrorIf(t, locks[0]("") == nil, "the killed connection answers")
	})
}

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

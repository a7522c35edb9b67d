package testdb

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

func TestMain(m *testing.M) { Main(m) }

// eachEngine runs a test on every engine.
func eachEngine(t *testing.T, test func(t *testing.T, engine Engine)) {
	t.Helper()
	OnServers(t, func(t *testing.T, engine Engine) {
		NeedsServer(t)
		test(t, engine)
	})
}

func TestParseEngines(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]int{"": 2, "mariadb": 1, "MySQL , mariadb": 2, "tidb": 1} {
		if engines, err := ParseEngines(list); err != nil || len(engines) != want {
			t.Errorf("ParseEngines(%q) = %v, %v", list, engines, err)
		}
	}
	for list, unknown := range map[string]string{"mysql,oracle": "oracle", "none": "none", "mysql,none": "none"} {
		if _, err := ParseEngines(list); err == nil || !strings.Contains(err.Error(), `"`+unknown+`"`) {
			t.Errorf("ParseEngines(%q) = %v, want %q unknown", list, err, unknown)
		}
	}
}

// TestStart takes one server through its life: it has its options, encrypts, has a socket, stops and
// goes on by signals, keeps rows over Kill and Restart, and is gone after Stop.
func TestStart(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		server, err := Start(t.Context(), engine, Args("--innodb-rollback-on-timeout=ON"), Durable())
		check(t, err)
		t.Cleanup(func() { // after that of the database
			child := server.inst.child
			check(t, server.Stop())
			if child.Running() || server.Running() {
				t.Error("the server runs after Stop")
			}
			if _, err := os.Stat(server.inst.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the server's directory is there after Stop: %v", err)
			}
		})
		db := server.OpenLeases(t)
		pool := Pool(t, server.Config())
		for variable, want := range map[string]string{
			"innodb_rollback_on_timeout":     "1",
			"innodb_flush_log_at_trx_commit": "1",
			"log_bin":                        "0",
			"max_connections":                "1000",
			"local_infile":                   "1",
		} {
			has(t, pool, "SELECT @@"+variable, want)
		}
		version := query(t, pool, "SELECT VERSION()")
		if strings.Contains(version, "MariaDB") != (engine == MariaDB) {
			t.Errorf("a %s server of version %s", engine, version)
		}
		encrypted := db.Connect(t, func(cfg *mysql.Config) { cfg.TLSConfig = "skip-verify" })
		var cipher string
		check(t, encrypted.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(new(string), &cipher))
		if cipher == "" {
			t.Error("a connection with tls=skip-verify is not encrypted")
		}
		if server.Socket() == "" {
			t.Log("no socket: the server runs in Docker")
		} else {
			local := db.Connect(t, func(cfg *mysql.Config) { cfg.Net, cfg.Addr = "unix", server.Socket() })
			has(t, local, "SELECT SUBSTRING_INDEX(USER(), '@', -1)", "localhost")
		}
		signals(t, server, pool)

		table := db.CreateTable(t, "kept", "id INT PRIMARY KEY")
		db.Exec(t, "INSERT INTO "+table+" VALUES (42)")
		check(t, server.Kill())
		if server.Running() {
			t.Error("the server runs after Kill")
		}
		if err := server.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("a signal to a server that is gone: %v", err)
		}
		if err := pool.PingContext(t.Context()); err == nil {
			t.Error("the server answers after Kill")
		}
		check(t, server.Restart(t.Context()))
		has(t, db.Connect(t), "SELECT id FROM "+table, "42")
	})
}

// signals stops a server, which doesn't answer until it goes on.
func signals(t *testing.T, server *Server, pool *sql.DB) {
	t.Helper()
	for range 20 { // the first answers after a signal come now and then
		check(t, pool.PingContext(t.Context()))
		check(t, server.Signal(syscall.SIGSTOP))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := pool.PingContext(ctx); err == nil {
			t.Error("a stopped server answers")
		}
		cancel()
		check(t, server.Signal(syscall.SIGCONT))
	}
	check(t, server.Signal(syscall.SIGSTOP))
	answer := make(chan error, 1)
	go func() { answer <- pool.PingContext(t.Context()) }()
	check(t, server.Signal(syscall.SIGCONT))
	if err := <-answer; err != nil {
		t.Errorf("a server that goes on doesn't answer: %v", err)
	}
}

// TestStartReportsLog takes an argument that no server knows.
func TestStartReportsLog(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine Engine) {
		server, err := Start(t.Context(), engine, Args("--no-such-argument=1"))
		if err == nil {
			_ = server.Stop()
			t.Fatal("the server starts with an unknown argument")
		}
		if !strings.Contains(err.Error(), "no-such-argument") {
			t.Errorf("the error does not carry the server's log: %v", err)
		}
	})
}

func TestStartEndsWithContext(t *testing.T) {
	t.Parallel()
	NeedsServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, engine := range Engines() {
		if _, err := Start(ctx, engine); !errors.Is(err, context.Canceled) {
			t.Errorf("Start of %s with a cancelled context: %v", engine, err)
		}
	}
}

func TestExternalServer(t *testing.T) {
	eachEngineSerial(t, func(t *testing.T, engine Engine) {
		dsn := Shared(t, engine).Config().FormatDSN()
		t.Setenv(engine.DSNVariable(), dsn)
		server, err := newShare().server(engine)
		check(t, err)
		for what, err := range map[string]error{
			"Stop": server.Stop(), "Kill": server.Kill(), "Restart": server.Restart(t.Context()),
		} {
			if err == nil || !strings.Contains(err.Error(), engine.DSNVariable()) {
				t.Errorf("%s of a server that was given: %v", what, err)
			}
		}
		has(t, server.Open(t).Connect(t), "SELECT 1", "1")
	})
}

func eachEngineSerial(t *testing.T, test func(t *testing.T, engine Engine)) {
	t.Helper()
	for _, engine := range Engines() {
		t.Run(string(engine), func(t *testing.T) { test(t, engine) })
	}
}

func TestPrivateDirIsShort(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 90))
	check(t, os.Mkdir(long, 0o700))
	t.Setenv("TMPDIR", long)
	dir, err := privateDir()
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if len(dir) > 90 {
		t.Errorf("%s is too long for a socket", dir)
	}
}

// has demands what a query returns.
func has(t *testing.T, q Queryer, text, want string) {
	t.Helper()
	if got := query(t, q, text); got != want {
		t.Errorf("%s is %s, want %s", text, got, want)
	}
}

func query(t *testing.T, q Queryer, text string) string {
	t.Helper()
	var value string
	if err := q.QueryRowContext(t.Context(), text).Scan(&value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

// TestMeet counts what is run together: any two of three settings in all their combinations.
func TestMeet(t *testing.T) {
	t.Setenv("LOCKSTEP_LONG", "")
	pairs, runs := map[[2]int]int{}, 0
	for i := range 3 {
		for j := range 4 {
			for _, on := range []bool{false, true} {
				if Meet(i, j, on) {
					pairs[[2]int{i, j}]++
					runs++
				}
			}
		}
	}
	if runs != 12 || len(pairs) != 12 {
		t.Errorf("%d runs with %d pairs, want half of 24 with 12", runs, len(pairs))
	}
	t.Setenv("LOCKSTEP_LONG", "1")
	if !Meet(1) || !Meet(true, 0) {
		t.Error("by night something isn't run")
	}
}

// TestDataIsInitialisedOnce fills data directories by a program that writes down how often
// it runs: once, and once more when there is another version of it.
func TestDataIsInitialisedOnce(t *testing.T) {
	t.Setenv("LOCKSTEP_CACHE", t.TempDir())
	runs, path := filepath.Join(t.TempDir(), "runs"), filepath.Join(t.TempDir(), "mysqld")
	err := writeProgram(path, `#!/bin/sh
for arg; do case "$arg" in --datadir=*) data=${arg#--datadir=};; esac; done
echo run >>`+runs+`
mkdir "$data" "$data/mysql" && echo me >"$data/auto.cnf" && echo rows >"$data/mysql/table"
`)
	check(t, err)
	for i, want := range []int{1, 1, 2, 2} {
		if i == 2 {
			later := time.Now().Add(time.Hour)
			check(t, os.Chtimes(path, later, later))
		}
		data := filepath.Join(t.TempDir(), "data")
		check(t, fillData(t.Context(), MySQL, binary{command: []string{path}}, data))
		if text, err := os.ReadFile(filepath.Join(data, "mysql", "table")); string(text) != "rows\n" {
			t.Errorf("the copy has %q: %v", text, err)
		}
		if info, err := os.Stat(filepath.Join(data, "mysql", "table")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("others may read the copy: %v, %v", info, err)
		}
		if _, err := os.Stat(filepath.Join(data, "auto.cnf")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("two servers have one identity: %v", err)
		}
		if text, err := os.ReadFile(runs); strings.Count(string(text), "run") != want {
			t.Errorf("data directory %d: initialised %q, %v; want %d times", i, text, err, want)
		}
	}
}

// Withservers runs a command with database servers, which it stops when the
// command is done:
//
//	go run ./internal/test/testdb/withservers -engines mariadb,mysql -- go test ./...
//
// The command finds the administrators' DSNs in LOCKSTEP_MARIADB_DSN and
// LOCKSTEP_MYSQL_DSN, and the engines in LOCKSTEP_ENGINES. An engine whose DSN
// is set already gets no server, and the command doesn't get the DSN of another
// engine. The exit code is the command's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

func main() {
	list := flag.String("engines", os.Getenv("LOCKSTEP_ENGINES"), "comma separated `list` of mariadb, mysql")
	durable := flag.Bool("durable", false, "flush every commit to the disk, for benchmarks")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: withservers [-engines LIST] [-durable] [--] COMMAND [ARGUMENT...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := run(*list, *durable, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "withservers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run starts the servers, runs the command and stops the servers.
func run(list string, durable bool, command []string) (code int, err error) {
	// A signal while the servers start ends the start; one while the command
	// runs is the command's.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	servers, env, err := start(list, durable, signals)
	defer func() {
		for _, server := range servers {
			err = errors.Join(err, server.Stop())
		}
	}()
	if err != nil {
		return 1, err
	}

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-done:
			return exitCode(cmd.ProcessState), plainExit(err)
		}
	}
}

// start starts a server for each engine that has no DSN yet, and returns what
// the command's environment needs.
func start(list string, durable bool, signals <-chan os.Signal) (servers []*testdb.Server, env []string, err error) {
	engines, err := testdb.ParseEngines(list)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("stopped by a signal: %s", s))
		case <-started:
		}
	}()

	var opts []testdb.Option
	if durable {
		opts = append(opts, testdb.Durable())
	}
	var names []string
	for _, engine := range engines {
		names = append(names, string(engine))
		if _, ok, err := testdb.Given(ctx, engine); err != nil {
			return servers, nil, errors.Join(err, context.Cause(ctx))
		} else if ok {
			continue
		}
		started := progress("starting " + string(engine))
		server, err := testdb.Start(ctx, engine, opts...)
		started()
		if err != nil {
			return servers, nil, errors.Join(err, context.Cause(ctx))
		}
		servers = append(servers, server)
		env = append(env, engine.DSNVariable()+"="+server.Config().FormatDSN())
	}
	for _, engine := range []testdb.Engine{testdb.MariaDB, testdb.MySQL} {
		if !slices.Contains(engines, engine) {
			env = append(env, engine.DSNVariable()+"=")
		}
	}
	return servers, append(env, "LOCKSTEP_ENGINES="+strings.Join(names, ",")), nil
}

// progress says what is done, and every few seconds that it is still done, until the function
// that it returns is called.
func progress(what string) (done func()) {
	began, tick, ended := time.Now(), time.NewTicker(4*time.Second), make(chan struct{})
	fmt.Fprintf(os.Stderr, "withservers: %s\n", what)
	var running sync.WaitGroup
	running.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(os.Stderr, "withservers: still %s, %.0f s\n", what, time.Since(began).Seconds())
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		running.Wait()
	}
}

// exitCode is the command's, or that of a shell where a signal ended it.
func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// plainExit drops the error that only says what the exit code says.
func plainExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

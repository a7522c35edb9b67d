// Singleton is a job with one leader and many workers: the leader plans items, one after
// the other, and all work through them. Every item must be planned and done exactly once,
// whatever becomes of the processes.
//
// The program starts three processes of itself. Each stands for election; one leads and
// plans, and all three work, the leader too: they take a lease for each item. While it
// plans an item, the leader is killed by SIGKILL, so that it can give nothing back. One
// time to live after its last renewal another process leads, and goes on from the position
// that was committed last; the item that the dead one was at is done by another. At the
// end a timeline tells who has led when, and the program counts what was done.
//
// leader.go plans, worker.go works. This file starts the processes, kills one and watches,
// and timeline.go prints.
//
// It takes the DSN of a user who may create databases from LOCKSTEP_MARIADB_DSN or
// LOCKSTEP_MYSQL_DSN, and drops the database that it makes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/examples/internal/scratch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "singleton:", err)
	if errors.Is(err, errNoServer) {
		os.Exit(2)
	}
	os.Exit(1)
}

// run is one process: the program, or one of those that it starts.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == asWorker {
		return work(ctx, args[1:], os.Getenv(dsnVariable), os.Stdin, os.Stdout)
	}
	return start(ctx, os.Getenv, os.Stdout)
}

var errNoServer = errors.New("set LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN to the DSN of a user who may create databases")

// config is the size of the example.
type config struct {
	workers int
	items   int64
	takes   time.Duration // to plan an item, and to do it
	ttl     time.Duration // of the leases
	killAt  int64         // the item in which the leader is killed
}

var whole = config{workers: 3, items: 40, takes: 25 * time.Millisecond, ttl: 3 * time.Second, killAt: 20}

// start runs the example on each server that the environment names.
func start(ctx context.Context, getenv func(string) string, out io.Writer) error {
	err := errNoServer
	for _, variable := range []string{"LOCKSTEP_MARIADB_DSN", "LOCKSTEP_MYSQL_DSN"} {
		dsn := getenv(variable)
		if dsn == "" {
			continue
		}
		if _, err := fmt.Fprintf(out, "The server of %s:\n", variable); err != nil {
			return err
		}
		if _, err = onServer(ctx, whole, dsn, out); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	return err
}

// onServer runs the job in a database of its own, and returns how it went.
func onServer(ctx context.Context, c config, dsn string, out io.Writer) (_ *history, err error) {
	database, err := scratch.New(ctx, dsn, ddl)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, database.Drop()) }()
	h, err := runJob(ctx, c, database.DSN())
	if err != nil {
		return nil, err
	}
	if err := h.read(ctx, database.Pool()); err != nil {
		return nil, err
	}
	if err := h.print(out, c); err != nil {
		return nil, err
	}
	return h, h.check(c)
}

// runJob starts the processes, kills the one that leads, and returns when the others
// have ended.
func runJob(ctx context.Context, c config, dsn string) (*history, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends those that still run after an error
	reports := make(chan report)
	h := &history{began: time.Now()}
	processes := make(map[string]*process, c.workers)
	for i := range c.workers {
		p, err := startProcess(ctx, fmt.Sprintf("worker-%d", i+1), c, dsn)
		if err != nil {
			cancel()
			return nil, errors.Join(err, h.follow(reports, len(processes), nil))
		}
		processes[p.name] = p
		go p.watch(reports)
	}
	return h, h.follow(reports, len(processes), func(r report) error {
		if h.killed != "" || r.What != doing || r.Item != c.killAt {
			return nil
		}
		h.kills(r.Worker)
		return processes[r.Worker].kill()
	})
}

// Soak lets two clients use every kind of lock on each server for hours, at a steady and
// modest rate, and notes each minute what may grow without end: the memory and goroutines
// of the clients; the threads, the prepared statements and the history list of the
// servers; the tables; and how long locks are waited for:
//
//	go run ./internal/test/testdb/withservers -- go run -C tests ./soak -duration 6h
//
// At the end, and when it is interrupted, it tests whether each figure is flat, and writes
// figures.csv and summary.md. It ends with 0 where all is well, with 1 where a figure
// grows, an operation has failed or an update is lost, and with 2 where it could not run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// options are what a run is asked for.
type options struct {
	duration time.Duration
	every    time.Duration // between two looks at the figures
	pace     float64       // of the operations
	warmUp   time.Duration
	out      string
	engines  []testdb.Engine
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code, err := soak(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		code = 2
	}
	os.Exit(code)
}

// soak reads the flags and runs.
func soak(ctx context.Context, args []string) (code int, err error) {
	var o options
	var engines string
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.DurationVar(&o.duration, "duration", 6*time.Hour, "for how long locks are used")
	flags.DurationVar(&o.every, "every", time.Minute, "between two looks at the figures")
	flags.Float64Var(&o.pace, "pace", 1, "how many `times` the usual rate of operations")
	flags.DurationVar(&o.warmUp, "warm-up", 5*time.Minute, "what is not judged, at the beginning")
	flags.StringVar(&o.out, "out", ".soak", "the `directory` for figures.csv and summary.md")
	flags.StringVar(&engines, "engines", os.Getenv("LOCKSTEP_ENGINES"), "comma separated `list` of mariadb, mysql; the DSN of each is in LOCKSTEP_MARIADB_DSN or LOCKSTEP_MYSQL_DSN")
	if err := flags.Parse(args); err != nil {
		return 2, err
	}
	if o.engines, err = testdb.ParseEngines(engines); err != nil {
		return 2, err
	}
	if flags.NArg() > 0 || o.duration <= 0 || o.every <= 0 || o.pace <= 0 || o.warmUp < 0 {
		return 2, errors.New("soak takes flags only: -duration, -every and -pace must be positive, -warm-up not negative")
	}
	return run(ctx, o)
}

// run uses locks until the time is over or the context ends, and judges.
func run(ctx context.Context, o options) (code int, err error) {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return 2, err
	}
	journal, err := newJournal(filepath.Join(o.out, "figures.csv"), int(o.duration/o.every)+1)
	if err != nil {
		return 2, err
	}
	defer func() { err = errors.Join(err, journal.close()) }()
	var sites []*site
	defer func() {
		for _, s := range sites {
			err = errors.Join(err, s.close())
		}
	}()
	for _, engine := range o.engines {
		s, err := newSite(ctx, engine)
		if s != nil {
			sites = append(sites, s)
		}
		if err != nil {
			return 2, fmt.Errorf("%s: %w", engine, err)
		}
	}
	r := &runner{options: o, sites: sites, journal: journal, asked: make(map[*site]float64)}
	if err := r.run(ctx); err != nil {
		return 2, err
	}
	return r.tell()
}

// Foreign runs tests that others have written on a plain pool and on a guarded one, and
// compares: whatever passes on the plain pool must pass on the guarded one.
//
//	go run ./foreign -engines mariadb,mysql -suites driver,dbresolver,gorm
//
// The suites are go-sql-driver's own tests, those of gorm.io/plugin/dbresolver, and GORM's,
// each of the version in the go.mod of tests/gormgen. They are copied from the module cache into
// a directory that goes at the end, and changed there only in how they open a pool.
//
// GORM's tests are a module of their own, gorm.io/gorm/tests, which has no release: they
// are taken by the commit of GORM's release, where the module proxy tells it and serves
// them, or from the directory of -gorm, that of the tests in a checkout of GORM.
//
// It ends with 0 where nothing differs, with 1 where something does, and with 2 where a
// suite could not be run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
)

// options are what is asked for.
type options struct {
	engines []testdb.Engine
	suites  []string
	gorm    string // the directory of GORM's tests, "" for the module proxy
	least   int    // how many tests must pass on the plain pool, 0 for the suite's own number
	race    bool
	verbose bool
	out     io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	differs, err := foreign(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "foreign:", err)
		os.Exit(2)
	case differs:
		os.Exit(1)
	}
}

// foreign reads the flags and runs the suites. The error is of those that could not be
// run; the others were.
func foreign(ctx context.Context, args []string, out io.Writer) (differs bool, err error) {
	o := options{out: out}
	var engines, names string
	flags := flag.NewFlagSet("foreign", flag.ContinueOnError)
	flags.StringVar(&engines, "engines", os.Getenv("LOCKSTEP_ENGINES"), "comma separated `list` of mariadb, mysql")
	flags.StringVar(&names, "suites", strings.Join(suiteNames(), ","), "comma separated `list` of suites")
	flags.StringVar(&o.gorm, "gorm", "", "the `directory` tests of a checkout of GORM; the default is to ask the module proxy")
	flags.IntVar(&o.least, "least", 0, "how many tests must pass on the plain pool; 0 for what is known of each suite")
	flags.BoolVar(&o.race, "race", false, "run the suites with the race detector")
	flags.BoolVar(&o.verbose, "v", false, "print the output of all tests that have failed, on the plain pool too")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if flags.NArg() > 0 {
		return false, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	if o.engines, err = testdb.ParseEngines(engines); err != nil {
		return false, err
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if _, ok := suites[name]; !ok {
			return false, fmt.Errorf("-suites: %q is not one of %s", name, strings.Join(suiteNames(), ", "))
		}
		o.suites = append(o.suites, name)
	}
	return o.run(ctx)
}

// run runs all suites on all engines.
func (o *options) run(ctx context.Context) (differs bool, err error) {
	dir, err := os.MkdirTemp("", "lockstep-foreign-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var ready []*suite
	var failed error
	for _, name := range o.suites {
		s, err := o.prepare(ctx, name, dir)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("the suite %s could not be prepared: %w", name, err))
			continue
		}
		ready = append(ready, s)
	}
	for _, engine := range o.engines {
		d, err := o.onEngine(ctx, engine, ready)
		differs = differs || d
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", engine, err))
		}
	}
	return differs, failed
}

// onEngine runs the suites on a server of their own.
func (o *options) onEngine(ctx context.Context, engine testdb.Engine, ready []*suite) (differs bool, err error) {
	server, err := testdb.Start(ctx, engine)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	var failed error
	for _, s := range ready {
		d, err := o.onPools(ctx, server, s)
		differs = differs || d
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return differs, failed
}

// onPools runs a suite on a plain pool and on the others, and compares.
func (o *options) onPools(ctx context.Context, server *testdb.Server, s *suite) (differs bool, err error) {
	var plain results
	for _, pool := range append([]string{"plain"}, s.pools...) {
		if err := s.makeDatabases(ctx, server); err != nil {
			return differs, err
		}
		begun := time.Now()
		found, err := s.test(ctx, server, pool, o.race)
		if err != nil {
			return differs, err
		}
		_, _ = fmt.Fprintf(o.out, "foreign: %s %s %s: %s (%v)\n", server.Engine(), s.module, pool, found.counts(), time.Since(begun).Round(time.Second))
		if pool == "plain" {
			if err := found.enough(s.least); err != nil {
				return differs, err
			}
			plain = found
			if o.verbose {
				_, _ = fmt.Fprint(o.out, found.failures())
			}
			continue
		}
		var known []string
		if pool == s.pools[len(s.pools)-1] {
			known = s.known
		}
		worse := compare(plain, found, known...)
		differs = differs || len(worse) > 0
		for _, line := range worse {
			_, _ = fmt.Fprintf(o.out, "foreign: DIFFERS %s %s %s: %s\n", server.Engine(), s.name, pool, line)
		}
		if len(worse) == 0 {
			_, _ = fmt.Fprintf(o.out, "foreign: %s %s: whatever passes on the plain pool passes on the %s one\n", server.Engine(), s.name, pool)
		}
	}
	return differs, nil
}

// suiteNames are the names of the suites, in the order of their length.
func suiteNames() []string { return []string{"driver", "dbresolver", "gorm"} }

// clipped is the end of a text.
func clipped(text string) string {
	const most = 4000
	return text[max(0, len(text)-most):]
}

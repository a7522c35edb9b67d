// Chaos lets client processes use all of the library on throw-away servers, while
// connections, clients and servers are killed and stopped, networks cut, slowed and
// hung, pools filled and clocks set apart. Afterwards it judges the history that the
// clients have written, and the data:
//
//	go run -race ./chaos -duration 10m -seed 42
//
// The seed gives what is done to whom and when, and what the clients choose. Not
// replayed is how the machine schedules them, and so what meets what.
//
// It ends with 0 where nothing is wrong, with 1 where something is, and with 2 where it
// could not run. With -without it switches one guard off, after which something must be
// wrong, and with -prove it does so with each in turn and ends with 1 where one is not
// missed.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/internal/test/testdb"
	"github.com/dca00107/lockstep/tests/faults"
)

// options are what a run is asked for.
type options struct {
	duration time.Duration
	seed     uint64
	engines  []testdb.Engine
	perSite  int // clients on each server
	workers  int // of each client
	ttl      time.Duration
	without  string
	kinds    []string // of faults, none for all
	wrappers []string // around drivers and pools
	readers  int      // of the crowd
	keep     string   // where the histories stay, "" for a directory that goes unless something is wrong
	clocks   error    // why clocks can't be set apart
}

func main() {
	if text := os.Getenv(clientVariable); text != "" {
		if err := runClient(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code, err := chaos(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 2
	}
	os.Exit(code)
}

// chaos reads the flags and runs.
func chaos(ctx context.Context, args []string) (code int, err error) {
	var o options
	var engines, kinds, wrappers string
	var prove bool
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.DurationVar(&o.duration, "duration", time.Minute, "for how long faults are made")
	flags.Uint64Var(&o.seed, "seed", 0, "what is chosen; 0 for a random one")
	flags.StringVar(&engines, "engines", os.Getenv("LOCKSTEP_ENGINES"), "comma separated `list` of mariadb, mysql, tidb")
	flags.IntVar(&o.perSite, "clients", 4, "processes on each server")
	flags.IntVar(&o.workers, "workers", 3, "workers of each process")
	flags.DurationVar(&o.ttl, "ttl", time.Second, "the time to live of the leases")
	flags.StringVar(&o.without, "without", "", "the `guard` to switch off: "+strings.Join(guardNames(), ", "))
	flags.StringVar(&kinds, "faults", "", "comma separated `list` of faults, all if empty: "+strings.Join(faultNames(), ", "))
	flags.StringVar(&wrappers, "wrappers", strings.Join(faults.WrapperNames(), ","), "comma separated `list` of what clients may have around their driver or pool")
	flags.IntVar(&o.readers, "crowd", 1500, "the number of `readers` that hold leases at the end")
	flags.StringVar(&o.keep, "keep", "", "the new `directory` where the histories stay; the default is one that goes, unless something is wrong")
	flags.BoolVar(&prove, "prove", false, "switch each guard off in turn, which must be noticed")
	if err := flags.Parse(args); err != nil {
		return 2, err
	}
	if o.engines, err = testdb.ParseEngines(engines); err != nil {
		return 2, err
	}
	o.kinds, o.wrappers = listed(kinds), listed(wrappers)
	if err := o.check(flags.Args()); err != nil {
		return 2, err
	}
	for o.seed == 0 {
		o.seed = rand.Uint64()
	}
	if prove {
		return proveAll(ctx, o)
	}
	r, err := run(ctx, o)
	if err != nil {
		return 2, err
	}
	return r.tell(os.Stdout), nil
}

// listed are the names of a comma separated list.
func listed(list string) (names []string) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// check refuses what can't be run.
func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no flag", rest[0])
	case o.duration <= 0:
		return fmt.Errorf("-duration %v: it must be positive", o.duration)
	case o.perSite < 2 || o.workers < 1:
		return fmt.Errorf("-clients %d -workers %d: there must be two clients and one worker at least", o.perSite, o.workers)
	case o.readers < 0:
		return fmt.Errorf("-crowd %d: it must not be negative", o.readers)
	case o.ttl < 100*time.Millisecond:
		return fmt.Errorf("-ttl %v: it must be 100ms at least", o.ttl)
	}
	if err := checkGuard(o.without); err != nil {
		return err
	}
	if err := checkFaults(o.kinds); err != nil {
		return err
	}
	for _, name := range o.wrappers {
		if !slices.Contains(faults.WrapperNames(), name) {
			return fmt.Errorf("-wrappers: %q is not one of %s", name, strings.Join(faults.WrapperNames(), ", "))
		}
	}
	o.clocks = mayMoveClocks()
	return nil
}

// command is the command line that runs the same again.
func (o *options) command() string {
	var names []string
	for _, engine := range o.engines {
		names = append(names, string(engine))
	}
	text := fmt.Sprintf("go run -race ./chaos -duration %v -seed %d -engines %s -clients %d -workers %d -ttl %v -crowd %d",
		o.duration, o.seed, strings.Join(names, ","), o.perSite, o.workers, o.ttl, o.readers)
	if o.without != "" {
		text += " -without " + o.without
	}
	if !slices.Equal(o.wrappers, faults.WrapperNames()) {
		text += fmt.Sprintf(" -wrappers %q", strings.Join(o.wrappers, ","))
	}
	if len(o.kinds) > 0 {
		text += fmt.Sprintf(" -faults %q", strings.Join(o.kinds, ","))
	}
	return text
}

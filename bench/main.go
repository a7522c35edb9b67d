// Bench measures lockstep beside other ways of locking, all in one run: contenders take
// turns, and figures are medians of several rounds with their quartiles. It writes
// bench.md with tables, and CSV files and charts into the directory bench beside it, and with -page
// the tables of docs/performance.md.
//
//	make bench
//	make bench QUICK=1 CONTENDERS=lockstep,redislock
//
// It takes the DSNs of administrators from LOCKSTEP_MARIADB_DSN and LOCKSTEP_MYSQL_DSN,
// which make sets, and the address of a Redis from LOCKSTEP_REDIS_ADDR, or starts one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dca00107/lockstep/bench/contender"
	"github.com/dca00107/lockstep/bench/crowd"
	"github.com/dca00107/lockstep/bench/scenario"
	"github.com/dca00107/lockstep/bench/site"
)

func main() {
	if os.Getenv(crowd.Variable) != "" {
		crowd.Main()
		return
	}
	o, err := parse(os.Args[1:], os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what a run is asked for.
type options struct {
	quick      bool
	out        string
	page       string   // of few figures, or ""
	contenders []string // parts of names in lower case; none stands for all
	scenarios  []scenario.Scenario
	links      []time.Duration
	given      bool // the links
	effort     scenario.Effort
	dsns       map[string]string // by engine
	redis      string
	kept       map[string]string // sections of an earlier page, by the letters of their scenarios
}

// quickLinks are the scenarios that a quick run measures on all links.
const quickLinks = "a"

func parse(args []string, getenv func(string) string) (*options, error) {
	o := &options{effort: scenario.Whole, dsns: make(map[string]string), redis: getenv("LOCKSTEP_REDIS_ADDR")}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "two minutes, for eyes: few rounds, and most scenarios on loopback only")
	flags.StringVar(&o.out, "out", "../.bench", "`directory` for bench.md and the directory bench with CSV files and charts")
	flags.StringVar(&o.page, "page", "", "the `page` of few figures whose tables and charts are replaced, too")
	contenders := flags.String("contenders", "", "only those whose names have one of these `parts`, by commas")
	scenarios := flags.String("scenarios", "", "only those of these `letters`, by commas; what the page has of others stays")
	links := flags.String("links", "", "`round trips` by commas, such as loopback,0.5ms,1ms, which are the default")
	rounds := flags.Int("rounds", 0, "how many `rounds`, where not the default")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("what is %q?", flags.Arg(0))
	}
	if o.quick {
		o.effort = scenario.Quick
	}
	if o.quick && o.page != "" {
		return nil, errors.New("a quick run measures too little for a page: leave out -quick or -page")
	}
	if *rounds > 0 {
		o.effort.Rounds = *rounds
	}
	o.contenders = parts(*contenders)
	for _, part := range o.contenders {
		if !anyContender(part) {
			return nil, fmt.Errorf("there is no contender %q: their names are %s", part, strings.Join(names(), ", "))
		}
	}
	if err := o.parseScenarios(*scenarios); err != nil {
		return nil, err
	}
	o.given = *links != ""
	if *links == "" {
		*links = "loopback,0.5ms,1ms"
	}
	for _, name := range parts(*links) {
		link, err := site.ParseLink(name)
		if err != nil {
			return nil, fmt.Errorf("link %q: %w", name, err)
		}
		o.links = append(o.links, link)
	}
	return o, o.parseServers(getenv)
}

func (o *options) parseScenarios(list string) error {
	letters := parts(list)
	all := len(letters) == 0
	for _, s := range scenario.All() {
		if all || remove(&letters, s.Letter) {
			o.scenarios = append(o.scenarios, s)
		}
	}
	if len(letters) > 0 {
		return fmt.Errorf("there is no scenario %q", letters[0])
	}
	return nil
}

// parseServers finds the database servers. One that is missing is a failure, unless
// LOCKSTEP_ENGINES names the others.
func (o *options) parseServers(getenv func(string) string) error {
	engines := parts(getenv("LOCKSTEP_ENGINES"))
	all := len(engines) == 0
	for _, engine := range site.Engines {
		if !all && !remove(&engines, strings.ToLower(engine.Name)) {
			continue
		}
		dsn := getenv(engine.Variable)
		if dsn == "" {
			return fmt.Errorf("%s is not set: run make bench, which brings the server, or set it to the DSN of an administrator, or leave %s out by ENGINES", engine.Variable, engine.Name)
		}
		o.dsns[engine.Name] = dsn
	}
	if len(engines) > 0 {
		return fmt.Errorf("there is no engine %q", engines[0])
	}
	return nil
}

// parts splits a list at its commas.
func parts(list string) []string {
	var all []string
	for part := range strings.SplitSeq(strings.ToLower(list), ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// remove takes a part out of a list, where it is there.
func remove(list *[]string, part string) bool {
	for i, other := range *list {
		if other == part {
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			return true
		}
	}
	return false
}

// names are those of all contenders, those of one scenario included.
func names() []string {
	var all []string
	for _, m := range contender.All() {
		all = append(all, m.Name)
	}
	return slices.Concat(all, scenario.Sellers, scenario.Claimers)
}

func anyContender(part string) bool {
	for _, name := range names() {
		if strings.Contains(strings.ToLower(name), part) {
			return true
		}
	}
	return false
}

// wants tells whether a contender is measured.
func (o *options) wants(name string) bool {
	for _, part := range o.contenders {
		if strings.Contains(strings.ToLower(name), part) {
			return true
		}
	}
	return len(o.contenders) == 0
}

// leftOut are the contenders that are not measured.
func (o *options) leftOut() []string {
	var all []string
	for _, name := range names() {
		if !o.wants(name) {
			all = append(all, name)
		}
	}
	return all
}

// needsRedis tells whether a contender does that is wanted.
func (o *options) needsRedis() bool {
	for _, m := range contender.All() {
		if m.Redis && o.wants(m.Name) {
			return true
		}
	}
	return false
}

// linksOf returns the links on which a scenario is measured.
func (o *options) linksOf(s scenario.Scenario) []time.Duration {
	if o.quick && !o.given && !strings.Contains(quickLinks, s.Letter) {
		return o.links[:1]
	}
	return o.links
}

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Without a race to report a test binary needs no second to say so at its end, and garbage is
// collected four times as often by default.
var faster = []string{"GORACE=atexit_sleep_ms=0", "GOGC=400", "CGO_ENABLED=1"}

// runner makes the commands of go test, with the first error.
type runner struct {
	flags []string
	err   error
}

// test runs packages of a module.
func (r *runner) test(dir string, flags []string, packages ...string) command {
	return command{dir, faster, slices.Concat([]string{"go", "test"}, r.flags, flags, packages)}
}

// raced runs packages under the race detector, and then without it what is in files
// behind the tag !race.
func (r *runner) raced(dir string, flags []string, packages ...string) []command {
	return append([]command{r.test(dir, append(flags, "-race"), packages...)}, r.behind(dir, []string{"-race"}, nil, flags, packages...)...)
}

// behind runs, with some flags, the tests that a build by the flags in with has and one by
// those in without has not.
func (r *runner) behind(dir string, without, with, flags []string, packages ...string) (all []command) {
	has, err := named(dir, with, packages...)
	hasNot, wrong := named(dir, without, packages...)
	if r.err == nil && err != nil {
		r.err = err
	} else if r.err == nil {
		r.err = wrong
	}
	for _, p := range has {
		lacking := func(name string) bool {
			return !slices.ContainsFunc(hasNot, func(other tested) bool { return other.path == p.path && slices.Contains(other.names, name) })
		}
		p.names = slices.DeleteFunc(p.names, func(name string) bool { return !lacking(name) })
		if len(p.names) > 0 {
			all = append(all, r.test(dir, slices.Concat(with, flags, []string{"-run=^(" + strings.Join(p.names, "|") + ")$"}), p.path))
		}
	}
	return all
}

// except lists the packages of a module but for some.
func (r *runner) except(dir string, patterns ...string) (paths []string) {
	all, err := named(dir, nil, "./...")
	if r.err == nil {
		r.err = err
	}
	for _, p := range all {
		if !slices.ContainsFunc(patterns, p.is) {
			paths = append(paths, p.path)
		}
	}
	return paths
}

// tests are the parts of make test. Four run beside each other, one package of each at a
// time: the leases and the module wait for times to live, the adapters for locks, and the
// others need processors. What takes longest comes first, so that no core is idle at the end. By
// BUSY six run beside each other, for a larger part of the machine.
func tests(timeout time.Duration) ([]part, error) {
	r := &runner{flags: []string{"-count=1", "-vet=off", "-p=1", "-parallel=8", fmt.Sprintf("-timeout=%v", timeout)}}
	beside, commands, err := r.beside()
	if err != nil {
		return nil, err
	}
	locks, tools := []string{"./txlock", "./internal/test/locksuite"}, "./internal/test/tools/..."
	others := r.except(".", append(locks, tools, "./txlock/lease", "./locksqlc")...)
	wait := []string{"-parallel=16"} // for locks, most of the time
	parts := []part{
		{name: "leases", commands: r.raced(".", nil, "./txlock/lease")},
		{name: "others", commands: append(r.raced(".", nil, others...), r.test(".", nil, tools))},
		{name: "module", commands: r.raced("tests", nil, r.except("tests", "./doctest", "./release")...)},
		{name: "beside", commands: beside},
		{name: "gorm", commands: r.raced("lockgorm", wait, ".")},
		{name: "commands", commands: commands},
		{name: "locks", commands: r.raced(".", nil, locks...)},
		{name: "sqlc", commands: r.raced(".", wait, "./locksqlc")},
		// On one processor those that play with servers in a synctest bubble: the race detector
		// crashes where two goroutines of a bubble find timers due at once (seen with Go 1.26).
		{name: "stores", commands: r.behind("tests", nil, []string{"-tags=onecpu"}, []string{"-race", "-cpu=1"}, ".")},
		// Without the race detector, which would watch the same library again.
		{name: "bench", commands: []command{r.test("bench", nil, "./...")}},

		// On clusters, and on what stands for a network between their nodes.
		{name: "cluster", asked: true, commands: []command{
			r.test(".", []string{"-race", "-tags=cluster"}, "./internal/test/testdb").with("LOCKSTEP_ENGINES=none"),
			r.test("tests", []string{"-race", "-tags=cluster"}, "./cluster"),
		}},
		// On TiDB, by make test ENGINES=tidb ONLY=tidb: what locks there, and what is refused.
		{name: "tidb", asked: true, commands: []command{
			r.test(".", []string{"-race", "-tags=tidb", "-run=^(TestTiDB|TestOnOther|TestOnServers$)"}, "./schema", "./internal/ops", "./txlock/lease", "./txlock/elect"),
			r.test(".", []string{"-race", "-tags=tidb", "-run=^(TestProcesses|TestTiDB.*)$"}, "./txlock/job"),
			r.test(".", []string{"-race"}, "./txlock/quorum"),
			r.test(".", []string{"-race", "-tags=tidb", "-run=^(TestOtherEngine|TestTiDB.*|TestControls|TestLostUpdatesOfEveryWay)$"}, "./internal/test/locksuite"),
			r.test("lockgorm", []string{"-race", "-tags=tidb", "-run=^(TestTiDB.*|" + onTiDB + ")$"}, "."),
			r.test("lockgorm", []string{"-tags=tidb", "-run=^TestEveryForm$"}, "."), // which isn't built with the race detector
			// On several servers over one store.
			r.test("tests", []string{"-race", "-tags=tidb", "-run=^TestTiDB"}, "."),
			r.test("tests", []string{"-race", "-tags=cluster", "-run=^(TestTiDB.*|" + onServersOfTiDB + ")$"}, "./cluster"),
		}},
		// On Vitess, by make test ENGINES=vitess ONLY=vitess.
		{name: "vitess", asked: true, commands: []command{
			r.test(".", []string{"-race", "-tags=vitess", "-run=^(TestOnOther|TestOnServers$)"}, "./schema", "./txlock/lease", "./txlock/elect"),
			r.test(".", []string{"-race", "-tags=vitess", "-run=^TestProcesses$"}, "./txlock/job"),
			r.test(".", []string{"-race", "-tags=vitess", "-run=^(TestOtherEngine|TestVitess.*|TestControls|TestLostUpdatesOfEveryWay)$"}, "./internal/test/locksuite"),
			r.test("lockgorm", []string{"-race", "-tags=vitess", "-run=^(" + strings.Replace(onTiDB, "ThatComeLater|", "", 1) + ")$"}, "."), // that one is at READ COMMITTED
		}},
		// Behind proxies, and what the tests of clusters do so.
		{name: "proxies", asked: true, commands: append([]command{r.test("tests", []string{"-race", "-tags=proxies"}, "./proxies")},
			r.behind("tests", []string{"-tags=cluster"}, []string{"-tags=cluster,proxies"}, []string{"-race"}, "./cluster")...)},
	}
	return parts, r.err
}

// onTiDB are tests of package lockgorm that need nothing which TiDB hasn't.
const onTiDB = `TestRows(ThatMove|OfItsOwn|ThatComeLater|AndHooks|OfSubqueries|BesideDDL)|TestHooksThatChangeKeys|` +
	`TestZeroKeysAreNotCreated|TestOnce(Value)?|TestCreateOfANewRecord|TestLockKeysWrong|` +
	`TestVersion(WritesAndReads|OfBatches|OfUndoneCreates|OfCompositeKeys|OfTheSameRowTwice)|TestConflictThatTheServerFinds`

// onServersOfTiDB are tests of clusters that TiDB servers over one store pass.
const onServersOfTiDB = "TestFaults|TestEffects|TestAsk|TestLeasesTogether|TestSales"

// beside tests the modules beside the library, and the commands. These have one goroutine, and
// read the types of all that they look at: the race detector watches what lockgen has written.
// make verify looks at the files that it writes, follows the tutorials, and reads the pages
// of lockhttp in a browser.
func (r *runner) beside() (beside, commands []command, err error) {
	const few = "-parallel=2" // they need processors more than they wait
	raced, err := modules("RACED")
	if err != nil {
		return nil, nil, err
	}
	for _, module := range raced {
		beside = append(beside, r.test(module, []string{"-race", few}, "./..."))
	}
	others, err := modules("COMMANDS")
	for _, module := range others {
		switch module {
		case "cmd/lockgen":
			commands = append(commands, r.raced(module, []string{few}, "./...")...)
		case "cmd/lockstep": // which waits for what servers show of their locks
			commands = append(commands, r.test(module, []string{"-parallel=4"}, "./..."))
		default:
			commands = append(commands, r.test(module, []string{few}, "./..."))
		}
	}
	return beside, commands, err
}

// quick is what needs no server, without the race detector, and without what has passed
// before where nothing was changed: the tests of the library, and whether the modules compile
// that an edit of it breaks most often. Most of the time goes into compiling what imports the
// package that was edited, which takes less without inlining, and into linking, which takes less
// without cgo.
func quick() ([]part, error) {
	parts, err := modules("PARTS")
	if err != nil {
		return nil, err
	}
	commands, err := modules("COMMANDS")
	if err != nil {
		return nil, err
	}
	env := []string{"GOGC=800", "CGO_ENABLED=0", "LOCKSTEP_ENGINES=none"}
	const fast = "-gcflags=github.com/dca00107/lockstep/...=-l" // in all modules, which share what is compiled
	var all []command
	for _, module := range append([]string{"."}, parts...) {
		all = append(all, command{module, env, []string{"go", "test", fast, "-vet=off", "-parallel=8", "./..."}})
	}
	for _, module := range append([]string{"examples", "tests"}, commands...) {
		all = append(all, command{module, env, []string{"go", "vet", fast, "-unreachable", "-tags=" + tags, "./..."}})
	}
	return []part{{name: "quick", commands: all}}, nil
}
